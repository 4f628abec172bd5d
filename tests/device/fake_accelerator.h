// An accelerator without kernels: memory of its own on the host, and copies that land as late as
// the contract allows, so that a missing Wait gives wrong bytes. Each Query of an event that is not
// done yet brings the stream on by one piece of work.
#ifndef BATON_TESTS_DEVICE_FAKE_ACCELERATOR_H_
#define BATON_TESTS_DEVICE_FAKE_ACCELERATOR_H_

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/device/accelerator.h"
#include "src/device/host_stream.h"

namespace baton {

// See the file comment. One thread.
class FakeAccelerator final : public Accelerator {
 public:
  DeviceKind kind() const override { return DeviceKind::kSimt; }
  std::string Describe() const override { return "fake"; }
  std::string_view arithmetic() const override { return "none"; }
  void MakeCurrent() override { current_ = this; }
  // The one that is current in the calling thread, for functions that stand for kernels.
  static FakeAccelerator* Current() { return current_; }
  void* stream() const override { return nullptr; }
  absl::StatusOr<std::unique_ptr<Accelerator>> Share() override {
    return std::make_unique<FakeAccelerator>();
  }

  absl::StatusOr<std::byte*> Allocate(size_t size_bytes, std::string_view /*name*/) override {
    auto* const begin = new std::byte[size_bytes];
    std::memset(begin, 0xFF, size_bytes);
    return begin;
  }
  void Free(std::byte* begin) override { delete[] begin; }

  absl::Status CopyIn(std::byte* to, const void* from, size_t size_bytes) override {
    const auto* const bytes = static_cast<const std::byte*>(from);
    std::vector<std::byte> kept(bytes, bytes + size_bytes);  // the caller may change them
    Put([to, kept = std::move(kept)] { std::memcpy(to, kept.data(), kept.size()); });
    return OkStatus();
  }
  absl::Status CopyOut(void* to, const std::byte* from, size_t size_bytes) override {
    Put([=] { std::memcpy(to, from, size_bytes); });
    return OkStatus();
  }
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t size_bytes) override {
    Put([=] { std::memcpy(to, from, size_bytes); });
    return OkStatus();
  }
  absl::Status Wait() override {
    while (!stream_.empty()) RunNext();
    return OkStatus();
  }
  absl::StatusOr<void*> CreateStream() override { return new HostStream; }
  void DestroyStream(void* stream) override { delete static_cast<HostStream*>(stream); }
  absl::StatusOr<void*> CreateEvent() override { return new HostEvent; }
  void DestroyEvent(void* event) override { delete static_cast<HostEvent*>(event); }
  absl::Status Record(void* event, void* stream) override {
    static_cast<HostEvent*>(event)->Record(stream == nullptr ? &own_
                                                             : static_cast<HostStream*>(stream));
    return OkStatus();
  }
  absl::StatusOr<bool> Query(void* event) override {
    const auto* const mark = static_cast<HostEvent*>(event);
    const bool is_done = mark->IsDone();
    if (!is_done && mark->stream == &own_) RunNext();
    return is_done;
  }

  // Puts what a kernel would do into the stream.
  void Put(std::function<void()> work) {
    stream_.push_back(std::move(work));
    own_.num_put.fetch_add(1);
  }

 private:
  void RunNext() {
    stream_.front()();
    stream_.pop_front();
    own_.num_done.fetch_add(1);
  }

  static inline thread_local FakeAccelerator* current_ = nullptr;
  HostStream own_;
  std::deque<std::function<void()>> stream_;
};

}  // namespace baton

#endif  // BATON_TESTS_DEVICE_FAKE_ACCELERATOR_H_
