// TokenMerge: puts the token streams of one request's two workers into one order. Pure; owned by
// the router's thread.
//
// Invariants
//  1. Each (choice, index) is taken once, in index order without gaps, from the copy that came
//     first. An equal second copy is dropped, an unequal one is a mismatch.
//  2. Holds at most kMaxAhead tokens per choice beyond a gap. The owner bounds num_pending(), the
//     tokens that are in order and not taken yet.
//  3. After a choice's last token, or CloseChoice, no token of that choice comes out.
//  4. Remembers the ids of all tokens of the request for a replay: 4 bytes a token. It outlives
//     placements: tokens that a later placement computes again are copies like any other.
#ifndef BATON_ROUTER_TOKEN_MERGE_H_
#define BATON_ROUTER_TOKEN_MERGE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "src/router/worker_messages.h"

namespace baton::router {

// Merges by (choice, index); see the file comment.
class TokenMerge {
 public:
  // One worker streams a choice in order, and the other sends index 0 only. So beyond a gap there
  // are at most the tokens between two messages of one worker.
  static constexpr size_t kMaxAhead = 256;

  // The outcome for a token.
  enum class Outcome : uint8_t {
    kReady,      // the token, and perhaps more, can be taken
    kAhead,      // kept until the gap before it closes
    kDuplicate,  // dropped: an equal one is known, or the choice is closed
    kMismatch,   // another token is known at this place, or one after the last
    kOverflow,   // too far ahead
    kInvalid,    // choice or index outside the request
  };

  TokenMerge(uint32_t num_choices, uint32_t max_tokens);

  Outcome Add(WorkerToken token, int64_t now_us);

  // A token and when it was added.
  struct Entry {
    WorkerToken token;
    int64_t arrived_us = 0;
  };
  // A token of `choice` can be taken.
  bool HasNext(uint32_t choice) const { return !choices_[choice].pending.empty(); }
  // Requires HasNext.
  Entry TakeNext(uint32_t choice);
  // The router ended the choice (stop string): drops its pending and later tokens.
  void CloseChoice(uint32_t choice);

  // Drops tokens beyond gaps: their placement is over, and the next one sends them again.
  void DropAhead();

  // Tokens in order and not taken, over all choices.
  size_t num_pending() const { return num_pending_; }
  // True when the last token of every choice is known without a gap (or the choice is closed).
  bool complete() const { return num_complete_ == choices_.size(); }
  // True when every choice ended by its worker's word: no worker has more to send.
  bool ended_by_workers() const { return num_finished_ == choices_.size(); }
  // Tokens known in order, the taken ones included, over all choices.
  size_t num_known() const { return num_known_; }
  // Ids known in order, the taken ones included.
  const std::vector<TokenId>& tokens(uint32_t choice) const { return choices_[choice].tokens; }

 private:
  // One choice's stream.
  struct Choice {
    std::vector<TokenId> tokens;      // in order from index 0
    std::deque<Entry> pending;        // the tail of `tokens` that is not taken
    std::map<uint32_t, Entry> ahead;  // beyond a gap, by index
    scheduler::FinishReason finish = scheduler::FinishReason::kNone;  // of the last of `tokens`
    bool closed = false;
  };

  Outcome AddToOpenChoice(Choice& choice, Entry entry);
  void Append(Choice& choice, Entry entry);

  uint32_t max_tokens_;
  std::vector<Choice> choices_;
  size_t num_pending_ = 0;
  size_t num_known_ = 0;
  size_t num_complete_ = 0;
  size_t num_finished_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_TOKEN_MERGE_H_
