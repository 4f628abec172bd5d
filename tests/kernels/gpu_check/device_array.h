// Memory of a DeviceBody that is given back.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_DEVICE_ARRAY_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_DEVICE_ARRAY_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "tests/kernels/gpu_check/device_body.h"

namespace baton::kernels::gpu_check {

// `values` on a device. status() keeps the first failure; data() is then null.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(const DeviceBody& body, const std::vector<T>& values)
      : DeviceArray(body, values.size()) {
    if (status_.ok()) status_ = body.copy_in(memory_, values.data(), size_ * sizeof(T));
  }
  // `size` poisoned elements.
  DeviceArray(const DeviceBody& body, size_t size) : body_(body), size_(size) {
    status_ = body.allocate(size * sizeof(T), &memory_);
    if (!status_.ok()) memory_ = nullptr;
  }
  ~DeviceArray() {
    if (memory_ != nullptr) body_.release(memory_);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return static_cast<T*>(memory_); }
  const absl::Status& status() const { return status_; }

  // The elements after all launches so far; empty, with status(), when something went wrong.
  std::vector<T> Values() {
    std::vector<T> values(size_);
    if (status_.ok()) status_ = body_.copy_out(values.data(), memory_, size_ * sizeof(T));
    if (!status_.ok()) values.clear();
    return values;
  }

 private:
  const DeviceBody& body_;
  void* memory_ = nullptr;
  size_t size_;
  absl::Status status_;
};

// The first failure of some arrays.
template <typename... Arrays>
absl::Status FirstFailure(const Arrays&... arrays) {
  absl::Status first;
  (first.Update(arrays.status()), ...);
  return first;
}

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_DEVICE_ARRAY_H_
