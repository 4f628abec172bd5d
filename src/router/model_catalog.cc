#include "src/router/model_catalog.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/text/chat_template.h"
#include "src/text/grammar_cache.h"
#include "src/text/tokenizer.h"

namespace baton::router {

using text::ChatTemplate;
using text::GrammarCache;
using text::Tokenizer;
using text::TokenizerSpec;
using text::TokenizerSpecId;

namespace {

constexpr int kBuildNice = 10;

}  // namespace

StatusOr<ModelCatalog::TextParts> ModelCatalog::Build(const Pending& pending,
                                                      const std::string& model_id) {
  if (const uint64_t id = TokenizerSpecId(pending.tokenizer); id != pending.tokenizer_id) {
    return InvalidArgument("tokenizer_id is {:016x}, but the tokenizer sent has {:016x}",
                           pending.tokenizer_id, id);
  }
  BATON_ASSIGN_OR_RETURN(const TokenizerSpec spec, TokenizerSpec::Parse(pending.tokenizer));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Create(spec));
  TextParts parts;
  if (!spec.chat_template.empty()) {
    StatusOr<ChatTemplate> chat_template = ChatTemplate::CreateFor(spec.chat_template, *tokenizer);
    if (chat_template.ok()) {
      parts.chat_template = std::make_shared<const ChatTemplate>(*std::move(chat_template));
    } else {
      // The model can still complete texts; each chat request will be told.
      parts.has_broken_template = true;
      BATON_LOG_ERROR("model {}: no chat, its chat template is broken: {}", model_id,
                      std::string(chat_template.status().message()));
    }
  }
  const std::string source = spec.ToolTemplate();
  if (parts.chat_template != nullptr && !source.empty()) {
    StatusOr<ChatTemplate> for_tools = ChatTemplate::CreateFor(source, *tokenizer);
    if (for_tools.ok()) {
      parts.tool_template = std::make_shared<const ChatTemplate>(*std::move(for_tools));
    } else {
      BATON_LOG_ERROR(
          "model {}: its chat template \"tool_use\" is broken, so that chats with tools take the "
          "default one: {}",
          model_id, std::string(for_tools.status().message()));
    }
  }
  parts.tokenizer = std::move(tokenizer);
  parts.grammars = std::make_shared<GrammarCache>(parts.tokenizer);
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
  info->embedding_size = claim.embedding_size;
  info->embedding_refusal = claim.embedding_refusal;
  // Aliases of `parts`: a holder of one of the two keeps the entry of parts_ alive.
  info->tokenizer = std::shared_ptr<const Tokenizer>(parts, parts->tokenizer.get());
  if (parts->chat_template != nullptr) {
    info->chat_template = std::shared_ptr<const ChatTemplate>(parts, parts->chat_template.get());
  }
  if (parts->tool_template != nullptr) {
    info->tool_template = std::shared_ptr<const ChatTemplate>(parts, parts->tool_template.get());
  }
  info->has_broken_template = parts->has_broken_template;
  info->grammars = parts->grammars;
  return std::shared_ptr<const ModelInfo>(std::move(info));
}

ModelCatalog::ModelCatalog(std::vector<TokenizerSource> expected) {
  if (expected.size() > kMaxKept) expected.resize(kMaxKept);
  thread_ = Thread("model-text", [this, expected = std::move(expected)] { Loop(expected); });
}

ModelCatalog::~ModelCatalog() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  thread_.Join();
}

void ModelCatalog::Resolve(ModelClaim claim, Done done) {
  SharedParts parts;
  size_t num_pending = 0;
  bool is_stopping = false;
  {
    MutexLock lock(mutex_);
    parts = FindLocked(claim.tokenizer_id);
    is_stopping = stopping_;
    num_pending = pending_.size();
    if (parts == nullptr && !is_stopping && AddLocked(claim, done)) {
      wake_.NotifyAll();
      return;
    }
  }
  if (parts != nullptr) return done(InfoOf(claim, parts));
  if (is_stopping) return done(Unavailable("the router stops"));
  done(Unavailable("{} tokenizers wait to be built", num_pending));
}

