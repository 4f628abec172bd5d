// Outbox: keeps what a turn of the loop produced for the listener until the turn's end. So all
// tokens of a step leave as one batch, and before the states that they cause. Engine thread.
#ifndef BATON_ENGINE_OUTBOX_H_
#define BATON_ENGINE_OUTBOX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "src/engine/engine_types.h"
#include "src/model/sampler.h"

namespace baton::engine {

// See the file comment.
class Outbox {
 public:
  explicit Outbox(EngineListener* listener) : listener_(listener) {}

  // Room for this many tokens, so that a step does not allocate.
  void Reserve(size_t num_tokens) {
    events_.reserve(num_tokens);
    top_ends_.reserve(num_tokens);
  }
  void Add(TokenEvent event, std::span<const TokenLogprob> top) {
    events_.push_back(event);
    top_.insert(top_.end(), top.begin(), top.end());
    top_ends_.push_back(top_.size());
  }
  // An event with a vector, which is kept as long as the event.
  void Add(TokenEvent event, std::vector<float> embedding) {
    embeddings_.push_back(std::move(embedding));
    event.embedding = embeddings_.back();
    Add(event, std::span<const TokenLogprob>());
  }
  // The step that gave the tokens which wait here took so long.
  void NoteStep(int64_t elapsed_us) {
    const auto step_us = static_cast<uint32_t>(std::clamp<int64_t>(elapsed_us, 0, UINT32_MAX));
    for (TokenEvent& event : events_) event.step_us = event.step_row == 0 ? step_us : 0;
  }
  void Add(RequestStatus status) { statuses_.push_back(std::move(status)); }

  // Tokens first, then states in the order in which they were reached.
  void Flush() {
    if (!events_.empty()) {
      size_t begin = 0;
      for (size_t i = 0; i < events_.size(); ++i) {
        events_[i].top_logprobs = std::span(top_).subspan(begin, top_ends_[i] - begin);
        begin = top_ends_[i];
      }
      listener_->OnStepEvents(events_);
      events_.clear();
      top_.clear();
      top_ends_.clear();
      embeddings_.clear();
    }
    for (const RequestStatus& status : statuses_) listener_->OnRequestStatus(status);
    statuses_.clear();
  }

 private:
  EngineListener* const listener_;
  std::vector<TokenEvent> events_;
  std::vector<TokenLogprob> top_;
  std::vector<size_t> top_ends_;               // where each event's entries of top_ end
  std::deque<std::vector<float>> embeddings_;  // of events_; the vectors stay where they are
  std::vector<RequestStatus> statuses_;
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_OUTBOX_H_
