#include "kvcache/transport/endpoint_events.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace baton::kv {
namespace {

// Between two looks at what is under way: a hundredth of the transfer of a full buffer.
constexpr int64_t kPollUs = 20;
// Control messages that may wait while the transport's thread is busy.
constexpr size_t kMaxEvents = 8192;
constexpr size_t kMaxEventBytes = size_t{64} << 20;

}  // namespace

void EndpointEvents::OnPeerUp(const PeerUp& peer) {
  Tell({.kind = EndpointEvent::Kind::kUp, .up = peer, .peer = peer.peer});
}

void EndpointEvents::OnPeerDown(Incarnation peer, const Status& status) {
  // A copy of its own: Abseil's shared one is counted where ThreadSanitizer does not look.
  Tell({.kind = EndpointEvent::Kind::kDown,
        .peer = peer,
        .status = Status(status.code(), status.message())});
}

void EndpointEvents::OnControl(Incarnation peer, std::string bytes) {
  Tell({.kind = EndpointEvent::Kind::kControl, .peer = peer, .bytes = std::move(bytes)});
}

void EndpointEvents::Tell(EndpointEvent event) {
  {
    MutexLock lock(mutex_);
    if (event.kind == EndpointEvent::Kind::kControl) {
      if (events_.size() >= kMaxEvents || event_bytes_ + event.bytes.size() > kMaxEventBytes) {
        return overruns_.Add();
      }
      event_bytes_ += event.bytes.size();
    }
    events_.push_back(std::move(event));
    work_ = true;
  }
  wake_.NotifyOne();
}

void EndpointEvents::Wake() {
  {
    MutexLock lock(mutex_);
    work_ = true;
  }
  wake_.NotifyOne();
}

void EndpointEvents::Stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyOne();
}

bool EndpointEvents::Wait(const Clock& clock, int64_t due_us, std::vector<EndpointEvent>* taken) {
  MutexLock lock(mutex_);
  if (due_us == 0) {
    while (!work_ && !stop_) wake_.Wait(mutex_);
  } else {
    const int64_t wait_us = std::max(kPollUs, due_us - clock.NowUs());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(wait_us);
    while (!work_ && !stop_ && wake_.WaitUntil(mutex_, deadline)) {
    }
  }
  work_ = false;
  taken->swap(events_);
  event_bytes_ = 0;
  return !stop_;
}

}  // namespace baton::kv
