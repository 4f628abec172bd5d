#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_reference.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/math.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/simt/host_blocks.h"

namespace baton::kernels::gpu_check {
namespace {

using cuda::AttentionPlan;
using cuda::Bf16;
using simt_test::AttentionInputs;
using simt_test::Chunk;
using simt_test::HeadShape;

constexpr double kAttention = 3e-3;  // relative, in the Euclidean norm, as in attention_test
constexpr float kScale = 0.0625f;
constexpr cuda::KvElement kFp8 = cuda::KvElement::kFp8;
constexpr uint32_t kMaxPartials = 4096;
// The number of ctas in both grids. A Hopper has two ctas an SM; the runner has few.
constexpr uint32_t kCtas = 264;
constexpr uint32_t kTinyCtas = 8;

// Spans of rows, and what their plan must hold, so that a case checks what it is named for.
struct AttentionCase {
  const char* name;
  HeadShape shape;
  uint32_t window;
  std::vector<Chunk> chunks;
  bool has_prefill = false;
  bool is_cut = false;  // some pairs of decode are shared by several items
  bool by_wgmma = false;
  bool is_asynchronous = false;  // of that list; of several that copy alike only one
  bool is_spread = false;        // decode by a cta for each split
};

// A case with its inputs.
struct LaunchedCase {
  const HeadShape& shape;
  const AttentionInputs& inputs;
  uint32_t num_ctas;
  bool by_wgmma;
  bool is_spread;
};

// A plan and what both kernels made of it.
struct AttentionRun {
  AttentionPlan plan;
  std::vector<Bf16> out;
};

absl::Status Launch(const DeviceBody& body, const LaunchedCase& launched, AttentionRun& run) {
  const AttentionInputs& batch = launched.inputs;
  const HeadShape& shape = launched.shape;
  const AttentionPlan& plan = run.plan;
  DeviceArray<Bf16> q(body, batch.q());
  DeviceArray<Bf16> out(body, batch.q().size());
  DeviceArray<std::byte> blocks(body, batch.blocks().bytes());
  DeviceArray<uint32_t> lists(body, batch.blocks().lists());
  DeviceArray<cuda::AttentionItem> prefill(body, plan.prefill);
  DeviceArray<cuda::AttentionItem> decode(body, plan.decode);
  DeviceArray<std::byte> partials(body,
                                  plan.num_partials * cuda::AttentionPartialBytes(shape.head_dim));
  DeviceArray<uint32_t> arrivals(body, std::vector<uint32_t>(plan.num_arrivals));
  DeviceArray<uint32_t> counts(body,
                               std::vector<uint32_t>{static_cast<uint32_t>(plan.prefill.size()),
                                                     static_cast<uint32_t>(plan.decode.size())});
  BATON_RETURN_IF_ERROR(
      FirstFailure(q, out, blocks, lists, prefill, decode, partials, arrivals, counts));
  cuda::AttentionParams params = {.q = q.data(),
                                  .out = out.data(),
                                  .kv = batch.blocks().kv(),
                                  .block_lists = lists.data(),
                                  .items = prefill.data(),
                                  .num_items = counts.data(),
                                  .partials = partials.data(),
                                  .arrivals = arrivals.data(),
                                  .max_blocks = batch.blocks().max_blocks(),
                                  .num_heads = shape.num_heads,
                                  .window = batch.plan_shape().window,
                                  .scale = kScale,
                                  .num_ctas = launched.num_ctas,
                                  .by_wgmma = launched.by_wgmma,
                                  .is_spread = launched.is_spread};
  params.kv.base = blocks.data() + batch.blocks().LayerOffset();
  if (body.kernels().has_prefill(shape.head_dim, shape.element)) {
    BATON_RETURN_IF_ERROR(body.kernels().attention_prefill(params, nullptr));
  }
  params.items = decode.data();
  params.num_items = counts.data() + 1;
  BATON_RETURN_IF_ERROR(body.kernels().attention_decode(params, nullptr));
  run.out = out.Values();
  BATON_RETURN_IF_ERROR(out.status());
  const std::vector<uint32_t> left = arrivals.Values();
  BATON_RETURN_IF_ERROR(arrivals.status());
  const bool is_clean = std::all_of(left.begin(), left.end(), [](uint32_t n) { return n == 0; });
  return is_clean ? absl::OkStatus() : Internal("an arrival is not set back");
}

// Plans and runs a case.
absl::StatusOr<AttentionRun> Run(const StageInput& input, const AttentionCase& c,
                                 const AttentionInputs& batch) {
  const uint32_t num_ctas = input.is_tiny ? kTinyCtas : kCtas;
  AttentionRun run;
  // Where the kernel of prompts has no room, all of it is decode, which has the same bits.
  const bool has_prefill = input.body.kernels().has_prefill(c.shape.head_dim, c.shape.element);
  // More splits than ctas: the kernel of a cta a split then walks several of an item.
  const uint32_t num_spread_ctas = c.is_spread ? num_ctas : 0;
  BATON_RETURN_IF_ERROR(cuda::PlanAttention(batch.plan_shape(),
                                            {num_ctas, kMaxPartials, has_prefill, num_spread_ctas},
                                            batch.spans(), run.plan));
  const bool is_cut = run.plan.num_arrivals > 0;
  const bool is_other =
      c.has_prefill != !run.plan.prefill.empty() || (!c.is_spread && c.is_cut != is_cut);
  if (has_prefill && is_other) {
    return Internal("the plan has {} items of prefill and {} shared ones: not the case it is for",
                    run.plan.prefill.size(), run.plan.num_arrivals);
  }
  BATON_RETURN_IF_ERROR(
      Launch(input.body, {c.shape, batch, num_ctas, c.by_wgmma, c.is_spread}, run));
  return run;
}

// The bits of the rules where those of the tensor cores are known; on any GPU results near exact
// arithmetic. Returns its findings in words.
absl::StatusOr<std::string> CheckAttention(const StageInput& input, const AttentionCase& c) {
  AttentionInputs batch(c.shape, c.chunks, c.window);
  BATON_ASSIGN_OR_RETURN(const AttentionRun run, Run(input, c, batch));
  std::vector<float> got;
  for (const Bf16 value : run.out) got.push_back(FloatFromBf16(value.bits));
  const std::vector<double> exact =
      cuda::ReferenceAttention(batch.Data(kScale), batch.num_rows(), batch.spans());
  const double error = cuda::RelativeError(got.data(), exact);
  if (!(error < kAttention)) return TooFar("out", error, got, exact);
  if (const auto core = simt::TensorCoreOf(input.major); core.has_value()) {
    cuda::AttentionData data = batch.Data(kScale);
    data.core = *core;
    const std::vector<Bf16> bits =
        cuda::ReferenceAttentionBits(data, batch.num_rows(), batch.spans());
    BATON_RETURN_IF_ERROR(
        ExpectSameBits("out by the rules with the tensor cores' model", run.out, bits));
  }
  return fmt::format("{} rows, {} heads on {}, {} + {} items, relative error {:.2g}",
                     batch.num_rows(), c.shape.num_heads, c.shape.num_kv_heads,
                     run.plan.prefill.size(), run.plan.decode.size(), error);
}

// The rows of one chunk as prefill, and each by itself as decode; beyond tiny, those from position
// 1024 on have five splits and are cut.
absl::StatusOr<std::string> CheckSameBits(const StageInput& input, const AttentionCase& whole) {
  AttentionCase rows = whole;
  rows.has_prefill = false;
  rows.is_cut = !input.is_tiny;
  rows.chunks.clear();
  for (const Chunk& chunk : whole.chunks) {
    for (uint32_t i = 0; i < chunk.count; ++i) {
      rows.chunks.push_back({chunk.sequence, chunk.first + i, 1});
    }
  }
  const AttentionInputs whole_batch(whole.shape, whole.chunks, whole.window);
  const AttentionInputs rows_batch(rows.shape, rows.chunks, rows.window);
  BATON_ASSIGN_OR_RETURN(const AttentionRun prefill, Run(input, whole, whole_batch));
  BATON_ASSIGN_OR_RETURN(const AttentionRun decode, Run(input, rows, rows_batch));
  BATON_RETURN_IF_ERROR(ExpectSameBits("decode by prefill", decode.out, prefill.out));
  rows.is_spread = true;
  BATON_ASSIGN_OR_RETURN(const AttentionRun spread, Run(input, rows, rows_batch));
  BATON_RETURN_IF_ERROR(
      ExpectSameBits("decode, a cta a split, by prefill", spread.out, prefill.out));
  return fmt::format("{} rows", whole_batch.num_rows());
}

// By wgmma and by mma.sync.
absl::StatusOr<std::string> CheckByWgmma(const StageInput& input, AttentionCase c) {
  const AttentionInputs batch(c.shape, c.chunks, c.window);
  BATON_ASSIGN_OR_RETURN(const AttentionRun by_mma, Run(input, c, batch));
  c.by_wgmma = true;
  BATON_ASSIGN_OR_RETURN(const AttentionRun by_wgmma, Run(input, c, batch));
  BATON_RETURN_IF_ERROR(ExpectSameBits("wgmma by mma", by_wgmma.out, by_mma.out));
  return fmt::format("{} rows, {} items", batch.num_rows(), by_mma.plan.prefill.size());
}

// By a cta for each split and by a warp for each.
absl::StatusOr<std::string> CheckSpread(const StageInput& input, AttentionCase c) {
  const AttentionInputs batch(c.shape, c.chunks, c.window);
  BATON_ASSIGN_OR_RETURN(const AttentionRun by_warps, Run(input, c, batch));
  c.is_spread = true;
  BATON_ASSIGN_OR_RETURN(const AttentionRun by_ctas, Run(input, c, batch));
  BATON_RETURN_IF_ERROR(
      ExpectSameBits("a cta a split by a warp a split", by_ctas.out, by_warps.out));
  return fmt::format("{} rows, {} items instead of {}", batch.num_rows(),
                     by_ctas.plan.decode.size(), by_warps.plan.decode.size());
}

// Asynchronous are those of a kernel's own ring of copies: the three of prompts, of decode that
// several ctas share.
std::vector<AttentionCase> TinyCases() {
  return {
      {"decode 64 cut", {64, 2, 1, 16}, 0, {{0, 1100, 1}, {1, 20, 1}}, false, true, false, true},
      {"decode 128 window", {128, 6, 2, 32}, 50, {{1, 70, 1}, {0, 255, 2}}},
      {"decode 256", {256, 2, 2, 64}, 0, {{0, 256, 1}}},
      {"prefill 64", {64, 8, 2, 16}, 0, {{0, 250, 20}, {1, 9, 1}}, true},
      {"prefill 128", {128, 3, 1, 32}, 60, {{0, 70, 22}}, true, false, false, true},
      {"prefill 256", {256, 16, 1, 64}, 0, {{0, 60, 5}}, true},
      {"decode 64 fp8 cut", {64, 2, 1, 16, kFp8}, 0, {{0, 1100, 1}, {1, 20, 1}}, false, true},
      {"decode 128 fp8 window", {128, 6, 2, 32, kFp8}, 50, {{1, 70, 1}, {0, 255, 2}}},
      {"prefill 256 fp8", {256, 16, 1, 64, kFp8}, 0, {{0, 60, 5}}, true, false, false, true}};
}

// The model takes 117 ns for 16 products: "prefill 128" is 2 s of it, "decode 128 cut" 0.5 s.
std::vector<AttentionCase> FullCases() {
  return {
      {"decode 64",
       {64, 9, 3, 16},
       0,
       {{0, 0, 1}, {1, 255, 1}, {2, 256, 1}, {3, 5000, 3}, {4, 1, 1}},
       false,
       true},
      {"decode 128 cut", {128, 32, 8, 32}, 0, {{0, 8300, 1}, {1, 77, 1}}, false, true},
      {"decode 256 window", {256, 16, 4, 64}, 1000, {{0, 3000, 1}, {1, 512, 2}}, false, true},
      {"prefill 64", {64, 9, 3, 16}, 0, {{0, 100, 130}, {1, 40, 1}, {2, 0, 33}}, true},
      {"prefill 128", {128, 8, 2, 32}, 0, {{0, 700, 130}, {1, 0, 65}}, true},
      {"prefill 256", {256, 4, 1, 64}, 200, {{0, 500, 70}}, true},
      {"decode 64 fp8", {64, 9, 3, 16, kFp8}, 0, {{0, 0, 1}, {1, 255, 1}, {2, 256, 1}}},
      {"decode 128 fp8 cut", {128, 32, 8, 32, kFp8}, 0, {{0, 4300, 1}, {1, 77, 1}}, false, true},
      {"decode 256 fp8 window", {256, 16, 4, 64, kFp8}, 1000, {{0, 3000, 1}}, false, true},
      {"prefill 64 fp8", {64, 9, 3, 16, kFp8}, 0, {{0, 100, 70}, {2, 0, 33}}, true},
      {"prefill 128 fp8", {128, 8, 2, 32, kFp8}, 0, {{0, 500, 66}}, true},
      {"prefill 256 fp8", {256, 4, 1, 64, kFp8}, 200, {{0, 500, 35}}, true}};
}

template <typename Check>
absl::Status Add(const AttentionCase& c, const std::string& name, const Check& check,
                 Report& report) {
  if (!report.Begin(name)) return absl::OkStatus();
  const absl::StatusOr<std::string> outcome = check();
  auto chunks = nlohmann::json::array();
  for (const Chunk& chunk : c.chunks) {
    chunks.push_back({chunk.sequence, chunk.first, chunk.count});
  }
  const absl::Status status =
      OfCase(outcome.status(), {{"head_dim", c.shape.head_dim},
                                {"num_heads", c.shape.num_heads},
                                {"num_kv_heads", c.shape.num_kv_heads},
                                {"block_size", c.shape.block_size},
                                {"is_fp8", c.shape.element == kFp8},
                                {"window", c.window},
                                {"chunks", std::move(chunks)},
                                {"inputs", "AttentionInputs of tests/kernels/simt/host_blocks.h"}});
  return report.Add(OutcomeOf(name, status, outcome.ok() ? *outcome : std::string()));
}

}  // namespace

absl::Status CheckAttentionKernels(const StageInput& input, Report& report) {
  const auto is_wanted = [&input](bool is_asynchronous) {
    return input.kernels == KernelList::kAll ||
           is_asynchronous == (input.kernels == KernelList::kAsynchronous);
  };
  for (const AttentionCase& c : input.is_tiny ? TinyCases() : FullCases()) {
    if (!is_wanted(c.is_asynchronous)) continue;
    BATON_RETURN_IF_ERROR(Add(
        c, c.name, [&] { return CheckAttention(input, c); }, report));
    if (!c.has_prefill) {
      BATON_RETURN_IF_ERROR(Add(
          c, fmt::format("{}, a cta == a warp a split", c.name),
          [&] { return CheckSpread(input, c); }, report));
      continue;
    }
    const std::string name = fmt::format("{}, wgmma == mma", c.name);
    if (input.major == 9) {
      BATON_RETURN_IF_ERROR(Add(
          c, name, [&] { return CheckByWgmma(input, c); }, report));
    } else {
      BATON_RETURN_IF_ERROR(report.Add({name, Verdict::kNotRun, "needs sm_90"}));
    }
  }
  if (!is_wanted(/*is_asynchronous=*/false)) return absl::OkStatus();
  const Chunk chunk = input.is_tiny ? Chunk{0, 250, 17} : Chunk{0, 1000, 200};
  for (const cuda::KvElement element : {cuda::KvElement::kBf16, kFp8}) {
    for (const uint32_t dim : {64u, 128u, 256u}) {
      const AttentionCase c = {"", {dim, 4, 1, 32, element}, 0, {chunk}, true};
      const std::string name =
          fmt::format("decode == prefill {}{}", dim, element == kFp8 ? " fp8" : "");
      BATON_RETURN_IF_ERROR(Add(
          c, name, [&] { return CheckSameBits(input, c); }, report));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
