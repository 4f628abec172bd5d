// An accelerator without kernels: memory of its own on the host, and copies that land as late as
// the contract allows, so that a missing Wait gives wrong bytes. Each Query of an event that is not
// done yet brings the stream on by one piece of work. Shared memory is a sealed memory file.
#ifndef BATON_TESTS_DEVICE_FAKE_ACCELERATOR_H_
#define BATON_TESTS_DEVICE_FAKE_ACCELERATOR_H_

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/check.h"
#include "src/base/memory_file.h"
#include "src/device/accelerator.h"
#include "src/device/host_memory.h"
#include "src/device/host_stream.h"

namespace baton::device {

// See the file comment. One thread.
class FakeAccelerator final : public Accelerator {
 public:
  ~FakeAccelerator() override {
    if (current_ == this) current_ = nullptr;
  }

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

  absl::StatusOr<std::byte*> Allocate(size_t size_bytes, std::string_view name) override {
    if (size_bytes > max_allocation) {
      return ResourceExhausted("{} needs {}, the fake has {}", name, size_bytes, max_allocation);
    }
    auto* const begin = new std::byte[size_bytes];
    std::memset(begin, 0xFF, size_bytes);
    allocated_[begin] = size_bytes;
    return begin;
  }
  void Free(std::byte* begin) override {
    const auto shared = shared_.find(begin);
    if (shared == shared_.end()) {
      allocated_.erase(begin);
      delete[] begin;
      return;
    }
    munmap(begin, shared->second.size_bytes);
    shared_.erase(shared);
  }

  // Whether this one allocated what lies there.
  bool Owns(const void* address) const {
    const auto* const byte = static_cast<const std::byte*>(address);
    const auto after = allocated_.upper_bound(byte);
    if (after == allocated_.begin()) return false;
    const auto& [begin, size_bytes] = *std::prev(after);
    return byte < begin + size_bytes;
  }

  // Accelerators of one GPU share what is pinned; so do all fakes.
  absl::StatusOr<std::byte*> AllocateHost(size_t size_bytes, std::string_view name) override {
    if (num_host_allocations_left == 0) return ResourceExhausted("{} needs {}", name, size_bytes);
    --num_host_allocations_left;
    return host_.Allocate(size_bytes, name);
  }
  void FreeHost(std::byte* begin) override { host_.Free(begin); }
  absl::Status PinHost(std::byte* begin, size_t size_bytes) override {
    if (refuses_pins) return FailedPrecondition("the fake pins nothing");
    host_.Pin(begin, size_bytes);
    return OkStatus();
  }
  void UnpinHost(std::byte* begin) override { host_.Free(begin); }
  // Copies out for which a GPU would have waited, of all fakes.
  static uint64_t num_waits() { return host_.num_waits(); }
  // Copies in that a GPU might have waited for, of all fakes.
  static uint64_t num_staged() { return host_.num_staged(); }

  absl::StatusOr<std::byte*> AllocateShared(size_t size_bytes, std::string_view name) override {
    if (!shares_memory) return FailedPrecondition("the fake has no memory to share");
    if (size_bytes > max_allocation) return Allocate(size_bytes, name);
    BATON_ASSIGN_OR_RETURN(UniqueFd file, CreateMemoryFile("fake-device", size_bytes));
    BATON_RETURN_IF_ERROR(AllocateMemoryFile(file.get(), 0, size_bytes));
    BATON_ASSIGN_OR_RETURN(std::byte* const begin, Map(file.get(), size_bytes, PROT_WRITE));
    BATON_RETURN_IF_ERROR(SealMemoryFile(file.get()));
    std::memset(begin, 0xFF, size_bytes);
    shared_[begin] = {std::move(file), size_bytes};
    return begin;
  }
  absl::StatusOr<UniqueFd> ExportShared(const std::byte* begin) override {
    const auto shared = shared_.find(begin);
    if (shared == shared_.end()) return InvalidArgument("no shared memory begins there");
    return UniqueFd(dup(shared->second.file.get()));
  }
  absl::StatusOr<const std::byte*> ImportShared(const UniqueFd& fd, size_t size_bytes) override {
    if (refuses_imports) return FailedPrecondition("this device cannot reach that memory");
    ++num_imports;
    while (holds_imports) std::this_thread::yield();
    BATON_RETURN_IF_ERROR(CheckMemoryFile(fd.get(), size_bytes, "memory of another process"));
    BATON_ASSIGN_OR_RETURN(std::byte* const begin, Map(fd.get(), size_bytes, 0));
    shared_[begin] = {UniqueFd(), size_bytes};
    return begin;
  }
  void ReleaseShared(const std::byte* begin) override { Free(const_cast<std::byte*>(begin)); }

