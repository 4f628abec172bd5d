// Where a result differs from what it must be, so that a failed case can be looked at without the
// GPU. A check returns it as an error: the message has the first difference, and what is kept of
// the others travels with the error into the finding (OutcomeOf). One thread.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_DIFFERENCES_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_DIFFERENCES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace baton::kernels::gpu_check {

inline constexpr size_t kKeptDifferences = 8;
// The most elements that are kept of one operand. The deepest product's row has 14336.
inline constexpr size_t kKeptElements = 16384;

// `size` bytes as hexadecimal: a number's digits where the size is 1, 2, 4 or 8, else words of 32
// bits in their order.
std::string HexOfBytes(const void* bytes, size_t size);

template <typename T>
std::string BitsOf(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return HexOfBytes(&value, sizeof(T));
}

// `count` elements one after the other, kKeptElements at most.
template <typename T>
std::string HexOfElements(const T* values, size_t count) {
  std::string hex;
  for (size_t i = 0; i < count && i < kKeptElements; ++i) hex += BitsOf(values[i]);
  return hex;
}

// The elements of one result that differ: how many, and the first kKeptDifferences of them.
class Differences {
 public:
  explicit Differences(std::string what) : what_(std::move(what)) {}

  // `wanted` is another value of the same type, or a number that the value should be near.
  template <typename T, typename Wanted>
  void Note(size_t index, const T& got, const Wanted& wanted) {
    if (num_++ == 0) first_ = index;
    if (num_ > kKeptDifferences) return;
    if constexpr (std::is_same_v<Wanted, double>) {
      Keep(index, BitsOf(got), NumberOf(wanted));
    } else {
      Keep(index, BitsOf(got), BitsOf(wanted));
    }
  }
  // Words that the first of them was made from, or anything else that helps.
  void Add(const std::string& key, nlohmann::json value) { more_[key] = std::move(value); }

  bool empty() const { return num_ == 0; }
  size_t first() const { return first_; }
  // OK when there is none; else Internal: "what: 3 of 70 elements differ, first [5] 3f80, not
  // 3f81".
  absl::Status Result(size_t num_elements) const;

 private:
  static std::string NumberOf(double value);
  void Keep(size_t index, std::string got, std::string wanted);

  std::string what_;
  size_t num_ = 0;
  size_t first_ = 0;
  nlohmann::json kept_ = nlohmann::json::array();
  nlohmann::json more_ = nlohmann::json::object();
};

// The elements whose bits are not equal.
template <typename T>
Differences Compare(std::string what, const std::vector<T>& got, const std::vector<T>& wanted) {
  Differences differences(std::move(what));
  for (size_t i = 0; i < got.size() && i < wanted.size(); ++i) {
    if (std::memcmp(&got[i], &wanted[i], sizeof(T)) != 0) differences.Note(i, got[i], wanted[i]);
  }
  return differences;
}

// OK for equal bits; also Internal when the numbers of elements differ.
absl::Status CheckCounts(const std::string& what, size_t got, size_t wanted);
template <typename T>
absl::Status ExpectSameBits(std::string what, const std::vector<T>& got,
                            const std::vector<T>& wanted) {
  if (got.size() != wanted.size()) return CheckCounts(what, got.size(), wanted.size());
  return Compare(std::move(what), got, wanted).Result(wanted.size());
}

// Internal, for a result that is too far from the exact one as a whole: by `error`. The status
// carries the elements that are the farthest.
absl::Status TooFar(const std::string& what, double error, const std::vector<float>& got,
                    const std::vector<double>& exact);

// Adds to an error what case it is of: its shape, and how its inputs are drawn. OK stays OK.
absl::Status OfCase(absl::Status status, const nlohmann::json& described);
// The data that travels with an error, {"case", "differences"}; null when nothing does.
nlohmann::json CarriedBy(const absl::Status& status);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_DIFFERENCES_H_
