#include "tests/kernels/gpu_check/differences.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/cord.h"

#include "src/base/status.h"

namespace baton::kernels::gpu_check {
namespace {

constexpr const char* kCarried = "baton/gpu_check";

// The error with `value` under `key` of what it carries.
absl::Status Carrying(absl::Status status, const char* key, const nlohmann::json& value) {
  nlohmann::json carried = CarriedBy(status);
  carried[key] = value;
  status.SetPayload(kCarried, absl::Cord(carried.dump()));
  return status;
}

// A NaN is the farthest.
double DistanceOf(float got, double exact) {
  const double distance = std::fabs(got - exact);
  return std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
}

}  // namespace

std::string HexOfBytes(const void* bytes, size_t size) {
  const auto* const from = static_cast<const unsigned char*>(bytes);
  const size_t word = size == 1 || size == 2 || size == 8 ? size : 4;
  std::string hex;
  for (size_t at = 0; at < size; at += word) {
    // The processor's and the GPU's numbers begin with their lowest byte.
    for (size_t i = std::min(word, size - at); i > 0; --i) {
      fmt::format_to(std::back_inserter(hex), "{:02x}", from[at + i - 1]);
    }
  }
  return hex;
}

std::string Differences::NumberOf(double value) { return fmt::format("{:.17g}", value); }

void Differences::Keep(size_t index, std::string got, std::string wanted) {
  kept_.push_back({{"index", index}, {"got", std::move(got)}, {"wanted", std::move(wanted)}});
}

absl::Status Differences::Result(size_t num_elements) const {
  if (empty()) return absl::OkStatus();
  nlohmann::json all = more_;
  all["what"] = what_;
  all["num_elements"] = num_elements;
  all["num_differing"] = num_;
  all["first"] = kept_;
  return Carrying(
      Internal("{}: {} of {} elements differ, first [{}] {}, not {}", what_, num_, num_elements,
               first_, kept_[0]["got"].get<std::string>(), kept_[0]["wanted"].get<std::string>()),
      "differences", all);
}

absl::Status CheckCounts(const std::string& what, size_t got, size_t wanted) {
  if (got == wanted) return absl::OkStatus();
  return Internal("{}: {} elements, not {}", what, got, wanted);
}

absl::Status TooFar(const std::string& what, double error, const std::vector<float>& got,
                    const std::vector<double>& exact) {
  const size_t count = std::min(got.size(), exact.size());
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  const auto middle = order.begin() + static_cast<ptrdiff_t>(std::min(kKeptDifferences, count));
  std::partial_sort(order.begin(), middle, order.end(), [&](size_t a, size_t b) {
    return DistanceOf(got[a], exact[a]) > DistanceOf(got[b], exact[b]);
  });
  auto kept = nlohmann::json::array();
  for (auto at = order.begin(); at != middle; ++at) {
    kept.push_back({{"index", *at},
                    {"got", BitsOf(got[*at])},
                    {"wanted", fmt::format("{:.17g}", exact[*at])}});
  }
  return Carrying(Internal("{}: relative error {:.3g}", what, error), "differences",
                  {{"what", what}, {"num_elements", exact.size()}, {"farthest", kept}});
}

absl::Status OfCase(absl::Status status, const nlohmann::json& described) {
  return status.ok() ? status : Carrying(std::move(status), "case", described);
}

nlohmann::json CarriedBy(const absl::Status& status) {
  const auto carried = status.GetPayload(kCarried);
  if (!carried.has_value()) return nullptr;
  return nlohmann::json::parse(std::string(*carried));
}

}  // namespace baton::kernels::gpu_check
