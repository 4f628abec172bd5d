// The events that the transport of one side of a hand-off reported, with their times. The
// transport's thread records them; any other thread may wait for them.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_SINK_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_SINK_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "kvcache/transport/kv_transport.h"

namespace baton::kernels::gpu_check {

// Times are those of SystemClock(), microseconds.
struct HandOffEvents {
  std::set<Incarnation> dials;  // whose process is about to
  std::set<Incarnation> ups;
  std::map<Incarnation, int64_t> down_us;
  std::map<Incarnation, std::string> down_reasons;
  std::set<Incarnation> ended;  // whose process is gone
  std::vector<std::string> words;
  std::map<TransferId, uint32_t> slices_done;
  std::map<TransferId, int64_t> complete_us;
  std::map<TransferId, uint64_t> num_bad;  // slices refused
  std::set<TransferId> receives_closed;
  std::set<TransferId> sends_closed;
};

// See the file comment.
class HandOffSink final : public kv::KvTransportSink {
 public:
  void OnPeerUp(const kv::PeerUp& peer) override;
  void OnPeerDown(Incarnation peer, const Status& status) override;
  void OnControl(Incarnation peer, std::string bytes) override;
  void OnReceiveProgress(TransferId transfer, uint32_t slices_done, bool complete) override;
  void OnBadSlice(const kv::BadSlice& slice) override;
  void OnReceiveClosed(TransferId transfer) override;
  void OnSendClosed(Incarnation peer, TransferId transfer) override;
  // Its process says that it will dial now.
  void NoteDials(Incarnation peer);
  // Its process has closed its output.
  void NoteEnded(Incarnation peer);

  // Until the condition holds; DeadlineExceeded naming `what` when it does not in `limit_us`.
  Status WaitFor(const char* what, int64_t limit_us,
                 const std::function<bool(const HandOffEvents&)>& condition);
  HandOffEvents Snapshot();

 private:
  void Record(const std::function<void(HandOffEvents*)>& change);

  std::mutex mutex_;  // guards events_
  std::condition_variable changed_;
  HandOffEvents events_;
};

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_HAND_OFF_SINK_H_
