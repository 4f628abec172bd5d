#include "tests/kernels/gpu_check/division_timing.h"

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "tests/kernels/gpu_check/divided_sms.h"
#include "tests/kernels/gpu_check/step_timing.h"
#include "tests/kernels/gpu_check/timing.h"

namespace baton::kernels::gpu_check {

using device::Accelerator;

namespace {

// By the host's clock: a sample takes some milliseconds on a GPU.
constexpr uint32_t kSamples = 7;
constexpr uint32_t kLaunches = 20;

// Times on the whole device (0: not timed), on the larger part and on the smaller part.
struct PartTimes {
  double whole_us = 0;
  std::vector<double> first_us;
  std::vector<double> second_us;
};

// Samples of `work`, which waits for what it did, after one that does not count.
absl::StatusOr<std::vector<double>> TimeHost(const StageInput& input,
                                             const std::function<absl::Status()>& work) {
  std::vector<double> samples_us;
  const uint32_t num_samples = input.is_tiny ? 2 : kSamples;
  for (uint32_t i = 0; i <= num_samples; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    BATON_RETURN_IF_ERROR(work());
    const Microseconds elapsed = std::chrono::steady_clock::now() - begin;
    if (i > 0) samples_us.push_back(elapsed.count());
  }
  return samples_us;
}

// One weight matrix times many rows: computing binds, so time follows the multiprocessors. By one
// kernel, that of small tiles, whichever each part would choose, and with as many ctas as the part
// has multiprocessors, as a model asks for them.
class DividedProduct {
 public:
  DividedProduct(const StageInput& input, ModelRig& rig)
      : input_(input),
        rig_(rig),
        shape_(ProductsOf(ShapeFor(input.is_tiny))[0]),
        rows_(input.is_tiny ? 66 : 2048),
        w_(input, size_t{2} * shape_.n * shape_.k, 0.02f),
        x_(input, size_t{2} * rows_ * shape_.k, 1.0f),
        y_(input.body, size_t{rows_} * shape_.n),
        partials_(input.body, cuda::kGemmMaxPartialBytes),
        counters_(input.body, std::vector<uint32_t>(cuda::kGemmCounters)) {
    status_.Update(FirstFailure(w_, x_, y_, partials_, counters_));
  }
  uint32_t rows() const { return rows_; }
  uint32_t num_tiles() const {
    const uint32_t tile = input_.major == 9 ? 128 : 64;
    return ((rows_ - 1) / tile + 1) * ((shape_.n - 1) / tile + 1);
  }

  absl::StatusOr<PartTimes> Time() {
    BATON_RETURN_IF_ERROR(status_);
    PartTimes times;
    std::vector<double> whole_us;
    BATON_RETURN_IF_ERROR(input_.body.time(
        WorkOf(input_, kLaunches,
               [this](void* stream, uint32_t) { return Launch(stream, rig_.num_sms()); }),
        &whole_us));
    times.whole_us = MedianOf(whole_us);
    rig_.engine_device()->MakeCurrent();
    BATON_ASSIGN_OR_RETURN(times.first_us, TimeOn(*rig_.engine_device()));
    rig_.second_device()->MakeCurrent();
    absl::StatusOr<std::vector<double>> second_us = TimeOn(*rig_.second_device());
    rig_.engine_device()->MakeCurrent();
    BATON_ASSIGN_OR_RETURN(times.second_us, std::move(second_us));
    return times;
  }

 private:
  absl::Status Launch(void* stream, uint32_t num_sms) {
    return input_.body.kernels().gemm_bf16(
        {.x = reinterpret_cast<const cuda::Bf16*>(x_.Piece(0, 0)),
         .w = reinterpret_cast<const cuda::Bf16*>(w_.Piece(0, 0)),
         .y_bf16 = y_.data(),
         .m = rows_,
         .n = shape_.n,
         .k = shape_.k,
         .partials = partials_.data(),
         .counters = counters_.data(),
         .partial_bytes = cuda::kGemmMaxPartialBytes,
         .path = input_.major == 9 ? cuda::GemmPath::kWgmma128 : cuda::GemmPath::kTile64,
         .num_sms = num_sms},
        stream);
  }

  // Microseconds a launch. The device is current.
  absl::StatusOr<std::vector<double>> TimeOn(Accelerator& device) {
    const uint32_t num_launches = input_.is_tiny ? 1 : kLaunches;
    BATON_ASSIGN_OR_RETURN(std::vector<double> samples_us, TimeHost(input_, [&] {
                             for (uint32_t i = 0; i < num_launches; ++i) {
                               BATON_RETURN_IF_ERROR(Launch(device.stream(), device.num_sms()));
                             }
                             return device.Wait();
                           }));
    for (double& us : samples_us) us /= num_launches;
    return samples_us;
  }

