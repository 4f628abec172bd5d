#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/exchange_reference.h"
#include "kernels/math.h"
#include "src/base/status.h"
#include "src/model/compute_device.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/model_shape.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/timing.h"
#include "tests/kernels/simt/device_values.h"

namespace baton::kernels::gpu_check {

using device::Accelerator;
using device::DeviceKind;
using model::ComputeDevice;
using model::OpenComputeDevice;

namespace {

using cuda::AllReduceParams;
using cuda::AllReducePath;
using cuda::Bf16;
using cuda::ExchangeFlags;
using cuda::GatherColumnsParams;

std::vector<float> RandomFloats(size_t count, uint64_t seed) {
  std::vector<float> values;
  for (const Bf16 value : simt_test::RandomBf16(count, seed)) {
    values.push_back(FloatFromBf16(value.bits) / 3.0f);
  }
  return values;
}

// The arrays of several ranks of one device, one array for each rank.
template <typename T>
class OfRanks {
 public:
  template <typename Value>
  OfRanks(const DeviceBody& body, uint32_t num_ranks, const Value& value) {
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      arrays_.push_back(std::make_unique<DeviceArray<T>>(body, value(rank)));
    }
  }
  DeviceArray<T>& operator[](uint32_t rank) { return *arrays_[rank]; }
  absl::Status status() const {
    absl::Status first;
    for (const auto& array : arrays_) first.Update(array->status());
    return first;
  }

 private:
  std::vector<std::unique_ptr<DeviceArray<T>>> arrays_;
};

// The flags of all ranks, which one launch computes.
class Ranks {
 public:
  Ranks(const DeviceBody& body, uint32_t num_ranks)
      : flags_(body, num_ranks,
               [](uint32_t) { return std::vector<ExchangeFlags>(1, ExchangeFlags{}); }) {
    view_ = {.num_ranks = num_ranks, .first_rank = 0, .num_here = num_ranks, .flags = {}};
    for (uint32_t rank = 0; rank < num_ranks; ++rank) view_.flags[rank] = flags_[rank].data();
  }
  absl::Status status() const { return flags_.status(); }
  const cuda::ExchangeRanks& view() const { return view_; }

 private:
  OfRanks<ExchangeFlags> flags_;
  cuda::ExchangeRanks view_;
};

// Rounds of different parts, one launch after the other, with the meetings that go on.
constexpr uint32_t kRounds = 3;

absl::Status CheckAllReduce(const DeviceBody& body, const Ranks& ranks, size_t num_elements,
                            AllReducePath path, uint32_t round) {
  const uint32_t num_ranks = ranks.view().num_ranks;
  std::vector<std::vector<float>> values;
  std::vector<std::vector<Bf16>> exact(num_ranks, std::vector<Bf16>(num_elements));
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    values.push_back(RandomFloats(num_elements, 50 + 8 * round + rank));
  }
  OfRanks<float> parts(body, num_ranks, [&](uint32_t rank) { return values[rank]; });
  OfRanks<Bf16> outs(body, num_ranks, [&](uint32_t) { return num_elements; });
  BATON_RETURN_IF_ERROR(FirstFailure(parts, outs));
  AllReduceParams params = {
      .ranks = ranks.view(), .parts = {}, .outs = {}, .num_elements = num_elements, .path = path};
  AllReduceParams expected = params;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    params.parts[rank] = parts[rank].data();
    params.outs[rank] = outs[rank].data();
    expected.parts[rank] = values[rank].data();
    expected.outs[rank] = exact[rank].data();
  }
  BATON_RETURN_IF_ERROR(body.kernels().all_reduce(params, nullptr));
  cuda::ReferenceAllReduce(expected);
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    const std::vector<Bf16> got = outs[rank].Values();
    BATON_RETURN_IF_ERROR(outs[rank].status());
    BATON_RETURN_IF_ERROR(
        OfCase(ExpectSameBits(fmt::format("sums of rank {}", rank), got, exact[rank]),
               {{"num_ranks", num_ranks},
                {"num_elements", num_elements},
                {"in_slices", path == AllReducePath::kSlices},
                {"inputs", fmt::format("RandomFloats of seed {} + rank", 50 + 8 * round)}}));
  }
  return absl::OkStatus();
}

