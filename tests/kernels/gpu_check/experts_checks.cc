#include <utility>
#include <vector>

#include "kernels/cuda/experts_reference.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/math.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/simt/device_values.h"

namespace baton::kernels::gpu_check {
namespace {

using cuda::Bf16;
using cuda::ExpertTile;
using simt_test::RandomBf16;
using simt_test::RandomFloats;

constexpr double kGemmBf16 = 4e-3;  // as in gemm_test

// A mixture of experts from the router's logits to the sum: hidden -> n -> sum of n.
struct ExpertsCase {
  const char* name;
  uint32_t rows;
  uint32_t num_experts;
  uint32_t top_k;
  uint32_t n;
  uint32_t k;
  uint32_t tile_rows;

  uint32_t num_pairs() const { return rows * top_k; }
  uint32_t max_tiles() const {
    return static_cast<uint32_t>(cuda::MaxExpertTiles(num_pairs(), num_experts, tile_rows));
  }
};

// The results of the kernels. Each kernel uses the results of the kernel before it.
struct ExpertsResult {
  std::vector<uint32_t> experts;    // [rows][top_k]
  std::vector<float> weights;       // [rows][top_k]
  std::vector<uint32_t> slots;      // [rows][top_k]
  std::vector<uint32_t> slot_rows;  // [pairs]
  std::vector<uint32_t> begins;     // [num_experts]
  std::vector<ExpertTile> tiles;    // [max_tiles]
  std::vector<uint32_t> num_tiles;  // [1]
  std::vector<Bf16> y;              // [pairs][n]
  std::vector<Bf16> out;            // [rows][n]
};

// The inputs on the host.
struct ExpertsInput {
  explicit ExpertsInput(const ExpertsCase& c)
      : x(RandomBf16(size_t{c.rows} * c.k, 31)),
        w(RandomBf16(size_t{c.num_experts} * c.n * c.k, 32)) {
    logits = RandomFloats(size_t{c.rows} * c.num_experts, 33, 1.0f);
  }

