#include "tests/kernels/gpu_check/timing.h"

#include <algorithm>
#include <utility>

#include "scheduler/roofline.h"
#include "src/base/status.h"

namespace baton::kernels::gpu_check {

using scheduler::DeviceLimits;
using scheduler::KnownDevices;

namespace {

constexpr uint32_t kSamples = 20;
constexpr uint32_t kTinySamples = 3;
constexpr uint32_t kMaxPieces = 1024;  // of a row of logits, half a MB, as many as are cold
// Four ctas of 256 threads on each SM of the largest device fill it.
constexpr uint32_t kFillCtas = 4 * 148;

// Bytes of four times the largest L2.
size_t ColdBytes() {
  double largest = 0;
  for (const DeviceLimits& device : KnownDevices()) largest = std::max(largest, device.l2_bytes);
  return static_cast<size_t>(4 * largest);
}

size_t SizeOf(const StageInput& input, size_t bytes) {
  const size_t size = input.is_tiny ? 2 * bytes : std::max(bytes, ColdBytes());
  return (size + 255) / 256 * 256;
}

// In the results of any body, so that a test sees which it is.
const char* LimitNameOf(const TimedCase& timed) {
  if (timed.is_resident) return "none, it lies in L2";
  return timed.is_copy ? "copying" : "reading and computing";
}

// 0 where there is none to be held against.
double LimitUsOf(const MeasuredLimits& limits, const TimedCase& timed) {
  if (timed.is_resident) return 0;
  return timed.is_copy ? limits.CopyLimitUs(timed.bytes) : limits.LimitUs(timed.bytes, timed.flops);
}

}  // namespace

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

TimedWork WorkOf(const StageInput& input, uint32_t num_launches,
                 std::function<absl::Status(void* stream, uint32_t i)> launch) {
  return {.launch = std::move(launch),
          .num_launches = input.is_tiny ? 2 : num_launches,
          .num_samples = input.is_tiny ? kTinySamples : kSamples};
}

absl::StatusOr<double> AddTimed(const StageInput& input, const TimedCase& timed, Report& report) {
  if (!report.Begin(timed.name)) return 0;
  std::vector<double> samples_us;
  const absl::Status status = input.body.time(timed.work, &samples_us);
  if (!status.ok()) {
    BATON_RETURN_IF_ERROR(report.Add({timed.name, Verdict::kFail, std::string(status.message())}));
    return 0;
  }
  BATON_RETURN_IF_ERROR(AddSamples(input, timed, samples_us, {.name = timed.name}, report));
  return MedianOf(samples_us);
}

void AddTarget(const TargetResult& result, Finding& finding) {
  finding.detail += result.words;
  if (!result.verdict.empty()) finding.data["target"] = result.verdict;
}

absl::Status AddSamples(const StageInput& input, const TimedCase& timed,
                        const std::vector<double>& samples_us, Finding finding, Report& report) {
  const double us = MedianOf(samples_us);
  finding.data["samples_us"] = samples_us;
  finding.data["median_us"] = us;
  finding.data["limit"] = LimitNameOf(timed);
  if (!(us > 0)) {
    finding.verdict = Verdict::kFail;
    finding.detail = fmt::format("a median of {} us", us);
    return report.Add(std::move(finding));
  }
  finding.detail = fmt::format("{:.1f} us", us);
  if (!input.body.is_gpu) {
    finding.detail = "timed, on this processor";
    return report.Add(std::move(finding));
  }
  finding.data["bytes"] = timed.bytes;
  finding.data["flops"] = timed.flops;
  if (timed.bytes > 0) finding.detail += fmt::format(", {:.0f} GB/s", timed.bytes / us / 1e3);
  if (timed.flops > 0) finding.detail += fmt::format(", {:.1f} TFLOP/s", timed.flops / us / 1e6);
  const double limit_us = LimitUsOf(input.limits, timed);
  if (limit_us > 0) {
    finding.data["limit_us"] = limit_us;
    finding.data["percent_of_limit"] = 100 * limit_us / us;
    finding.detail += fmt::format(", {:.0f} % of the limit", 100 * limit_us / us);
  }
  AddTarget(Judge(timed.target, {us, limit_us, input.product}), finding);
  if (timed.target.percent > 0) finding.data["target_percent"] = timed.target.percent;
  if (timed.target.h200_us > 0) finding.data["target_h200_us"] = timed.target.h200_us;
  return report.Add(std::move(finding));
}

RandomMemory::RandomMemory(const StageInput& input, size_t bytes, float spread)
    : size_(SizeOf(input, bytes)), memory_(input.body, size_), status_(memory_.status()) {
  if (!status_.ok()) return;
  status_ = input.body.loops().fill({.to = reinterpret_cast<simt::Vec16*>(memory_.data()),
                                     .num_vecs = size_ / sizeof(simt::Vec16),
                                     .num_ctas = input.is_tiny ? 2 : kFillCtas,
                                     .seed = 1,
                                     .spread = spread},
                                    nullptr);
  // Kernels read weights before those that ran before them are done.
  if (status_.ok()) status_ = input.body.ask();
}

uint32_t RandomMemory::NumPieces(size_t bytes) const {
  return static_cast<uint32_t>(
      std::clamp<size_t>(size_ / std::max<size_t>(bytes, 1), 1, kMaxPieces));
}

}  // namespace baton::kernels::gpu_check
