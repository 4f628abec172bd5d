#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/math.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/timing.h"

namespace baton::kernels::gpu_check {
namespace {

using simt::Vec16;

constexpr size_t kVecElements = 8;  // bf16
constexpr uint32_t kSms = 132;      // of Hopper
constexpr size_t kBytes = size_t{4} << 30;
constexpr size_t kTinyBytes = 64 << 10;

// The vectors that Fill must write.
std::vector<Vec16> RandomVecs(const FillParams& params) {
  std::vector<Vec16> vecs(params.num_vecs);
  for (size_t i = 0; i < params.num_vecs * kVecElements; ++i) {
    const uint32_t bits =
        Bf16FromFloat(params.mean + RandomUniform(params.seed, i) * params.spread);
    uint32_t& word = vecs[i / kVecElements].words[i % kVecElements / 2];
    word = i % 2 == 0 ? bits : word | bits << 16;
  }
  return vecs;
}

Vec16 XorOf(const std::vector<Vec16>& vecs) {
  Vec16 sum = {};
  for (const Vec16& vec : vecs) {
    for (size_t w = 0; w < 4; ++w) sum.words[w] ^= vec.words[w];
  }
  return sum;
}

// Sizes around a round of all threads, whole and not.
absl::Status CheckLoops(const DeviceBody& body, size_t num_vecs) {
  constexpr uint32_t kCtas = 3;
  DeviceArray<Vec16> from(body, num_vecs);
  DeviceArray<Vec16> to(body, num_vecs);
  DeviceArray<Vec16> sums(body, size_t{kCtas} * kLoopThreads);
  BATON_RETURN_IF_ERROR(FirstFailure(from, to, sums));
  const FillParams fill = {from.data(), num_vecs, kCtas, 7, 0.25f, 2.0f};
  const std::vector<Vec16> expected = RandomVecs(fill);
  BATON_RETURN_IF_ERROR(body.loops().fill(fill, nullptr));
  const std::vector<Vec16> filled = from.Values();
  BATON_RETURN_IF_ERROR(from.status());
  BATON_RETURN_IF_ERROR(ExpectSameBits(fmt::format("{} vecs: fill", num_vecs), filled, expected));
  const LoopParams copy = {from.data(), to.data(), num_vecs, kCtas};
  BATON_RETURN_IF_ERROR(body.loops().copy(copy, nullptr));
  const std::vector<Vec16> copied = to.Values();
  BATON_RETURN_IF_ERROR(to.status());
  BATON_RETURN_IF_ERROR(ExpectSameBits(fmt::format("{} vecs: copy", num_vecs), copied, expected));
  const LoopParams read = {from.data(), sums.data(), num_vecs, kCtas};
  BATON_RETURN_IF_ERROR(body.loops().read(read, nullptr));
  const std::vector<Vec16> read_sums = sums.Values();
  BATON_RETURN_IF_ERROR(sums.status());
  const Vec16 sum = XorOf(read_sums);
  const Vec16 all = XorOf(expected);
  if (std::memcmp(&sum, &all, sizeof(sum)) != 0)
    return Internal("{} vecs: read misses some", num_vecs);
  return absl::OkStatus();
}

absl::Status AddLoops(const StageInput& input, Report& report) {
  if (!report.Begin("loops")) return absl::OkStatus();
  Finding finding{.name = "loops", .detail = "fill, copy and read move what they should"};
  for (const size_t num_vecs : {size_t{1}, size_t{767}, size_t{768}, size_t{3 * 768 + 5},
                                size_t{8 * 768}, input.is_tiny ? size_t{4097} : size_t{1} << 20}) {
    const absl::Status status = CheckLoops(input.body, num_vecs);
    if (status.ok()) continue;
    finding = OutcomeOf(finding.name, status, "");
    break;
  }
  return report.Add(std::move(finding));
}

// The fastest of a few grids, or what an earlier process found; bytes a second, 0 on the runner.
absl::Status AddBandwidth(const StageInput& input, bool is_copy, double& best, Report& report) {
  const size_t bytes = input.is_tiny ? kTinyBytes : kBytes;
  RandomMemory from(input, bytes, 1.0f);
  DeviceArray<Vec16> to(input.body, bytes / sizeof(Vec16));
  for (const uint32_t ctas_an_sm :
       input.is_tiny ? std::vector<uint32_t>{1} : std::vector<uint32_t>{4, 8, 16, 32}) {
    TimedCase timed = {.name = fmt::format("{} {} ctas", is_copy ? "copy" : "read",
                                           input.is_tiny ? 1 : ctas_an_sm * kSms),
                       .bytes = (is_copy ? 2.0 : 1.0) * static_cast<double>(bytes)};
    for (const absl::Status& status : {from.status(), to.status()}) {
      if (status.ok()) continue;
      return report.Add({timed.name, Verdict::kFail, std::string(status.message())});
    }
    const LoopParams params = {reinterpret_cast<const Vec16*>(from.Piece(bytes, 0)), to.data(),
                               bytes / sizeof(Vec16), input.is_tiny ? 1 : ctas_an_sm * kSms};
    timed.work = WorkOf(input, 1, [&](void* stream, uint32_t) {
      return is_copy ? input.body.loops().copy(params, stream)
                     : input.body.loops().read(params, stream);
    });
    BATON_ASSIGN_OR_RETURN(const double us, AddTimed(input, timed, report));
    if (input.body.is_gpu && us > 0) best = std::max(best, timed.bytes / us * 1e6);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBandwidth(const StageInput& input, Report& report) {
  BATON_RETURN_IF_ERROR(AddLoops(input, report));
  MeasuredLimits limits = LimitsOf(report.Described("limits"));
  BATON_RETURN_IF_ERROR(AddBandwidth(input, /*is_copy=*/false, limits.read_bytes_per_s, report));
  report.Describe("limits", JsonOf(limits));
  BATON_RETURN_IF_ERROR(AddBandwidth(input, /*is_copy=*/true, limits.copy_bytes_per_s, report));
  report.Describe("limits", JsonOf(limits));
  BATON_RETURN_IF_ERROR(CheckCublasLt(input, report, limits));
  return report.Flush();
}

}  // namespace baton::kernels::gpu_check
