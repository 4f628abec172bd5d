#include "src/engine/answer_guide.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/clock.h"
#include "src/base/mutex.h"
#include "src/text/reasoning_splitter.h"

namespace baton::engine {

using text::Grammar;
using text::GrammarCache;
using text::GrammarState;
using text::kThoughtsBegin;
using text::kThoughtsEnd;
using text::Tokenizer;
using wire::GrammarStart;
using wire::SharedGrammar;

namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr uint32_t kBitsPerWord = 32;

void SetBit(TokenId token, std::span<uint32_t> words) {
  const auto id = static_cast<uint32_t>(token);
  words[id / kBitsPerWord] |= uint32_t{1} << (id % kBitsPerWord);
}

void ClearBit(TokenId token, std::span<uint32_t> words) {
  const auto id = static_cast<uint32_t>(token);
  words[id / kBitsPerWord] &= ~(uint32_t{1} << (id % kBitsPerWord));
}

bool HasBit(TokenId token, std::span<const uint32_t> words) {
  const auto id = static_cast<uint32_t>(token);
  return (words[id / kBitsPerWord] >> (id % kBitsPerWord) & 1) != 0;
}

}  // namespace

// The insides of a guide. One thread at a time computes, and says so by `is_computing_`: the mask
// and all that makes it belong to that thread. The mutex is held for looking only.
class GuideState {
 public:
  GuideState(AnswerGuides* guides, SharedGrammar grammar, std::span<const TokenId> tokens,
             AnswerGuide::OnReady on_ready)
      : guides_(guides),
        grammar_(std::move(grammar)),
        untaken_(tokens.begin(), tokens.end()),
        on_ready_(std::move(on_ready)) {}

  void Add(TokenId token) {
    MutexLock lock(mutex_);
    untaken_.push_back(token);
    has_mask_ = false;
  }

  // A state is in a queue once at most. False: it is in one already.
  bool Enqueue() {
    MutexLock lock(mutex_);
    return !std::exchange(is_queued_, true);
  }
  void Dequeue() {
    MutexLock lock(mutex_);
    is_queued_ = false;
  }
  // Nothing is compiled yet.
  bool is_new() {
    MutexLock lock(mutex_);
    return num_masks_ == 0;
  }

  // Computes the mask of all tokens, unless another thread is at it.
  void Compute() {
    MutexLock lock(mutex_);
    if (is_computing_ || IsDone()) return;
    is_computing_ = true;
    while (!IsDone()) {
      taken_.swap(untaken_);
      lock.Unlock();
      const int64_t begin_us = SystemClock().NowUs();
      const Status status = CatchUp();
      taken_.clear();
      const int64_t took_us = SystemClock().NowUs() - begin_us;
      if (guides_->on_mask_) guides_->on_mask_(took_us);
      lock.Lock();
      status_ = status;
      is_slow_ = is_slow_ || (num_masks_ > 0 && took_us >= AnswerGuides::kSlowMaskUs);
      ++num_masks_;
      has_mask_ = untaken_.empty();
    }
    is_computing_ = false;
    const bool is_asked_for = std::exchange(is_asked_for_, false);
    lock.Unlock();
    changed_.NotifyAll();
    if (is_asked_for) Notify();
  }

  // Whether a caller in a hurry may compute the mask.
  bool IsQuick() {
    MutexLock lock(mutex_);
    return IsDone() || (num_masks_ > 0 && !is_slow_);
  }

