#include "tests/kernels/gpu_check/hand_off_sink.h"

#include <chrono>
#include <utility>

#include "src/base/clock.h"

namespace baton::kernels::gpu_check {

using kv::BadSlice;
using kv::PeerUp;

void HandOffSink::Record(const std::function<void(HandOffEvents*)>& change) {
  {
    const std::lock_guard lock(mutex_);
    change(&events_);
  }
  changed_.notify_all();
}

void HandOffSink::OnPeerUp(const PeerUp& peer) {
  Record([&](HandOffEvents* events) { events->ups.insert(peer.peer); });
}
void HandOffSink::OnPeerDown(Incarnation peer, const Status& status) {
  const int64_t now_us = SystemClock().NowUs();
  Record([&](HandOffEvents* events) {
    events->down_us.emplace(peer, now_us);
    events->down_reasons.emplace(peer, std::string(status.message()));
  });
}
void HandOffSink::OnControl(Incarnation, std::string bytes) {
  Record([&](HandOffEvents* events) { events->words.push_back(std::move(bytes)); });
}
void HandOffSink::OnReceiveProgress(TransferId transfer, uint32_t slices_done, bool complete) {
  const int64_t now_us = SystemClock().NowUs();
  Record([&](HandOffEvents* events) {
    events->slices_done[transfer] = slices_done;
    if (complete) events->complete_us.emplace(transfer, now_us);
  });
}
void HandOffSink::OnBadSlice(const BadSlice& slice) {
  Record([&](HandOffEvents* events) { ++events->num_bad[slice.transfer]; });
}
void HandOffSink::OnReceiveClosed(TransferId transfer) {
  Record([&](HandOffEvents* events) { events->receives_closed.insert(transfer); });
}
void HandOffSink::OnSendClosed(Incarnation, TransferId transfer) {
  Record([&](HandOffEvents* events) { events->sends_closed.insert(transfer); });
}
void HandOffSink::NoteDials(Incarnation peer) {
  Record([&](HandOffEvents* events) { events->dials.insert(peer); });
}
void HandOffSink::NoteEnded(Incarnation peer) {
  Record([&](HandOffEvents* events) { events->ended.insert(peer); });
}

Status HandOffSink::WaitFor(const char* what, int64_t limit_us,
                            const std::function<bool(const HandOffEvents&)>& condition) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, std::chrono::microseconds(limit_us),
                        [&] { return condition(events_); })) {
    return OkStatus();
  }
  return DeadlineExceeded("{}: not in {} ms", what, limit_us / 1000);
}

HandOffEvents HandOffSink::Snapshot() {
  const std::lock_guard lock(mutex_);
  return events_;
}

}  // namespace baton::kernels::gpu_check
