// An accelerator without kernels: memory of its own on the host, and copies that land as late as
// the contract allows, so that a missing Wait gives wrong bytes.
#ifndef BATON_TESTS_DEVICE_FAKE_ACCELERATOR_H_
#define BATON_TESTS_DEVICE_FAKE_ACCELERATOR_H_

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/device/accelerator.h"

namespace baton {

// See the file comment. One thread.
class FakeAccelerator final : public Accelerator {
 public:
  DeviceKind kind() const override { return DeviceKind::kSimt; }
  std::string Describe() const override { return "fake"; }
  std::string_view arithmetic() const override { return "none"; }
  void MakeCurrent() override {}
  void* stream() const override { return nullptr; }

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
    for (const auto& work : stream_) work();
    stream_.clear();
    return OkStatus();
  }

  // Puts what a kernel would do into the stream.
  void Put(std::function<void()> work) { stream_.push_back(std::move(work)); }

 private:
  std::vector<std::function<void()>> stream_;
};

}  // namespace baton

#endif  // BATON_TESTS_DEVICE_FAKE_ACCELERATOR_H_
