// A batch for RopeAppend on the runner.
#ifndef BATON_TESTS_KERNELS_SIMT_ROPE_BATCH_H_
#define BATON_TESTS_KERNELS_SIMT_ROPE_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "kernels/cuda/kernel_table.h"
#include "kernels/math.h"
#include "kernels/simt/arena.h"
#include "tests/kernels/simt/device_values.h"

namespace baton::kernels::cuda {

using simt::SimBuffer;
using simt_test::OnDevice;
using simt_test::RandomBf16;
using simt_test::RandomFloats;

inline constexpr uint32_t kRopeSequences = 3;
inline constexpr uint32_t kRopePositions = 70;
inline constexpr uint32_t kRopeLayers = 2;  // the second one is used

// Rows [first, first + count) of a sequence, or so many of padding.
struct Rows {
  uint32_t sequence;
  uint32_t first;
  uint32_t count;
};

// One batch: the shape of heads and blocks, and the rows.
struct RopeCase {
  uint32_t head_dim = 64;
  uint32_t num_heads = 2;
  uint32_t num_kv_heads = 1;
  uint32_t block_size = 16;
  bool interleaved = false;
  bool q_norm = false;
  bool k_norm = false;
  float scale = 1.0f;
  std::vector<Rows> rows = {{1, 0, 3}};
  KvElement element = KvElement::kBf16;
};

// A batch on the device, and what it was made of. A row's inputs depend on its sequence and
// position only.
class RopeBatch {
 public:
  explicit RopeBatch(const RopeCase& c)
      : max_blocks_((kRopePositions + c.block_size - 1) / c.block_size),
        kv_{nullptr, 0, c.num_kv_heads, c.head_dim, c.block_size, c.element} {
    const size_t row_size = size_t{c.num_heads + 2 * c.num_kv_heads} * c.head_dim;
    for (const Rows& rows : c.rows) {
      for (uint32_t i = 0; i < rows.count; ++i) {
        sequences_.push_back(rows.sequence);
        positions_.push_back(rows.sequence == kPaddingRow ? kPaddingRow : rows.first + i);
        const auto row = RandomBf16(row_size, 100 * rows.sequence + rows.first + i, c.scale);
        qkv_.insert(qkv_.end(), row.begin(), row.end());
      }
    }
    for (uint32_t i = 0; i < kRopeSequences * max_blocks_; ++i) blocks_.push_back(i * 5 % 16);
    cos_sin_ = RandomFloats(size_t{kRopePositions} * c.head_dim, 7, 0.125f);
    norms_ = RandomBf16(2 * size_t{c.head_dim}, 8);
    params_ = {.qkv = qkv_.data(),
               .q_norm = c.q_norm ? norms_.data() : nullptr,
               .k_norm = c.k_norm ? norms_.data() + c.head_dim : nullptr,
               .cos_sin = cos_sin_.data(),
               .positions = positions_.data(),
               .sequences = sequences_.data(),
               .block_lists = blocks_.data(),
               .kv = kv_,
               .num_rows = static_cast<uint32_t>(sequences_.size()),
               .num_heads = c.num_heads,
               .max_blocks = max_blocks_,
               .eps = 1e-5f,
               .interleaved = c.interleaved};
    params_.kv.block_stride_bytes = kRopeLayers * SliceBytes();
  }

  size_t SliceBytes() const { return 2 * kv_.ValueOffset(); }
  size_t ArenaBytes() const { return 16 * kRopeLayers * SliceBytes(); }
  // Pointers are to host memory; q and kv.base are null.
  const RopeAppendParams& host() const { return params_; }

  // launch(params) on a copy of everything; q gets [rows][heads][dim], arena ArenaBytes().
  template <typename Launch>
  absl::Status RunWith(SimBuffer& q, SimBuffer& arena, const Launch& launch) const {
    SimBuffer qkv = OnDevice(qkv_, "qkv");
    SimBuffer cos_sin = OnDevice(cos_sin_, "cos_sin");
    SimBuffer positions = OnDevice(positions_, "positions");
    SimBuffer sequences = OnDevice(sequences_, "sequences");
    SimBuffer blocks = OnDevice(blocks_, "block_lists");
    SimBuffer norms = OnDevice(norms_, "norms");
    RopeAppendParams params = params_;
    params.qkv = qkv.as<Bf16>();
    if (params.q_norm != nullptr) params.q_norm = norms.as<Bf16>();
    if (params.k_norm != nullptr) params.k_norm = norms.as<Bf16>() + kv_.head_dim;
    params.cos_sin = cos_sin.as<float>();
    params.positions = positions.as<uint32_t>();
    params.sequences = sequences.as<uint32_t>();
    params.block_lists = blocks.as<uint32_t>();
    params.q = q.as<Bf16>();
    params.kv.base = arena.data() + SliceBytes();
    return launch(params);
  }
  // The kernel alone.
  absl::Status Run(SimBuffer& q, SimBuffer& arena) const {
    return RunWith(q, arena, [](const RopeAppendParams& params) {
      return runner::Kernels().rope_append(params, nullptr);
    });
  }

 private:
  uint32_t max_blocks_;
  KvBlocks kv_;
  std::vector<uint32_t> sequences_;
  std::vector<uint32_t> positions_;
  std::vector<uint32_t> blocks_;
  std::vector<Bf16> qkv_;
  std::vector<Bf16> norms_;
  std::vector<float> cos_sin_;
  RopeAppendParams params_;
};

}  // namespace baton::kernels::cuda

#endif  // BATON_TESTS_KERNELS_SIMT_ROPE_BATCH_H_