absl::Status CheckGather(const DeviceBody& body, const Ranks& ranks, uint32_t num_rows,
                         uint32_t num_columns, uint32_t round) {
  const uint32_t num_ranks = ranks.view().num_ranks;
  const uint32_t rank_columns = (num_columns + num_ranks - 1) / num_ranks;
  std::vector<std::vector<float>> values;
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    const uint32_t width = cuda::ColumnsOfRank(num_columns, rank_columns, rank);
    values.push_back(RandomFloats(size_t{num_rows} * width, 90 + 8 * round + rank));
  }
  OfRanks<float> parts(body, num_ranks, [&](uint32_t rank) { return values[rank]; });
  DeviceArray<float> out(body, size_t{num_rows} * num_columns);
  BATON_RETURN_IF_ERROR(FirstFailure(parts, out));
  std::vector<float> exact(size_t{num_rows} * num_columns);
  GatherColumnsParams params = {.ranks = ranks.view(),
                                .parts = {},
                                .out = out.data(),
                                .num_rows = num_rows,
                                .num_columns = num_columns,
                                .rank_columns = rank_columns};
  GatherColumnsParams expected = params;
  expected.out = exact.data();
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    params.parts[rank] = parts[rank].data();
    expected.parts[rank] = values[rank].data();
  }
  BATON_RETURN_IF_ERROR(body.kernels().gather_columns(params, nullptr));
  cuda::ReferenceGatherColumns(expected);
  const std::vector<float> got = out.Values();
  BATON_RETURN_IF_ERROR(out.status());
  return OfCase(ExpectSameBits("columns", got, exact),
                {{"num_ranks", num_ranks},
                 {"num_rows", num_rows},
                 {"num_columns", num_columns},
                 {"inputs", fmt::format("RandomFloats of seed {} + rank", 90 + 8 * round)}});
}

absl::Status CheckRanksOf(const StageInput& input, uint32_t num_ranks, size_t num_elements) {
  const Ranks ranks(input.body, num_ranks);
  BATON_RETURN_IF_ERROR(ranks.status());
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (const AllReducePath path : {AllReducePath::kWhole, AllReducePath::kSlices}) {
      BATON_RETURN_IF_ERROR(CheckAllReduce(input.body, ranks, num_elements, path, round));
    }
    BATON_RETURN_IF_ERROR(CheckGather(input.body, ranks, 3, input.is_tiny ? 263 : 128256, round));
  }
  return absl::OkStatus();
}

// Two ranks as on GPUs of their own: a launch each, in streams that nothing orders. 64 ctas of
// each, and as many that overlap them, are resident together.
absl::Status CheckTwoStreams(const StageInput& input, const ComputeDevice& device) {
  constexpr uint32_t kNumRanks = 2;
  constexpr size_t kElements = 64 * 4096;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Accelerator> peer, device.accelerator->Share());
  Accelerator* const streams[kNumRanks] = {device.accelerator.get(), peer.get()};
  const Ranks ranks(input.body, kNumRanks);
  BATON_RETURN_IF_ERROR(ranks.status());
  OfRanks<Bf16> outs(input.body, kNumRanks, [](uint32_t) { return kElements; });
  BATON_RETURN_IF_ERROR(outs.status());
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (const AllReducePath path : {AllReducePath::kWhole, AllReducePath::kSlices}) {
      std::vector<std::vector<float>> values;
      std::vector<Bf16> exact(kElements);
      for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
        values.push_back(RandomFloats(kElements, 70 + 2 * round + rank));
      }
      OfRanks<float> parts(input.body, kNumRanks, [&](uint32_t rank) { return values[rank]; });
      BATON_RETURN_IF_ERROR(parts.status());
      AllReduceParams params = {
          .ranks = ranks.view(), .parts = {}, .outs = {}, .num_elements = kElements, .path = path};
      AllReduceParams expected = params;
      params.ranks.num_here = 1;
      for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
        params.parts[rank] = parts[rank].data();
        params.outs[rank] = outs[rank].data();
        expected.parts[rank] = values[rank].data();
        expected.outs[rank] = exact.data();
      }
      for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
        params.ranks.first_rank = rank;
        BATON_RETURN_IF_ERROR(input.body.kernels().all_reduce(params, streams[rank]->stream()));
      }
      for (Accelerator* const stream : streams) BATON_RETURN_IF_ERROR(stream->Wait());
      cuda::ReferenceAllReduce(expected);
      for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
        BATON_RETURN_IF_ERROR(
            OfCase(ExpectSameBits(fmt::format("sums of rank {}", rank), outs[rank].Values(), exact),
                   {{"num_elements", kElements},
                    {"in_slices", path == AllReducePath::kSlices},
                    {"inputs", fmt::format("RandomFloats of seed {} + rank", 70 + 2 * round)}}));
      }
    }
  }
  return absl::OkStatus();
}

