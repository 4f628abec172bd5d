#include "src/engine/answer_guide.h"

#include <algorithm>
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

// The insides of a guide. The mutex belongs to who takes tokens and computes the mask: the thread
// of AnswerGuides, or the one that wants the mask.
class GuideState {
 public:
  GuideState(AnswerGuides* guides, SharedGrammar grammar, std::span<const TokenId> tokens)
      : guides_(guides), grammar_(std::move(grammar)), untaken_(tokens.begin(), tokens.end()) {}

  void Add(TokenId token) {
    MutexLock lock(mutex_);
    untaken_.push_back(token);
    has_mask_ = false;
  }

  void Compute() {
    MutexLock lock(mutex_);
    ComputeLocked();
  }

  StatusOr<std::span<const uint32_t>> Mask() {
    MutexLock lock(mutex_);
    ComputeLocked();
    if (!status_.ok()) return status_;
    return std::span<const uint32_t>(mask_);
  }

 private:
  enum class Place : uint8_t {
    kNew,       // nothing is compiled yet
    kFirst,     // the answer may begin with thoughts or with what follows the grammar
    kOpening,   // within the tokens of the tag that begins thoughts
    kThoughts,  // any text, until the tag that ends them
    kGrammar,   // all that comes follows the grammar
  };

  void ComputeLocked() BATON_REQUIRES(mutex_) {
    if (has_mask_ || !status_.ok()) return;
    const int64_t begin_us = SystemClock().NowUs();
    status_ = CatchUp();
    has_mask_ = true;
    if (guides_->on_mask_) guides_->on_mask_(SystemClock().NowUs() - begin_us);
  }

  Status CatchUp() BATON_REQUIRES(mutex_) {
    if (place_ == Place::kNew) BATON_RETURN_IF_ERROR(Compile());
    for (const TokenId token : untaken_) BATON_RETURN_IF_ERROR(Take(token));
    untaken_.clear();
    return FillMask();
  }

  Status Compile() BATON_REQUIRES(mutex_) {
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
  Status Begin() BATON_REQUIRES(mutex_) {
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

  Status Take(TokenId token) BATON_REQUIRES(mutex_) {
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

  Status TakeThought(TokenId token) BATON_REQUIRES(mutex_) {
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

  Status TakeAnswer(std::span<const TokenId> tokens) BATON_REQUIRES(mutex_) {
    BATON_ASSIGN_OR_RETURN(const size_t num_taken, state_->Accept(tokens));
    if (num_taken == tokens.size()) return OkStatus();
    return FailedPrecondition("output token {} does not follow the grammar", tokens[num_taken]);
  }

  Status FillMask() BATON_REQUIRES(mutex_) {
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
  const Tokenizer* tokenizer_ BATON_GUARDED_BY(mutex_) = nullptr;
  std::optional<GrammarState> state_ BATON_GUARDED_BY(mutex_);
  Place place_ BATON_GUARDED_BY(mutex_) = Place::kNew;
  std::vector<TokenId> opening_ BATON_GUARDED_BY(mutex_);  // tokens of the tag that begins thoughts
  size_t num_opened_ BATON_GUARDED_BY(mutex_) = 0;
  std::string tail_ BATON_GUARDED_BY(mutex_);  // of the thoughts: may begin the tag that ends them
  std::vector<TokenId> untaken_ BATON_GUARDED_BY(mutex_);
  std::vector<uint32_t> mask_ BATON_GUARDED_BY(mutex_);
  bool has_mask_ BATON_GUARDED_BY(mutex_) = false;  // mask_, or status_, is of all tokens
  Status status_ BATON_GUARDED_BY(mutex_);
};

void AnswerGuide::Accept(TokenId token) {
  state_->Add(token);
  guides_->Begin(state_);
}

StatusOr<std::span<const uint32_t>> AnswerGuide::Mask() { return state_->Mask(); }

AnswerGuides::AnswerGuides(text::GrammarCache* grammars, OnMask on_mask)
    : grammars_(grammars), on_mask_(std::move(on_mask)) {
  thread_ = Thread("grammar", [this] {
    constexpr int64_t kForever = std::numeric_limits<int64_t>::max() / 4000;
    while (!queue_.closed()) {
      const std::optional<std::shared_ptr<GuideState>> next = queue_.Pop(kForever);
      // One that nobody else holds has ended.
      if (next.has_value() && next->use_count() > 1) (*next)->Compute();
    }
  });
}

void AnswerGuides::Stop() {
  queue_.Close();
  thread_.Join();
}

std::unique_ptr<AnswerGuide> AnswerGuides::Follow(const SharedGrammar& grammar,
                                                  std::span<const TokenId> tokens) {
  auto state = std::make_shared<GuideState>(this, grammar, tokens);
  Begin(state);
  return std::unique_ptr<AnswerGuide>(new AnswerGuide(this, std::move(state)));
}

void AnswerGuides::Begin(const std::shared_ptr<GuideState>& state) { (void)queue_.TryPush(state); }

}  // namespace baton::engine