bool ModelCatalog::AddLocked(ModelClaim& claim, Done& done) {
  if (num_claims_ >= kMaxClaims) return false;
  auto place = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& pending) {
    return pending.tokenizer_id == claim.tokenizer_id && pending.tokenizer == claim.tokenizer;
  });
  if (place == pending_.end()) {
    const size_t num_bytes = claim.tokenizer.size();
    if (pending_.size() >= kMaxWaiting || pending_bytes_ + num_bytes > kMaxWaitingBytes) {
      return false;
    }
    pending_bytes_ += num_bytes;
    pending_.push_back({claim.tokenizer_id, std::move(claim.tokenizer), {}});
    place = std::prev(pending_.end());
  }
  std::string().swap(claim.tokenizer);
  place->claims.push_back({std::move(claim), std::move(done)});
  ++num_claims_;
  return true;
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

std::vector<ModelCatalog::Waiting> ModelCatalog::TakeFirstLocked() {
  std::vector<Waiting> claims = std::move(pending_.front().claims);
  pending_bytes_ -= pending_.front().tokenizer.size();
  num_claims_ -= claims.size();
  pending_.pop_front();
  return claims;
}

void ModelCatalog::BuildFirstLocked() {
  // Stays in its place meanwhile, so that equal claims join it; only this thread takes it out, and
  // its id and bytes do not change.
  const Pending& first = pending_.front();
  const uint64_t id = first.tokenizer_id;
  const std::string model_id = first.claims.front().claim.id;
  SharedParts parts = FindLocked(id);
  mutex_.Unlock();
  Status status;
  if (parts == nullptr) {
    StatusOr<TextParts> built = Build(first, model_id);
    status = built.status();
    if (built.ok()) parts = std::make_shared<const TextParts>(*std::move(built));
  }
  mutex_.Lock();
  if (status.ok()) {
    parts_[id] = parts;
    KeepLocked(id, parts);
  }
  std::vector<Waiting> claims = TakeFirstLocked();
  mutex_.Unlock();
  for (const Waiting& one : claims) {
    one.done(status.ok() ? InfoOf(one.claim, parts) : Resolved(status));
  }
  claims.clear();  // what a `done` held is not freed under the mutex
  mutex_.Lock();
}

Status ModelCatalog::KeepExpected(const TokenizerSource& source) {
  BATON_ASSIGN_OR_RETURN(std::string bytes, source());
  const uint64_t id = TokenizerSpecId(bytes);
  {
    MutexLock lock(mutex_);
    if (FindLocked(id) != nullptr) return OkStatus();  // another model's too
  }
  const Pending expected = {.tokenizer_id = id, .tokenizer = std::move(bytes), .claims = {}};
  BATON_ASSIGN_OR_RETURN(TextParts built, Build(expected, "to come"));
  auto parts = std::make_shared<const TextParts>(std::move(built));
  BATON_LOG_DEBUG("tokenizer {:016x} is there before a worker brings it", id);
  MutexLock lock(mutex_);
  parts_[id] = parts;
  KeepLocked(id, std::move(parts));
  return OkStatus();
}

bool ModelCatalog::IsStopping() {
  MutexLock lock(mutex_);
  return stopping_;
}

void ModelCatalog::Loop(const std::vector<TokenizerSource>& expected) {
  bool is_lowered = false;
  for (const TokenizerSource& source : expected) {
    if (IsStopping()) break;
    const Status status = KeepExpected(source);
    is_lowered |= status.ok();
    if (status.ok()) continue;
    BATON_LOG_INFO("a tokenizer is built when a worker brings it: {}",
                   std::string(status.message()));
  }
  if (is_lowered) LowerThisThread(kBuildNice);
  MutexLock lock(mutex_);
  std::vector<SharedParts> dropped;
  while (!stopping_) {
    const int64_t now_us = SystemClock().NowUs();
    TrimLocked(now_us, &dropped);
    if (!dropped.empty()) {
      lock.Unlock();
      dropped.clear();
      lock.Lock();
      continue;
    }
    if (pending_.empty()) {
      const int64_t wait_us = kept_.empty() ? kKeepUs : kept_.front().until_us - now_us;
      (void)wake_.WaitUntil(mutex_,
                            std::chrono::steady_clock::now() + std::chrono::microseconds(wait_us));
      continue;
    }
    BuildFirstLocked();
    // From now on below the threads that serve.
    if (!std::exchange(is_lowered, true)) LowerThisThread(kBuildNice);
  }
  std::vector<Waiting> left;
  while (!pending_.empty()) {
    std::vector<Waiting> claims = TakeFirstLocked();
    std::move(claims.begin(), claims.end(), std::back_inserter(left));
  }
  lock.Unlock();
  for (const Waiting& one : left) one.done(Unavailable("the router stops"));
}

}  // namespace baton::router