// Not where launches wait for what they launched: the first rank's would wait for the second's.
absl::Status AddTwoStreams(const StageInput& input, Report& report) {
  const std::string name = "exchanges of 2 streams";
  if (!report.Begin(name)) return absl::OkStatus();
  const absl::StatusOr<ComputeDevice> device =
      OpenComputeDevice(DeviceKind::kCuda, /*num_ranks=*/1, /*awaits_others=*/true);
  const char* const blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  if (!device.ok() && blocking != nullptr) {
    return report.Add(
        {name, Verdict::kNotRun, "skipped: " + std::string(device.status().message())});
  }
  if (!device.ok()) return report.Add(OutcomeOf(name, device.status(), ""));
  return report.Add(
      OutcomeOf(name, CheckTwoStreams(input, *device), "a launch a rank, on one GPU"));
}

}  // namespace

absl::Status CheckExchanges(const StageInput& input, Report& report) {
  for (const uint32_t num_ranks : {2u, 8u}) {
    const size_t num_elements = input.is_tiny ? 8 * 331 : 1024 * 4096;
    const std::string name = fmt::format("exchanges of {} ranks", num_ranks);
    if (!report.Begin(name)) continue;
    BATON_RETURN_IF_ERROR(report.Add(OutcomeOf(
        name, CheckRanksOf(input, num_ranks, num_elements),
        fmt::format("{} sums, whole and in slices, and columns of logits", num_elements))));
  }
  if (!input.body.is_gpu || input.is_tiny) return absl::OkStatus();
  return AddTwoStreams(input, report);
}

absl::Status AddExchangeTimings(const StageInput& input, Report& report) {
  constexpr uint32_t kNumRanks = 2;
  const size_t hidden = ShapeFor(input.is_tiny).hidden_size;
  for (const size_t rows :
       input.is_tiny ? std::vector<size_t>{1} : std::vector<size_t>{1, 32, 1024}) {
    const size_t count = rows * hidden;
    const Ranks ranks(input.body, kNumRanks);
    OfRanks<float> parts(input.body, kNumRanks,
                         [&](uint32_t rank) { return RandomFloats(count, rank); });
    OfRanks<Bf16> outs(input.body, kNumRanks, [&](uint32_t) { return count; });
    TimedCase timed = {
        .name = fmt::format("all_reduce {} ranks x {} rows, one device", kNumRanks, rows)};
    absl::Status status = ranks.status();
    status.Update(parts.status());
    status.Update(outs.status());
    if (!status.ok()) {
      return report.Add({timed.name, Verdict::kFail, std::string(status.message())});
    }
    AllReduceParams params = {
        .ranks = ranks.view(), .parts = {}, .outs = {}, .num_elements = count};
    for (uint32_t rank = 0; rank < kNumRanks; ++rank) {
      params.parts[rank] = parts[rank].data();
      params.outs[rank] = outs[rank].data();
    }
    // Each part is read once and each sum written twice, as in slices.
    timed.is_resident = true;
    timed.bytes = static_cast<double>(count) * kNumRanks * (sizeof(float) + sizeof(Bf16));
    timed.work = WorkOf(input, 8, [&](void* stream, uint32_t) {
      return input.body.kernels().all_reduce(params, stream);
    });
    BATON_RETURN_IF_ERROR(AddTimed(input, timed, report).status());
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
