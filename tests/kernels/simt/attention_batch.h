// A batch of attention on the runner: sequences whose K and V depend on (sequence, kv head,
// position) only, in blocks of any size, with poison in every slot and block that no row sees.
#ifndef BATON_TESTS_KERNELS_SIMT_ATTENTION_BATCH_H_
#define BATON_TESTS_KERNELS_SIMT_ATTENTION_BATCH_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_reference.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/cuda/kernel_table.h"
#include "tests/kernels/simt/device_values.h"

namespace baton::cuda {

using simt_test::FromDevice;
using simt_test::OnDevice;
using simt_test::RandomBf16;
using simt_test::SameBits;

// Rows [first, first + count) of a sequence.
struct Chunk {
  uint32_t sequence;
  uint32_t first;
  uint32_t count;
};

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
  explicit AttentionBatch(const AttentionCase& c) : case_(c) {
    for (const Chunk& chunk : c.chunks) {
      spans_.push_back({chunk.sequence, num_rows_, chunk.count, chunk.first});
      num_rows_ += chunk.count;
      num_sequences_ = std::max(num_sequences_, chunk.sequence + 1);
      max_blocks_ = std::max(max_blocks_, BlocksFor(chunk.first + chunk.count));
      for (uint32_t row = 0; row < chunk.count; ++row) {
        const std::vector<Bf16> q = RandomBf16(
            size_t{c.num_heads} * c.head_dim, 5000 * chunk.sequence + chunk.first + row, c.q_scale);
        q_.insert(q_.end(), q.begin(), q.end());
      }
    }
    num_rows_ += c.poison_rows;
    BuildBlocks();
  }

  // Plans and runs both kernels; out keeps its poison where nothing is written.
  absl::StatusOr<std::vector<Bf16>> Run() {
    AttentionPlan plan;
    const bool has_partials = !case_.is_whole && case_.splits_an_item == 0;
    absl::Status status = PlanAttention(
        shape(), {.num_decode_ctas = 8, .max_partials = has_partials ? 1000u : 0u}, spans_, plan);
    if (!status.ok()) return status;
    if (case_.splits_an_item > 0) Recut(case_.splits_an_item, plan);
    SimBuffer q = OnDevice(q_, "q");
    SimBuffer out(size_t{num_rows_} * case_.num_heads * case_.head_dim * sizeof(Bf16), "out");
    SimBuffer arena = OnDevice(arena_, "blocks");
    SimBuffer lists = OnDevice(blocks_, "block_lists");
    SimBuffer prefill = OnDevice(plan.prefill, "prefill items");
    SimBuffer decode = OnDevice(plan.decode, "decode items");
    SimBuffer partials(plan.num_partials * AttentionPartialBytes(case_.head_dim), "partials");
    SimBuffer arrivals = OnDevice(std::vector<uint32_t>(plan.num_arrivals, 0), "arrivals");
    SimBuffer counts = OnDevice(std::vector<uint32_t>{static_cast<uint32_t>(plan.prefill.size()),
                                                      static_cast<uint32_t>(plan.decode.size())},
                                "counts");
    AttentionParams params = {.q = q.as<Bf16>(),
                              .out = out.as<Bf16>(),
                              .kv = kv_,
                              .block_lists = lists.as<uint32_t>(),
                              .items = prefill.as<AttentionItem>(),
                              .num_items = counts.as<uint32_t>(),
                              .partials = partials.data(),
                              .arrivals = arrivals.as<uint32_t>(),
                              .max_blocks = max_blocks_,
                              .num_heads = case_.num_heads,
                              .window = case_.window,
                              .scale = kScale,
                              .num_ctas = case_.num_ctas};
    params.kv.base = arena.data();
    status = runner::Kernels().attention_prefill(params, nullptr);
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

  std::vector<double> Reference() { return ReferenceAttention(Data(), num_rows_, spans_); }
  std::vector<Bf16> ReferenceBits() { return ReferenceAttentionBits(Data(), num_rows_, spans_); }

  // A row of a result, all heads.
  std::vector<Bf16> Row(const std::vector<Bf16>& out, uint32_t row) const {
    const size_t size = size_t{case_.num_heads} * case_.head_dim;
    return {out.begin() + static_cast<std::ptrdiff_t>(row * size),
            out.begin() + static_cast<std::ptrdiff_t>((row + 1) * size)};
  }

 private:
  using SimBuffer = simt::SimBuffer;
  static constexpr float kScale = 0.0625f;
  static constexpr uint32_t kNoBlock = 0xFFFFFFFFu;

  AttentionShape shape() const { return {case_.num_heads, case_.num_kv_heads, case_.window}; }

  AttentionData Data() {
    AttentionData data = {q_.data(), kv_, blocks_.data(), max_blocks_, shape(), kScale};
    data.kv.base = arena_.data();
    return data;
  }

  uint32_t BlocksFor(uint32_t keys) const {
    return (keys + case_.block_size - 1) / case_.block_size;
  }

  // The lists end with the last block that is seen; what no row sees has no block, or poison.
  void BuildBlocks() {
    kv_ = {nullptr, 0, case_.num_kv_heads, case_.head_dim, case_.block_size};
    kv_.block_stride_bytes = 2 * kv_.ValueOffset();
    blocks_.assign(size_t{num_sequences_} * max_blocks_, kNoBlock);
    uint32_t num_blocks = 0;
    for (const AttentionRows& span : spans_) {
      for (uint32_t i = FirstKey(span) / case_.block_size; i < BlocksFor(EndKey(span)); ++i) {
        blocks_[span.sequence * max_blocks_ + i] = num_blocks++;
      }
    }
    for (uint32_t& block : blocks_) {  // the later blocks first
      if (block != kNoBlock) block = num_blocks - 1 - block;
    }
    arena_.assign(num_blocks * kv_.block_stride_bytes, std::byte{0xFF});
    for (const AttentionRows& span : spans_) {
      for (uint32_t head = 0; head < case_.num_kv_heads; ++head) FillHead(span, head);
    }
  }

  void FillHead(const AttentionRows& span, uint32_t head) {
    const size_t dim = case_.head_dim;
    const uint32_t end = EndKey(span);
    const auto keys = RandomBf16(end * dim, 100 * span.sequence + head);
    const auto values = RandomBf16(end * dim, 100 * span.sequence + 50 + head);
    for (uint32_t key = FirstKey(span); key < end; ++key) {
      const uint32_t block = blocks_[span.sequence * max_blocks_ + key / case_.block_size];
      std::byte* at = arena_.data() + kv_.KeyOffset(block, head, key % case_.block_size);
      std::memcpy(at, keys.data() + key * dim, kv_.RowBytes());
      std::memcpy(at + kv_.ValueOffset(), values.data() + key * dim, kv_.RowBytes());
    }
  }

  uint32_t FirstKey(const AttentionRows& span) const {
    const bool is_cut = case_.window > 0 && span.first_position >= case_.window;
    return is_cut ? span.first_position - case_.window + 1 : 0;
  }
  static uint32_t EndKey(const AttentionRows& span) { return span.first_position + span.num_rows; }

  AttentionCase case_;
  KvBlocks kv_ = {};
  uint32_t num_rows_ = 0;
  uint32_t num_sequences_ = 0;
  uint32_t max_blocks_ = 0;
  std::vector<AttentionRows> spans_;
  std::vector<Bf16> q_;
  std::vector<uint32_t> blocks_;
  std::vector<std::byte> arena_;
};

}  // namespace baton::cuda

#endif  // BATON_TESTS_KERNELS_SIMT_ATTENTION_BATCH_H_