  std::vector<Bf16> x;
  std::vector<Bf16> w;
  std::vector<float> logits;
};

absl::StatusOr<ExpertsResult> RunExperts(const DeviceBody& body, const ExpertsCase& c,
                                         const ExpertsInput& input) {
  const cuda::KernelTable& table = body.kernels();
  DeviceArray<Bf16> x(body, input.x);
  DeviceArray<Bf16> w(body, input.w);
  DeviceArray<float> logits(body, input.logits);
  DeviceArray<uint32_t> experts(body, c.num_pairs());
  DeviceArray<float> weights(body, c.num_pairs());
  DeviceArray<uint32_t> slots(body, c.num_pairs());
  DeviceArray<uint32_t> slot_rows(body, c.num_pairs());
  DeviceArray<uint32_t> begins(body, c.num_experts);
  DeviceArray<ExpertTile> tiles(body, c.max_tiles());
  DeviceArray<uint32_t> num_tiles(body, 1);
  DeviceArray<uint32_t> arrivals(body, std::vector<uint32_t>{0});
  DeviceArray<Bf16> y(body, size_t{c.num_pairs()} * c.n);
  DeviceArray<Bf16> out(body, size_t{c.rows} * c.n);
  BATON_RETURN_IF_ERROR(FirstFailure(x, w, logits, experts, weights, slots, slot_rows, begins,
                                     tiles, num_tiles, arrivals, y, out));
  BATON_RETURN_IF_ERROR(table.route(
      {logits.data(), experts.data(), weights.data(), c.rows, c.num_experts, c.top_k}, nullptr));
  BATON_RETURN_IF_ERROR(table.sort_pairs(
      {experts.data(), slots.data(), slot_rows.data(), begins.data(), tiles.data(),
       num_tiles.data(), arrivals.data(), c.num_pairs(), c.num_experts, c.top_k, c.tile_rows},
      nullptr));
  BATON_RETURN_IF_ERROR(
      table.grouped_gemm({x.data(), slot_rows.data(), w.data(), y.data(), tiles.data(),
                          num_tiles.data(), c.max_tiles(), c.tile_rows, c.n, c.k},
                         nullptr));
  BATON_RETURN_IF_ERROR(table.combine(
      {y.data(), slots.data(), weights.data(), out.data(), c.rows, c.top_k, c.n}, nullptr));
  ExpertsResult result = {experts.Values(),   weights.Values(), slots.Values(),
                          slot_rows.Values(), begins.Values(),  tiles.Values(),
                          num_tiles.Values(), y.Values(),       out.Values()};
  const std::vector<uint32_t> after = arrivals.Values();
  BATON_RETURN_IF_ERROR(arrivals.status());
  return after[0] == 0 ? absl::StatusOr<ExpertsResult>(std::move(result))
                       : Internal("arrivals are not set back");
}

// Route and SortPairs have the bits of their references.
absl::Status CheckOrder(const ExpertsCase& c, const ExpertsInput& input, ExpertsResult& got) {
  ExpertsResult host = got;
  cuda::ReferenceRoute({input.logits.data(), host.experts.data(), host.weights.data(), c.rows,
                        c.num_experts, c.top_k});
  BATON_RETURN_IF_ERROR(ExpectSameBits("experts", got.experts, host.experts));
  BATON_RETURN_IF_ERROR(ExpectSameBits("weights", got.weights, host.weights));
  cuda::ReferenceSortPairs({got.experts.data(), host.slots.data(), host.slot_rows.data(),
                            host.begins.data(), host.tiles.data(), host.num_tiles.data(), nullptr,
                            c.num_pairs(), c.num_experts, c.top_k, c.tile_rows});
  BATON_RETURN_IF_ERROR(ExpectSameBits("slots", got.slots, host.slots));
  BATON_RETURN_IF_ERROR(ExpectSameBits("rows of slots", got.slot_rows, host.slot_rows));
  BATON_RETURN_IF_ERROR(ExpectSameBits("begins", got.begins, host.begins));
  BATON_RETURN_IF_ERROR(ExpectSameBits("number of tiles", got.num_tiles, host.num_tiles));
  return ExpectSameBits("tiles", got.tiles, host.tiles);
}

// Route by scores has the bits of its reference too.
absl::Status CheckScores(const DeviceBody& body, const ExpertsCase& c, const ExpertsInput& input) {
  const std::vector<float> biases = RandomFloats(c.num_experts, 34, 0.25f);
  DeviceArray<float> logits(body, input.logits);
  DeviceArray<float> bias(body, biases);
  DeviceArray<uint32_t> experts(body, c.num_pairs());
  DeviceArray<float> weights(body, c.num_pairs());
  BATON_RETURN_IF_ERROR(FirstFailure(logits, bias, experts, weights));
  cuda::RouteParams params = {
      logits.data(),
      experts.data(),
      weights.data(),
      c.rows,
      c.num_experts,
      c.top_k,
      {.bias = bias.data(), .sum_to_one = true, .least_sum = 1e-6f, .scale = 1.5f}};
  BATON_RETURN_IF_ERROR(body.kernels().route(params, nullptr));
  const std::vector<uint32_t> got_experts = experts.Values();
  BATON_RETURN_IF_ERROR(experts.status());
  const std::vector<float> got_weights = weights.Values();
  BATON_RETURN_IF_ERROR(weights.status());
  std::vector<uint32_t> host_experts(c.num_pairs());
  std::vector<float> host_weights(c.num_pairs());
  params.logits = input.logits.data();
  params.experts = host_experts.data();
  params.weights = host_weights.data();
  params.scores.bias = biases.data();
  cuda::ReferenceRoute(params);
  BATON_RETURN_IF_ERROR(ExpectSameBits("experts by scores", got_experts, host_experts));
  return ExpectSameBits("weights by scores", got_weights, host_weights);
}

absl::Status CheckCase(const StageInput& stage, const ExpertsCase& c) {
  const ExpertsInput input(c);
  BATON_RETURN_IF_ERROR(CheckScores(stage.body, c, input));
  BATON_ASSIGN_OR_RETURN(ExpertsResult got, RunExperts(stage.body, c, input));
  BATON_RETURN_IF_ERROR(CheckOrder(c, input, got));
  std::vector<Bf16> bits(got.y.size());
  const std::optional<simt::TensorCore> core = simt::TensorCoreOf(stage.major);
  cuda::ReferenceGroupedGemmBits(
      {input.x.data(), got.slot_rows.data(), input.w.data(), bits.data(), got.tiles.data(),
       got.num_tiles.data(), c.max_tiles(), c.tile_rows, c.n, c.k},
      core.value_or(simt::TensorCore::kHopper));
  std::vector<float> values;
  std::vector<double> expected;
  for (size_t i = 0; i < bits.size(); ++i) {
    values.push_back(FloatFromBf16(got.y[i].bits));
    expected.push_back(FloatFromBf16(bits[i].bits));
  }
  const double error = cuda::RelativeError(values.data(), expected);
  if (!(error < kGemmBf16)) return TooFar("products", error, values, expected);
  if (core.has_value()) {
    BATON_RETURN_IF_ERROR(ExpectSameBits("products by the tensor cores' model", got.y, bits));
  }
  std::vector<Bf16> sums(got.out.size());
  cuda::ReferenceCombine(
      {got.y.data(), got.slots.data(), got.weights.data(), sums.data(), c.rows, c.top_k, c.n});
  Differences differences = Compare("sums", got.out, sums);
  if (!differences.empty()) {
    // Products that are not the model's where none is known: no seed gives them.
    const size_t row = differences.first() / c.n;
    std::vector<Bf16> products;
    for (size_t i = 0; i < c.top_k; ++i) {
      products.push_back(
          got.y[size_t{got.slots[row * c.top_k + i]} * c.n + differences.first() % c.n]);
    }
    differences.Add("operands", {{"products", HexOfElements(products.data(), products.size())},
                                 {"weights", HexOfElements(&got.weights[row * c.top_k], c.top_k)}});
  }
  return differences.Result(sums.size());
}

}  // namespace

absl::Status CheckExperts(const StageInput& input, Report& report) {
  const std::vector<ExpertsCase> tiny = {{"experts 8", 5, 7, 3, 72, 264, 8},
                                         {"experts 64", 35, 3, 2, 72, 264, 64}};
  const std::vector<ExpertsCase> full = {{"experts 8", 8, 128, 8, 264, 2048, 8},
                                         {"experts 64", 257, 16, 4, 264, 768, 64}};
  for (const ExpertsCase& c : input.is_tiny ? tiny : full) {
    if (!report.Begin(c.name)) continue;
    const absl::Status status =
        OfCase(CheckCase(input, c),
               {{"rows", c.rows},
                {"num_experts", c.num_experts},
                {"top_k", c.top_k},
                {"n", c.n},
                {"k", c.k},
                {"tile_rows", c.tile_rows},
                {"inputs", "ExpertsInput of experts_checks.cc: RandomBf16, seeds 31 to 33"}});
    BATON_RETURN_IF_ERROR(
        report.Add(OutcomeOf(c.name, status,
                             fmt::format("{} rows, {} of {} experts of {} x {}", c.rows, c.top_k,
                                         c.num_experts, c.n, c.k))));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
