#include "tests/kernels/gpu_check/experts_timing.h"

#include <algorithm>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/timing.h"
#include "tests/test_seed.h"

namespace baton::kernels::gpu_check {
namespace {

using cuda::Bf16;

// The sizes of a mixture that decide what its kernels cost.
struct MixtureShape {
  uint32_t num_experts;
  uint32_t top_k;
  uint32_t hidden_size;
  uint32_t ffn_size;
};

constexpr MixtureShape kQwen3A3b = {128, 8, 2048, 768};
constexpr MixtureShape kTinyMixture = {5, 2, 128, 64};
constexpr uint32_t kLaunches = 20;

std::vector<float> RandomLogits(size_t count) {
  TestRandom random(41);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = static_cast<float>(random.Below(1u << 16)) / 8192.0f;
  return logits;
}

// A layer's router logits for some rows, the weights of its first product, and what lies between.
class ExpertsTiming {
 public:
  ExpertsTiming(const StageInput& input, uint32_t rows)
      : input_(input),
        shape_(input.is_tiny ? kTinyMixture : kQwen3A3b),
        rows_(rows),
        pairs_(rows * shape_.top_k),
        tile_rows_(pairs_ <= shape_.num_experts * cuda::kExpertFewRows ? cuda::kExpertFewRows
                                                                       : cuda::kExpertManyRows),
        logits_(input.body, RandomLogits(size_t{rows} * shape_.num_experts)),
        w_(input, 2 * shape_.num_experts * ExpertBytes(), 0.02f),
        x_(input, size_t{2} * pairs_ * shape_.hidden_size, 1.0f),
        y_(input.body, size_t{pairs_} * std::max(N(), shape_.hidden_size)),
        experts_(input.body, pairs_),
        weights_(input.body, pairs_),
        slots_(input.body, pairs_),
        slot_rows_(input.body, pairs_),
        begins_(input.body, shape_.num_experts),
        tiles_(input.body, MaxTiles()),
        num_tiles_(input.body, 1),
        arrivals_(input.body, std::vector<uint32_t>{0}) {
    status_.Update(FirstFailure(logits_, w_, x_, y_, experts_, weights_, slots_, slot_rows_,
                                begins_, tiles_, num_tiles_, arrivals_));
    if (status_.ok()) status_ = Sort();
  }

  absl::Status AddAll(Report& report) {
    if (!status_.ok()) {
      return report.Add(
          {fmt::format("experts m {}", rows_), Verdict::kFail, std::string(status_.message())});
    }
    const cuda::KernelTable& table = input_.body.kernels();
    const double pairs = pairs_;
    BATON_RETURN_IF_ERROR(Add(
        {.name = "route",
         .bytes = 4.0 * rows_ * shape_.num_experts + 8 * pairs,
         .is_resident = true},
        [&](void* stream, uint32_t) { return table.route(RouteParams(), stream); }, report));
    BATON_RETURN_IF_ERROR(Add(
        {.name = "sort_pairs", .bytes = 12 * pairs, .is_resident = true},
        [&](void* stream, uint32_t) { return table.sort_pairs(SortParams(), stream); }, report));
    const double of_rows = 2.0 * rows_ * shape_.hidden_size;
    BATON_RETURN_IF_ERROR(Add(
        {.name = "grouped_gemm",
         .bytes = static_cast<double>(num_met_ * ExpertBytes()) + of_rows + 2 * pairs * N(),
         .flops = 2 * pairs * N() * shape_.hidden_size},
        [&](void* stream, uint32_t i) { return table.grouped_gemm(GemmParams(i), stream); },
        report));
    return Add(
        {.name = "combine", .bytes = 2 * pairs * shape_.hidden_size + of_rows, .is_resident = true},
        [&](void* stream, uint32_t) { return table.combine(SumParams(), stream); }, report);
  }

 private:
  using Launch = std::function<absl::Status(void* stream, uint32_t i)>;