  bool WaitForMask(int64_t wait_us) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(wait_us);
    MutexLock lock(mutex_);
    while (!IsDone() && changed_.WaitUntil(mutex_, deadline)) {
    }
    is_asked_for_ = !IsDone();
    return !is_asked_for_;
  }

  StatusOr<std::span<const uint32_t>> Mask() {
    Compute();
    MutexLock lock(mutex_);
    while (!IsDone()) changed_.Wait(mutex_);
    if (!status_.ok()) return status_;
    return std::span<const uint32_t>(mask_);
  }

  // No call of OnReady comes afterwards.
  void Detach() {
    MutexLock lock(notice_mutex_);
    on_ready_ = nullptr;
  }

 private:
  enum class Place : uint8_t {
    kNew,       // nothing is compiled yet
    kFirst,     // the answer may begin with thoughts or with what follows the grammar
    kOpening,   // within the tokens of the tag that begins thoughts
    kThoughts,  // any text, until the tag that ends them
    kGrammar,   // all that comes follows the grammar
  };

  bool IsDone() const BATON_REQUIRES(mutex_) { return has_mask_ || !status_.ok(); }

  // The mutex is held over the call, so that Detach waits for a call that has begun. The callee
  // posts a message.
  void Notify() {
    MutexLock lock(notice_mutex_);
    if (on_ready_) on_ready_();
  }

  Status CatchUp() {
    if (place_ == Place::kNew) BATON_RETURN_IF_ERROR(Compile());
    for (const TokenId token : taken_) BATON_RETURN_IF_ERROR(Take(token));
    return FillMask();
  }

  Status Compile() {
    BATON_ASSIGN_OR_RETURN(const GrammarCache::Vocabulary* const vocabulary,
                           guides_->grammars_->GetVocabulary());
    tokenizer_ = vocabulary->tokenizer.get();
    mask_.resize(vocabulary->tokens.num_mask_words());
    BATON_ASSIGN_OR_RETURN(const Grammar grammar,
                           guides_->grammars_->Compile(grammar_->kind, grammar_->text));
    BATON_ASSIGN_OR_RETURN(GrammarState state, GrammarState::Create(grammar));
    state_.emplace(std::move(state));
    return Begin();
  }

  // The place of the first token.
  Status Begin() {
    place_ = Place::kGrammar;
    if (grammar_->start == GrammarStart::kAfterThoughts) place_ = Place::kThoughts;
    if (grammar_->start != GrammarStart::kMayThink) return OkStatus();
    BATON_ASSIGN_OR_RETURN(opening_, tokenizer_->Encode(kThoughtsBegin, {.parse_special = true}));
    BATON_RETURN_IF_ERROR(state_->FillMask(mask_));
    // Where the grammar itself may begin with that token, or the tag is no text of the answer, the
    // answer has no thoughts.
    const bool may_open = !opening_.empty() && !tokenizer_->IsSpecial(opening_.front()) &&
                          !HasBit(opening_.front(), mask_);
    if (may_open) place_ = Place::kFirst;
    return OkStatus();
  }

  Status Take(TokenId token) {
    if (!tokenizer_->IsValid(token)) {
      return FailedPrecondition("output token {} is outside the vocabulary", token);
    }
    switch (place_) {
      case Place::kNew:
      case Place::kGrammar:
        break;
      case Place::kFirst:
        place_ = token == opening_.front() ? Place::kOpening : Place::kGrammar;
        if (place_ == Place::kGrammar) break;
        [[fallthrough]];
      case Place::kOpening:
        if (++num_opened_ == opening_.size()) place_ = Place::kThoughts;
        return OkStatus();
      case Place::kThoughts:
        return TakeThought(token);
    }
    return TakeAnswer(std::span(&token, 1));
  }

  Status TakeThought(TokenId token) {
    tail_ += tokenizer_->TokenBytes(token);
    const size_t end = tail_.find(kThoughtsEnd);
    if (end == std::string::npos) {
      if (tail_.size() >= kThoughtsEnd.size())
        tail_.erase(0, tail_.size() + 1 - kThoughtsEnd.size());
      return OkStatus();
    }
    place_ = Place::kGrammar;
    // A token may hold the end of the thoughts and more. Blanks are in no answer.
    const size_t first = tail_.find_first_not_of(kBlanks, end + kThoughtsEnd.size());
    if (first == std::string::npos) return OkStatus();
    BATON_ASSIGN_OR_RETURN(const std::vector<TokenId> rest,
                           tokenizer_->Encode(std::string_view(tail_).substr(first)));
    return TakeAnswer(rest);
  }

  Status TakeAnswer(std::span<const TokenId> tokens) {
    BATON_ASSIGN_OR_RETURN(const size_t num_taken, state_->Accept(tokens));
    if (num_taken == tokens.size()) return OkStatus();
    return FailedPrecondition("output token {} does not follow the grammar", tokens[num_taken]);
  }

  Status FillMask() {
    switch (place_) {
      case Place::kNew:
      case Place::kGrammar:
        return state_->FillMask(mask_);
      case Place::kFirst:
        BATON_RETURN_IF_ERROR(state_->FillMask(mask_));
        SetBit(opening_.front(), mask_);
        return OkStatus();
      case Place::kOpening:
        std::fill(mask_.begin(), mask_.end(), 0);
        SetBit(opening_[num_opened_], mask_);
        return OkStatus();
      case Place::kThoughts:
        // An answer that ends here would have none of what was asked for.
        std::fill(mask_.begin(), mask_.end(), std::numeric_limits<uint32_t>::max());
        for (const TokenId token : tokenizer_->eog_ids()) ClearBit(token, mask_);
        return OkStatus();
    }
    return OkStatus();
  }

  AnswerGuides* const guides_;
  const SharedGrammar grammar_;
  Mutex mutex_;
  CondVar changed_;  // is_computing_ became false
  std::vector<TokenId> untaken_ BATON_GUARDED_BY(mutex_);
  bool is_queued_ BATON_GUARDED_BY(mutex_) = false;
  bool is_computing_ BATON_GUARDED_BY(mutex_) = false;
  bool has_mask_ BATON_GUARDED_BY(mutex_) = false;      // mask_ is of all tokens
  bool is_asked_for_ BATON_GUARDED_BY(mutex_) = false;  // OnReady is owed
  bool is_slow_ BATON_GUARDED_BY(mutex_) = false;       // a mask took kSlowMaskUs
  uint64_t num_masks_ BATON_GUARDED_BY(mutex_) = 0;
  Status status_ BATON_GUARDED_BY(mutex_);
  Mutex notice_mutex_;
  AnswerGuide::OnReady on_ready_ BATON_GUARDED_BY(notice_mutex_);

  // Owned by the thread that computes. When none does, the guide's thread reads mask_.
  const Tokenizer* tokenizer_ = nullptr;
  std::optional<GrammarState> state_;
  Place place_ = Place::kNew;
  std::vector<TokenId> opening_;  // tokens of the tag that begins thoughts
  size_t num_opened_ = 0;
  std::string tail_;  // of the thoughts: may begin the tag that ends them
  std::vector<TokenId> taken_;
  std::vector<uint32_t> mask_;
};

