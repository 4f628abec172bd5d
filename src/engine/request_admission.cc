#include "src/engine/request_admission.h"

#include <algorithm>
#include <utility>

namespace baton::engine {

using kv::BlockHandle;
using kv::BlockState;
using kv::ChainLinks;
using kv::KvLayout;
using scheduler::SequenceSpec;

Status RequestAdmission::Admit(LiveRequest* request, DestStart* dest) {
  const RequestSpec& spec = request->spec;
  BATON_RETURN_IF_ERROR(CheckKind(spec));
  if (spec.kind == RequestKind::kDest) return ReserveBlocks(*request, dest);
  // This attempt was given before and cancelled, and the cancelled one still waits for the
  // transport.
  if (spec.kind == RequestKind::kSource && hub_->sources().Holds(spec.key)) {
    return Aborted("attempt {} was given before and its hand-off is not over", spec.key.attempt);
  }
  const SequenceId id = state_->NewSequenceId();
  BATON_RETURN_IF_ERROR(
      state_->scheduler.AddWaiting(state_->SequenceSpecOf(*request, id), state_->now_us));
  request->prompt_sequence = id;
  if (spec.kind == RequestKind::kEmbed) {
    request->pool.emplace(state_->config.pooling, state_->parts.model->hidden_size());
  }
  return OkStatus();
}

Status RequestAdmission::CheckKind(const RequestSpec& spec) const {
  if (state_->draining) return Unavailable("this worker is draining");
  const uint32_t num_live = state_->requests.size();
  const uint32_t max_requests = state_->config.max_requests;
  if (num_live >= max_requests) {
    return ResourceExhausted("{} requests are live, the limit is {}", num_live, max_requests);
  }
  const bool prefills = state_->config.scheduler.role == WorkerRole::kPrefill;
  if (!prefills && spec.kind == RequestKind::kSource) {
    return Aborted("this decode worker does not hold the KV of {} tokens of the request",
                   spec.tokens.size());
  }
  const bool embeds = spec.kind == RequestKind::kEmbed;
  if (!embeds && prefills != (spec.kind == RequestKind::kSource)) {
    return FailedPrecondition("a {} worker does not take this kind of request",
                              prefills ? "prefill" : "decode");
  }
  if (embeds || spec.kind == RequestKind::kLocal) return OkStatus();
  if (state_->parts.transport == nullptr) {
    return FailedPrecondition("this worker has no KV transport");
  }
  return hub_->CanOpen();
}

Status RequestAdmission::ReserveBlocks(const LiveRequest& request, DestStart* dest) {
  const RequestSpec& spec = request.spec;
  const KvLayout& layout = *state_->kv_view.layout;
  kv::BlockPool& pool = state_->pool;
  kv::PrefixIndex* const index = state_->prefix_index.get();
  const auto num_tokens = static_cast<uint32_t>(spec.tokens.size());
  const SequenceSpec sequence = state_->SequenceSpecOf(request, SequenceId());
  DestStart start;
  start.num_state = layout.state_blocks;
  start.num_data = layout.BlocksOfSequence(num_tokens);
  start.chain = ChainLinks(sequence.chain_key, layout.block_size, spec.tokens);
  start.num_unseen = state_->scheduler.config().NumUnseenBlocks(num_tokens);
  start.num_held = start.num_unseen;
  uint32_t num_hits = 0;
  if (index != nullptr) {
    // At least the block of the last token crosses, and with it the seal. So does a fixed state:
    // that of the whole prompt is nowhere but at the prefill worker.
    const uint32_t most = layout.BlocksFor(num_tokens) - 1;
    num_hits = index->Acquire({start.chain, spec.tokens}, most, BlockState::kReserved, spec.key.uid,
                              &start.blocks);
    const auto first_seen = start.blocks.begin() + std::min(num_hits, start.num_unseen);
    std::for_each(start.blocks.begin(), first_seen,
                  [&pool](BlockHandle block) { pool.DropRequestRef(block); });
    start.blocks.erase(start.blocks.begin(), first_seen);
    start.num_held = std::max(num_hits, start.num_unseen);
  }
  const uint32_t num_own = start.num_held - start.num_unseen;
  const uint32_t num_new =
      state_->scheduler.BlocksToReserve(num_tokens, spec.num_choices) - num_own;
  Status status = state_->scheduler.CanReserve(sequence, num_own);
  if (status.ok() && !pool.Allocate(num_new, BlockState::kReserved, spec.key.uid, &start.blocks)) {
    status = ResourceExhausted("the request needs {} KV blocks, {} are free", num_new,
                               pool.num_available());
  }
  if (!status.ok()) {
    for (const BlockHandle block : start.blocks) pool.DropRequestRef(block);
    return status;
  }
  if (index != nullptr) {
    // KV that need not cross since it is here. What no row sees is asked of nobody, so it is no
    // hit.
    index->CountQuery(num_tokens - start.num_unseen * layout.block_size,
                      num_own * layout.block_size);
  }
  *dest = std::move(start);
  return OkStatus();
}

}  // namespace baton::engine
