// A batch of attention (host_blocks.h) on the runner.
#ifndef BATON_TESTS_KERNELS_SIMT_ATTENTION_BATCH_H_
#define BATON_TESTS_KERNELS_SIMT_ATTENTION_BATCH_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "gtest/gtest.h"

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_reference.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/run_options.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/host_blocks.h"
#include "tests/kernels/simt/other_gpus.h"

namespace baton::kernels::cuda {

using simt_test::Chunk;
using simt_test::FromDevice;
using simt_test::OnDevice;
using simt_test::RandomBf16;
using simt_test::SameBits;

// One launch of each kernel.
struct AttentionCase {
  uint32_t head_dim = 64;
  uint32_t num_heads = 1;
  uint32_t num_kv_heads = 1;
  uint32_t block_size = 16;
  uint32_t window = 0;
  float q_scale = 1.0f;
  std::vector<Chunk> chunks;
  uint32_t num_ctas = 3;
  uint32_t splits_an_item = 0;  // recuts decode items; 0 leaves the plan as it is
  bool is_whole = false;        // no place for partials: an item has all splits of its pairs
  uint32_t poison_rows = 0;     // that belong to no chunk, behind the others
  KvElement element = KvElement::kBf16;
  bool by_wgmma = false;   // prefill
  bool is_spread = false;  // decode, whatever its items
};

// Every decode item, cut into items of so many splits that meet in the partials.
inline void Recut(uint32_t splits_an_item, AttentionPlan& plan) {
  std::vector<AttentionItem> items;
  plan.num_partials = plan.num_arrivals = 0;
  for (AttentionItem item : plan.decode) {
    const uint32_t first = item.first_split;
    const uint32_t count = item.num_splits;
    item.num_parts = (count + splits_an_item - 1) / splits_an_item;
    item.first_partial = plan.num_partials;
    item.arrival = plan.num_arrivals;
    for (uint32_t done = 0; done < count; done += splits_an_item) {
      item.first_split = first + done;
      item.num_splits = std::min(splits_an_item, count - done);
      items.push_back(item);
    }
    plan.num_partials += count;
    ++plan.num_arrivals;
  }
  plan.decode = items;
}

// The case in device memory, and its result.
class AttentionBatch {
 public:
  explicit AttentionBatch(const AttentionCase& c)
      : case_(c),
        inputs_({c.head_dim, c.num_heads, c.num_kv_heads, c.block_size, c.element}, c.chunks,
                c.window, c.q_scale),
        num_rows_(inputs_.num_rows() + c.poison_rows) {}

  // Plans and runs both kernels; out keeps its poison where nothing is written.
  absl::StatusOr<std::vector<Bf16>> Run() {
    AttentionPlan plan;
    const bool has_prefill = runner::Kernels().has_prefill(case_.head_dim, case_.element);
    const bool has_partials = !case_.is_whole && case_.splits_an_item == 0;
    absl::Status status = PlanAttention(inputs_.plan_shape(),
                                        {.num_decode_ctas = 8,
                                         .max_partials = has_partials ? 1000u : 0u,
                                         .has_prefill = has_prefill},
                                        inputs_.spans(), plan);
    if (!status.ok()) return status;
    if (case_.splits_an_item > 0) Recut(case_.splits_an_item, plan);
    SimBuffer q = OnDevice(inputs_.q(), "q");
    SimBuffer out(size_t{num_rows_} * case_.num_heads * case_.head_dim * sizeof(Bf16), "out");
    SimBuffer arena = OnDevice(inputs_.blocks().bytes(), "blocks");
    SimBuffer lists = OnDevice(inputs_.blocks().lists(), "block_lists");
    SimBuffer prefill = OnDevice(plan.prefill, "prefill items");
    SimBuffer decode = OnDevice(plan.decode, "decode items");
    SimBuffer partials(plan.num_partials * AttentionPartialBytes(case_.head_dim), "partials");
    SimBuffer arrivals = OnDevice(std::vector<uint32_t>(plan.num_arrivals, 0), "arrivals");
    SimBuffer counts = OnDevice(std::vector<uint32_t>{static_cast<uint32_t>(plan.prefill.size()),
                                                      static_cast<uint32_t>(plan.decode.size())},
                                "counts");
    AttentionParams params = {.q = q.as<Bf16>(),
                              .out = out.as<Bf16>(),
                              .kv = inputs_.blocks().kv(),
                              .block_lists = lists.as<uint32_t>(),
                              .items = prefill.as<AttentionItem>(),
                              .num_items = counts.as<uint32_t>(),
                              .partials = partials.data(),
                              .arrivals = arrivals.as<uint32_t>(),
                              .max_blocks = inputs_.blocks().max_blocks(),
                              .num_heads = case_.num_heads,
                              .window = case_.window,
                              .scale = kScale,
                              .num_ctas = case_.num_ctas,
                              .by_wgmma = case_.by_wgmma,
                              .is_spread = case_.is_spread || plan.is_spread};
    params.kv.base = arena.data() + inputs_.blocks().LayerOffset();
    if (has_prefill) status = runner::Kernels().attention_prefill(params, nullptr);
    if (!status.ok()) return status;
    params.items = decode.as<AttentionItem>();
    params.num_items = counts.as<uint32_t>() + 1;
    status = runner::Kernels().attention_decode(params, nullptr);
    if (!status.ok()) return status;
    for (const uint32_t arrival : FromDevice<uint32_t>(arrivals)) {
      if (arrival != 0) return absl::InternalError("an arrival is left");
    }
    return FromDevice<Bf16>(out);
  }

  // Another V of the first kv head, at a position of a sequence.
  void StoreValue(const simt_test::KeyPlace& place, const std::vector<Bf16>& row) {
    inputs_.StoreValue(place, row);
  }

  std::vector<double> Reference() {
    return ReferenceAttention(inputs_.Data(kScale), num_rows_, inputs_.spans());
  }
  std::vector<Bf16> ReferenceBits() {
    AttentionData data = inputs_.Data(kScale);
    data.core = simt_test::CurrentCore();
    return ReferenceAttentionBits(data, num_rows_, inputs_.spans());
  }

  // A row of a result, all heads.
  std::vector<Bf16> Row(const std::vector<Bf16>& out, uint32_t row) const {
    const size_t size = size_t{case_.num_heads} * case_.head_dim;
    return {out.begin() + static_cast<std::ptrdiff_t>(row * size),
            out.begin() + static_cast<std::ptrdiff_t>((row + 1) * size)};
  }

 private:
  using SimBuffer = simt::SimBuffer;
  static constexpr float kScale = 0.0625f;

  AttentionCase case_;
  simt_test::AttentionInputs inputs_;
  uint32_t num_rows_;
};

// The quick arithmetic, for sweeps over many shapes.
inline simt::RunOptions Quick() {
  simt::RunOptions options;
  options.tensor_math = simt::TensorMath::kFloat;
  options.detect_races = false;
  return options;
}

// The first difference between two results, poison of rows that are no chunk's included, or "".
inline std::string FirstDifference(const std::vector<Bf16>& got,
                                   const std::vector<Bf16>& expected) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].bits == expected[i].bits) continue;
    return fmt::format("element {} is {:#x}, not {:#x}", i, got[i].bits, expected[i].bits);
  }
  return "";
}

// Tests with K and V in bf16, and in fp8.
class TestOfElement : public testing::TestWithParam<KvElement> {
 protected:
  static AttentionCase Of(AttentionCase c) {
    c.element = GetParam();
    return c;
  }
};

}  // namespace baton::kernels::cuda

#endif  // BATON_TESTS_KERNELS_SIMT_ATTENTION_BATCH_H_