  uint32_t N() const { return 2 * shape_.ffn_size; }
  size_t ExpertBytes() const { return size_t{2} * N() * shape_.hidden_size; }
  uint32_t MaxTiles() const {
    return static_cast<uint32_t>(cuda::MaxExpertTiles(pairs_, shape_.num_experts, tile_rows_));
  }

  // Once before anything is timed: the products need tiles, and their bytes the experts met.
  absl::Status Sort() {
    BATON_RETURN_IF_ERROR(input_.body.kernels().route(RouteParams(), nullptr));
    BATON_RETURN_IF_ERROR(input_.body.kernels().sort_pairs(SortParams(), nullptr));
    std::vector<uint32_t> met = experts_.Values();
    BATON_RETURN_IF_ERROR(experts_.status());
    std::sort(met.begin(), met.end());
    num_met_ = std::unique(met.begin(), met.end()) - met.begin();
    return absl::OkStatus();
  }

  absl::Status Add(TimedCase timed, const Launch& launch, Report& report) {
    timed.name += fmt::format(" m {}", rows_);
    timed.work = WorkOf(input_, kLaunches, launch);
    return AddTimed(input_, timed, report).status();
  }

  cuda::RouteParams RouteParams() {
    return {.logits = logits_.data(),
            .experts = experts_.data(),
            .weights = weights_.data(),
            .num_rows = rows_,
            .num_experts = shape_.num_experts,
            .top_k = shape_.top_k};
  }
  cuda::SortPairsParams SortParams() {
    return {.experts = experts_.data(),
            .slots = slots_.data(),
            .slot_rows = slot_rows_.data(),
            .begins = begins_.data(),
            .tiles = tiles_.data(),
            .num_tiles = num_tiles_.data(),
            .arrivals = arrivals_.data(),
            .num_pairs = pairs_,
            .num_experts = shape_.num_experts,
            .top_k = shape_.top_k,
            .tile_rows = tile_rows_};
  }
  // Each launch takes other experts for its own, so that one row's are not found in L2.
  cuda::GroupedGemmParams GemmParams(uint32_t i) {
    const size_t first = size_t{i} * shape_.top_k % shape_.num_experts;
    return {.x = reinterpret_cast<const Bf16*>(x_.Piece(0, 0)),
            .slot_rows = slot_rows_.data(),
            .w = reinterpret_cast<const Bf16*>(w_.Piece(0, 0) + first * ExpertBytes()),
            .y = y_.data(),
            .tiles = tiles_.data(),
            .num_tiles = num_tiles_.data(),
            .max_tiles = MaxTiles(),
            .tile_rows = tile_rows_,
            .n = N(),
            .k = shape_.hidden_size};
  }
  cuda::CombineParams SumParams() {
    return {.y = reinterpret_cast<const Bf16*>(x_.Piece(0, 0)),
            .slots = slots_.data(),
            .weights = weights_.data(),
            .out = y_.data(),
            .num_rows = rows_,
            .top_k = shape_.top_k,
            .dim = shape_.hidden_size};
  }

  const StageInput& input_;
  const MixtureShape shape_;
  uint32_t rows_;
  uint32_t pairs_;
  uint32_t tile_rows_;  // as DeviceModel
  DeviceArray<float> logits_;
  RandomMemory w_;  // twice the experts
  RandomMemory x_;
  DeviceArray<Bf16> y_;
  DeviceArray<uint32_t> experts_;
  DeviceArray<float> weights_;
  DeviceArray<uint32_t> slots_;
  DeviceArray<uint32_t> slot_rows_;
  DeviceArray<uint32_t> begins_;
  DeviceArray<cuda::ExpertTile> tiles_;
  DeviceArray<uint32_t> num_tiles_;
  DeviceArray<uint32_t> arrivals_;
  size_t num_met_ = 0;  // experts that some row chose
  absl::Status status_;
};

}  // namespace

absl::Status AddExpertsTimings(const StageInput& input, Report& report) {
  for (const uint32_t rows :
       input.is_tiny ? std::vector<uint32_t>{3, 33} : std::vector<uint32_t>{1, 8, 64, 2048}) {
    BATON_RETURN_IF_ERROR(ExpertsTiming(input, rows).AddAll(report));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