  // Faults. While held, Query brings nothing on.
  std::atomic<bool> is_held = false;
  static inline std::atomic<bool> refuses_imports = false;
  static inline std::atomic<bool> refuses_pins = false;
  // Imports that have begun, and whether they go on.
  static inline std::atomic<uint64_t> num_imports = 0;
  static inline std::atomic<bool> holds_imports = false;
  bool shares_memory = true;
  size_t max_allocation = ~size_t{0};
  size_t num_host_allocations_left = ~size_t{0};
  size_t num_copies_in_left = ~size_t{0};
  // Something was put into the stream and is not done. Any thread.
  bool IsBusy() const { return own_.num_put.load() != own_.num_done.load(); }

  absl::Status CopyIn(std::byte* to, const void* from, size_t size_bytes) override {
    CheckCurrent();
    if (num_copies_in_left == 0) return Internal("the fake copies no more");
    --num_copies_in_left;
    host_.NoteCopyFrom(from, size_bytes);
    if (host_.Has(from, size_bytes)) {
      Put([=] { std::memcpy(to, from, size_bytes); });
      return OkStatus();
    }
    const auto* const bytes = static_cast<const std::byte*>(from);
    std::vector<std::byte> kept(bytes, bytes + size_bytes);  // the caller may change them
    Put([to, kept = std::move(kept)] { std::memcpy(to, kept.data(), kept.size()); });
    return OkStatus();
  }
  absl::Status CopyOut(void* to, const std::byte* from, size_t size_bytes) override {
    CheckCurrent();
    host_.NoteCopy(to, size_bytes);
    Put([=] { std::memcpy(to, from, size_bytes); });
    return OkStatus();
  }
  absl::Status CopyWithin(std::byte* to, const std::byte* from, size_t size_bytes) override {
    CheckCurrent();
    Put([=] { std::memcpy(to, from, size_bytes); });
    return OkStatus();
  }
  absl::Status Wait() override {
    while (!stream_.empty()) RunNext();
    return OkStatus();
  }
  // Graphs of nothing, which are counted.
  bool records = false;
  bool is_recording = false;
  size_t num_graphs = 0;
  size_t num_graph_launches = 0;
  absl::Status BeginRecording() override {
    if (!records) return Unimplemented("the fake records nothing");
    is_recording = true;
    return OkStatus();
  }
  absl::StatusOr<void*> EndRecording() override {
    if (!std::exchange(is_recording, false)) return Internal("nothing is being recorded");
    ++num_graphs;
    return this;
  }
  absl::Status LaunchGraph(void* graph) override {
    BATON_CHECK(graph == this && current_ == this, "a graph of another device");
    ++num_graph_launches;
    return OkStatus();
  }
  void DestroyGraph(void* /*graph*/) override { --num_graphs; }

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
    if (!is_done && mark->stream == &own_ && !is_held) RunNext();
    return is_done;
  }
  absl::Status WaitFor(void* event) override {
    const auto* const mark = static_cast<HostEvent*>(event);
    BATON_CHECK(mark->stream == nullptr || mark->stream == &own_, "an event of another stream");
    while (!mark->IsDone()) RunNext();
    return OkStatus();
  }

  // Puts what a kernel would do into the stream.
  void Put(std::function<void()> work) {
    stream_.push_back(std::move(work));
    own_.num_put.fetch_add(1);
  }

 private:
  // Memory with a descriptor: own, or another's (then without one).
  struct SharedMemory {
    UniqueFd file;
    size_t size_bytes = 0;
  };
  static absl::StatusOr<std::byte*> Map(int file, size_t size_bytes, int protection) {
    void* const begin = mmap(nullptr, size_bytes, PROT_READ | protection, MAP_SHARED, file, 0);
    if (begin == MAP_FAILED) return ResourceExhausted("mapping {} bytes", size_bytes);
    return static_cast<std::byte*>(begin);
  }

  void CheckCurrent() const {
    BATON_CHECK(current_ == nullptr || current_ == this, "another device is current");
  }
  void RunNext() {
    stream_.front()();
    stream_.pop_front();
    own_.num_done.fetch_add(1);
  }

  static inline thread_local FakeAccelerator* current_ = nullptr;
  static inline HostMemory host_;
  std::map<const std::byte*, size_t> allocated_;
  std::map<const std::byte*, SharedMemory> shared_;
  HostStream own_;
  std::deque<std::function<void()>> stream_;
};

}  // namespace baton::device

#endif  // BATON_TESTS_DEVICE_FAKE_ACCELERATOR_H_