AnswerGuide::~AnswerGuide() { state_->Detach(); }

void AnswerGuide::Accept(TokenId token) {
  state_->Add(token);
  (void)guides_->Begin(state_);
}

bool AnswerGuide::IsReady(int64_t wait_us) {
  // A mask that no queue takes is computed here: after Stop, or when more guides have tokens than
  // can run at once.
  const bool is_here = state_->IsQuick() || !guides_->Begin(state_);
  if (is_here) state_->Compute();
  return state_->WaitForMask(wait_us);
}

StatusOr<std::span<const uint32_t>> AnswerGuide::Mask() { return state_->Mask(); }

Status GuideFailure(const Status& mask) {
  if (absl::IsInternal(mask) || absl::IsUnavailable(mask)) return mask;
  return FailedPrecondition("{}", std::string(mask.message()));
}

AnswerGuides::AnswerGuides(text::GrammarCache* grammars, OnMask on_mask)
    : grammars_(grammars), on_mask_(std::move(on_mask)) {
  grammar_thread_ = Thread("grammar", [this] { Work(&first_masks_); });
  mask_thread_ = Thread("mask", [this] { Work(&later_masks_); });
}

void AnswerGuides::Work(Queue* queue) {
  constexpr int64_t kForever = std::numeric_limits<int64_t>::max() / 4000;
  while (!queue->closed()) {
    const std::optional<std::shared_ptr<GuideState>> next = queue->Pop(kForever);
    if (!next.has_value()) continue;
    (*next)->Dequeue();
    // One that nobody else holds has ended.
    if (next->use_count() > 1) (*next)->Compute();
  }
}

void AnswerGuides::Stop() {
  first_masks_.Close();
  later_masks_.Close();
  grammar_thread_.Join();
  mask_thread_.Join();
}

StatusOr<std::unique_ptr<AnswerGuide>> AnswerGuides::Follow(const SharedGrammar& grammar,
                                                            std::span<const TokenId> tokens,
                                                            AnswerGuide::OnReady on_ready) {
  auto state = std::make_shared<GuideState>(this, grammar, tokens, std::move(on_ready));
  if (!Begin(state) && !first_masks_.closed()) {
    return ResourceExhausted("{} answers wait for their grammars, the limit is {}", kMaxQueued,
                             kMaxQueued);
  }
  return std::unique_ptr<AnswerGuide>(new AnswerGuide(this, std::move(state)));
}

bool AnswerGuides::Begin(const std::shared_ptr<GuideState>& state) {
  if (!state->Enqueue()) return true;
  Queue& queue = state->is_new() ? first_masks_ : later_masks_;
  if (queue.TryPush(state)) return true;
  state->Dequeue();
  return false;
}

}  // namespace baton::engine
