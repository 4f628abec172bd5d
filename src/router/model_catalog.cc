#include "src/router/model_catalog.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/text/chat_template.h"
#include "src/text/tokenizer.h"

namespace baton {
namespace {

constexpr int kBuildNice = 10;

}  // namespace

StatusOr<ModelCatalog::TextParts> ModelCatalog::Build(const ModelClaim& claim) {
  BATON_ASSIGN_OR_RETURN(TokenizerSpec spec, TokenizerSpec::Parse(claim.tokenizer));
  if (const uint64_t id = TokenizerSpecId(spec); id != claim.tokenizer_id) {
    return InvalidArgument("tokenizer_id is {:016x}, but the tokenizer sent has {:016x}",
                           claim.tokenizer_id, id);
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Create(spec));
  TextParts parts;
  if (!spec.chat_template.empty()) {
    StatusOr<ChatTemplate> chat_template = ChatTemplate::CreateFor(spec, *tokenizer);
    if (chat_template.ok()) {
      parts.chat_template = std::make_shared<const ChatTemplate>(*std::move(chat_template));
    } else {
      // The model can still complete texts; each chat request will be told.
      parts.has_broken_template = true;
      BATON_LOG_ERROR("model {}: no chat, its chat template is broken: {}", claim.id,
                      std::string(chat_template.status().message()));
    }
  }
  parts.tokenizer = std::move(tokenizer);
  return parts;
}

ModelCatalog::Resolved ModelCatalog::InfoOf(const ModelClaim& claim, const SharedParts& parts) {
  if (parts->tokenizer->vocab_size() != claim.vocab_size) {
    return InvalidArgument("vocab_size is {}, but the tokenizer has {} tokens", claim.vocab_size,
                           parts->tokenizer->vocab_size());
  }
  auto info = std::make_shared<ModelInfo>();
  info->id = claim.id;
  info->created_unix_s = claim.loaded_unix_s;
  info->max_context = claim.max_context;
  info->vocab_size = claim.vocab_size;
  // Aliases of `parts`: a holder of one of the two keeps the entry of parts_ alive.
  info->tokenizer = std::shared_ptr<const Tokenizer>(parts, parts->tokenizer.get());
  if (parts->chat_template != nullptr) {
    info->chat_template = std::shared_ptr<const ChatTemplate>(parts, parts->chat_template.get());
  }
  info->has_broken_template = parts->has_broken_template;
  return std::shared_ptr<const ModelInfo>(std::move(info));
}

ModelCatalog::ModelCatalog() {
  thread_ = Thread("model-text", [this] { Loop(); });
}

ModelCatalog::~ModelCatalog() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.Join();
}

void ModelCatalog::Resolve(ModelClaim claim, Done done) {
  SharedParts parts;
  bool is_full = false;
  {
    std::lock_guard lock(mutex_);
    parts = FindLocked(claim.tokenizer_id);
    is_full = parts == nullptr && (stopping_ || waiting_.size() >= kMaxWaiting);
    if (parts == nullptr && !is_full) {
      waiting_.push_back({std::move(claim), std::move(done)});
      wake_.notify_all();
      return;
    }
  }
  if (is_full) return done(Unavailable("{} models wait for their tokenizers", kMaxWaiting));
  done(InfoOf(claim, parts));
}

ModelCatalog::SharedParts ModelCatalog::FindLocked(uint64_t tokenizer_id) {
  const auto it = parts_.find(tokenizer_id);
  if (it == parts_.end()) return nullptr;
  SharedParts parts = it->second.lock();
  if (parts != nullptr) KeepLocked(tokenizer_id, parts);
  return parts;
}

void ModelCatalog::KeepLocked(uint64_t tokenizer_id, SharedParts parts) {
  std::erase_if(kept_, [&](const Kept& kept) { return kept.tokenizer_id == tokenizer_id; });
  kept_.push_back({tokenizer_id, std::move(parts), SystemClock().NowUs() + kKeepUs});
}

void ModelCatalog::TrimLocked(int64_t now_us, std::vector<SharedParts>* dropped) {
  while (!kept_.empty() && (kept_.front().until_us <= now_us || kept_.size() > kMaxKept)) {
    dropped->push_back(std::move(kept_.front().parts));
    kept_.pop_front();
  }
  std::erase_if(parts_, [](const auto& entry) { return entry.second.expired(); });
}

std::vector<ModelCatalog::Waiting> ModelCatalog::TakeEqualLocked(uint64_t tokenizer_id) {
  const auto first = std::stable_partition(
      waiting_.begin(), waiting_.end(),
      [&](const Waiting& one) { return one.claim.tokenizer_id != tokenizer_id; });
  std::vector<Waiting> equal(std::make_move_iterator(first),
                             std::make_move_iterator(waiting_.end()));
  waiting_.erase(first, waiting_.end());
  return equal;
}

void ModelCatalog::BuildFirst(std::unique_lock<std::mutex>& lock) {
  const Waiting first = std::move(waiting_.front());
  waiting_.pop_front();
  const uint64_t id = first.claim.tokenizer_id;
  SharedParts parts = FindLocked(id);
  lock.unlock();
  Status status;
  if (parts == nullptr) {
    StatusOr<TextParts> built = Build(first.claim);
    status = built.status();
    if (built.ok()) parts = std::make_shared<const TextParts>(*std::move(built));
  }
  lock.lock();
  std::vector<Waiting> equal;
  if (status.ok()) {
    parts_[id] = parts;
    KeepLocked(id, parts);
    equal = TakeEqualLocked(id);
  }
  lock.unlock();
  first.done(status.ok() ? InfoOf(first.claim, parts) : Resolved(status));
  for (const Waiting& one : equal) one.done(InfoOf(one.claim, parts));
  lock.lock();
}

void ModelCatalog::Loop() {
  // Below the threads that serve; without the right to do so it builds at theirs.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kBuildNice);
  std::unique_lock lock(mutex_);
  std::vector<SharedParts> dropped;
  while (!stopping_) {
    const int64_t now_us = SystemClock().NowUs();
    TrimLocked(now_us, &dropped);
    if (!dropped.empty()) {
      lock.unlock();
      dropped.clear();
      lock.lock();
      continue;
    }
    if (waiting_.empty()) {
      const int64_t wait_us = kept_.empty() ? kKeepUs : kept_.front().until_us - now_us;
      wake_.wait_for(lock, std::chrono::microseconds(wait_us));
      continue;
    }
    BuildFirst(lock);
  }
  std::deque<Waiting> left = std::move(waiting_);
  waiting_.clear();
  lock.unlock();
  for (const Waiting& one : left) one.done(Unavailable("the router stops"));
}

}  // namespace baton