  const StageInput& input_;
  ModelRig& rig_;
  const ProductShape shape_;
  const uint32_t rows_;
  RandomMemory w_;
  RandomMemory x_;
  DeviceArray<cuda::Bf16> y_;
  DeviceArray<std::byte> partials_;
  DeviceArray<uint32_t> counters_;
  absl::Status status_;
};

// A prompt, or the row after it, by the models of both parts.
absl::StatusOr<PartTimes> TimeStepOnBoth(const StageInput& input, ModelRig& rig, uint32_t first_pos,
                                         uint32_t count) {
  const std::vector<TokenId> tokens = RandomTokens(count, rig.model().config().vocab_size, 17);
  const std::vector<uint32_t> blocks = SomeBlocks(rig, BlocksFor(first_pos + count), 0, 1);
  const std::vector<RigChunk> chunks = {{blocks, first_pos, tokens}};
  PartTimes times;
  BATON_ASSIGN_OR_RETURN(times.first_us, TimeHost(input, [&] { return rig.Run(chunks).status(); }));
  BATON_ASSIGN_OR_RETURN(times.second_us,
                         TimeHost(input, [&] { return rig.RunOnSecond(chunks).status(); }));
  return times;
}

// The work that is timed. Where computing limits the time of its tiles, that time must follow the
// number of multiprocessors, or the check fails.
struct DividedWork {
  std::string name;
  uint32_t num_tiles = 0;  // 0: something else binds
};

template <typename TimeWork>
absl::Status Add(const StageInput& input, ModelRig& rig, const DividedWork& work,
                 const TimeWork& time, Report& report) {
  if (!report.Begin(work.name)) return absl::OkStatus();
  const absl::StatusOr<PartTimes> times = time();
  if (!times.ok()) return report.Add(OutcomeOf(work.name, times.status(), ""));
  Finding finding{.name = work.name};
  finding.data["whole_us"] = times->whole_us;
  finding.data["first_samples_us"] = times->first_us;
  finding.data["second_samples_us"] = times->second_us;
  if (!input.body.is_gpu) {
    finding.verdict = Verdict::kNotRun;
    finding.detail = "timed on two streams, but the runner has no multiprocessors to divide";
    return report.Add(std::move(finding));
  }
  const DividedSms sms = {.whole = rig.num_sms(),
                          .first = rig.device().num_sms(),
                          .second = rig.second_device()->num_sms()};
  const PartGrowth growth = {MedianOf(times->first_us), MedianOf(times->second_us)};
  finding.data["first_sms"] = sms.first;
  finding.data["second_sms"] = sms.second;
  finding.detail = fmt::format(
      "{}{:.1f} us on {} multiprocessors, {:.1f} us on {}: {:.2f} times "
      "the time on {:.2f} times fewer",
      times->whole_us > 0 ? fmt::format("{:.1f} us on all, ", times->whole_us) : std::string(),
      growth.first_us, sms.first, growth.second_us, sms.second, growth.second_us / growth.first_us,
      double{1} * sms.first / sms.second);
  const absl::Status grown =
      work.num_tiles > 0 ? CheckGrowth(sms, work.num_tiles, growth) : absl::OkStatus();
  if (!grown.ok()) {
    finding.verdict = Verdict::kFail;
    finding.detail += fmt::format("; it does not run on its own multiprocessors only: {}",
                                  std::string(grown.message()));
  }
  return report.Add(std::move(finding));
}

}  // namespace

absl::Status AddDivisionTimings(const StageInput& input, ModelRig& rig, uint32_t prompt,
                                Report& report) {
  DividedProduct product(input, rig);
  BATON_RETURN_IF_ERROR(Add(
      input, rig,
      {fmt::format("divided GPU, product of {} rows", product.rows()), product.num_tiles()},
      [&] { return product.Time(); }, report));
  BATON_RETURN_IF_ERROR(Add(
      input, rig, {fmt::format("divided GPU, prefill {}", prompt)},
      [&] { return TimeStepOnBoth(input, rig, 0, prompt); }, report));
  return Add(
      input, rig, {fmt::format("divided GPU, decode 1 x {}", prompt + 1)},
      [&] { return TimeStepOnBoth(input, rig, prompt, 1); }, report);
}

}  // namespace baton::kernels::gpu_check
