// HostStream and HostEvent: streams and events of a device that has none of its own, because its
// kernels and copies are done when a call returns (the runner). Other code that works
// asynchronously on its memory (the loopback of NCCL) counts the work that it puts into a stream
// and the work that is done, in order. An event remembers the first number and asks for the second.
//
// Any thread.
#ifndef BATON_DEVICE_HOST_STREAM_H_
#define BATON_DEVICE_HOST_STREAM_H_

#include <atomic>
#include <cstdint>

namespace baton::device {

// See the file comment. Work that was done before `num_done` was raised is visible to a reader of
// it.
struct HostStream {
  std::atomic<uint64_t> num_put{0};
  std::atomic<uint64_t> num_done{0};
};

// A mark in a stream; null = never recorded, or after work that was done at once.
struct HostEvent {
  const HostStream* stream = nullptr;
  uint64_t num_put = 0;

  void Record(const HostStream* in) {
    stream = in;
    num_put = in == nullptr ? 0 : in->num_put.load(std::memory_order_acquire);
  }
  bool IsDone() const {
    return stream == nullptr || stream->num_done.load(std::memory_order_acquire) >= num_put;
  }
};

}  // namespace baton::device

#endif  // BATON_DEVICE_HOST_STREAM_H_
