// TakenEvents: the events that the loop has taken from its inbox and has not handled yet. Engine
// thread.
#ifndef BATON_ENGINE_TAKEN_EVENTS_H_
#define BATON_ENGINE_TAKEN_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/engine/engine_event.h"
#include "src/engine/engine_inbox.h"

namespace baton::engine {

// See the file comment.
class TakenEvents {
 public:
  // `inbox` outlives this object, which has room for `capacity` events: a turn does not allocate.
  TakenEvents(EngineInbox* inbox, size_t capacity) : inbox_(inbox) { events_.reserve(capacity); }

  bool empty() const { return events_.empty(); }
  // More wait in the inbox; one atomic read.
  bool MoreWait() const { return inbox_->HasEvents(); }
  void Take() { inbox_->Take(&events_); }
  // Takes after waiting until `deadline_us` of the system clock for a first event.
  void WaitAndTake(int64_t deadline_us) { inbox_->WaitAndTake(deadline_us, &events_); }

  // Hands over all events, in order, and returns their number.
  template <typename Handler>
  size_t HandleAll(Handler&& handle) {
    // Handling an event may not add to the vector: only Take does.
    for (EngineEvent& event : events_) handle(std::move(event));
    const size_t num_handled = events_.size();
    events_.clear();
    num_scanned_ = 0;
    return num_handled;
  }
  // Shows each message of a peer that no earlier call has shown, in order. HandleAll gets it later.
  template <typename Visitor>
  void ScanMessages(Visitor&& visit) {
    for (; num_scanned_ < events_.size(); ++num_scanned_) {
      if (auto* message = std::get_if<PeerMessage>(&events_[num_scanned_])) visit(*message);
    }
  }

 private:
  EngineInbox* const inbox_;
  std::vector<EngineEvent> events_;
  size_t num_scanned_ = 0;  // of `events_`
};

}  // namespace baton::engine

#endif  // BATON_ENGINE_TAKEN_EVENTS_H_
