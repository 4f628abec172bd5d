#include "src/router/kv_share.h"

#include <algorithm>

#include "fmt/format.h"

#include "src/router/submit.h"
#include "src/router/worker_registry.h"

namespace baton::router {

uint64_t& TenantKv::HeldOf(std::string_view model_id) {
  const auto at = held_.find(model_id);
  return at != held_.end() ? at->second : held_.emplace(model_id, 0).first->second;
}

void KvHold::Begin(const std::shared_ptr<TenantKv>& tenant, std::string_view model_id,
                   uint64_t num_tokens) {
  Release();
  if (tenant == nullptr) return;
  tenant_ = tenant;
  held_ = &tenant->HeldOf(model_id);
  num_tokens_ = num_tokens;
  *held_ += num_tokens;
}

void KvHold::Grow() {
  if (tenant_ == nullptr) return;
  ++num_tokens_;
  ++*held_;
}

void KvHold::Release() {
  if (tenant_ == nullptr) return;
  *held_ -= num_tokens_;
  num_tokens_ = 0;
  tenant_.reset();
}

std::string KvLimit::Text() const {
  return fmt::format("kv_share {}, {} of {} tokens of KV", share, tokens(), pool_tokens);
}

KvLimit KvLimitOf(const TenantKv& tenant, const WorkerRegistry& registry,
                  std::string_view model_id) {
  KvLimit limit{.share = tenant.share()};
  for (const auto& [lease, worker] : registry.workers()) {
    if (worker.IsPrefill() || worker.description.model->id != model_id) continue;
    limit.pool_tokens += uint64_t{worker.description.num_blocks} * worker.description.block_size;
    // Equal in all, as their layout is, but 0 at a worker of a release that does not tell.
    limit.state_tokens = std::max(limit.state_tokens, worker.description.state_tokens());
  }
  return limit;
}

}  // namespace baton::router
