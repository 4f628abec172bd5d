// KV of some sequences in host memory, in the order in which kernels read it on a device, and what
// attention reads of it: the same on the runner and on a GPU.
#ifndef BATON_TESTS_KERNELS_SIMT_HOST_BLOCKS_H_
#define BATON_TESTS_KERNELS_SIMT_HOST_BLOCKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_reference.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/kv_rows_reference.h"
#include "tests/kernels/simt/device_values.h"

namespace baton::kernels::simt_test {

// The sizes of a model that the kernels around attention take.
struct HeadShape {
  uint32_t head_dim = 64;
  uint32_t num_heads = 1;
  uint32_t num_kv_heads = 1;
  uint32_t block_size = 16;
  cuda::KvElement element = cuda::KvElement::kBf16;
};

// Rows [first, first + count) of a sequence; so many rows of padding where it is kPaddingRow.
struct Chunk {
  uint32_t sequence;
  uint32_t first;
  uint32_t count;
};

// Positions [first, end) of a sequence that some row of its chunks sees; empty without chunks.
struct SeenKeys {
  uint32_t first = 0xFFFFFFFFu;
  uint32_t end = 0;
};

// `window` 0 = none. One for each sequence.
inline std::vector<SeenKeys> SeenBy(const std::vector<Chunk>& chunks, uint32_t window) {
  std::vector<SeenKeys> seen;
  for (const Chunk& chunk : chunks) {
    if (chunk.sequence == cuda::kPaddingRow) continue;
    seen.resize(std::max<size_t>(seen.size(), chunk.sequence + 1));
    SeenKeys& keys = seen[chunk.sequence];
    const bool is_cut = window > 0 && chunk.first >= window;
    keys.first = std::min(keys.first, is_cut ? chunk.first - window + 1 : 0);
    keys.end = std::max(keys.end, chunk.first + chunk.count);
  }
  return seen;
}

// Blocks of two layers, of which the second one is used; poison until something is written. The
// later parts of sequences lie in the earlier blocks; what no row sees has no block.
class HostBlocks {
 public:
  static constexpr uint32_t kNoBlock = 0xFFFFFFFFu;

  HostBlocks(const HeadShape& shape, const std::vector<Chunk>& chunks, uint32_t window = 0)
      : kv_{nullptr, 0, shape.num_kv_heads, shape.head_dim, shape.block_size, shape.element} {
    kv_.block_stride_bytes = 2 * LayerOffset();
    const std::vector<SeenKeys> seen = SeenBy(chunks, window);
    for (const SeenKeys& keys : seen) max_blocks_ = std::max(max_blocks_, BlocksFor(keys.end));
    lists_.assign(seen.size() * max_blocks_, kNoBlock);
    uint32_t num_blocks = 0;
    for (uint32_t i = 0; i < max_blocks_; ++i) {
      for (size_t sequence = 0; sequence < seen.size(); ++sequence) {
        const SeenKeys& keys = seen[sequence];
        if (keys.first / kv_.block_size > i || i >= BlocksFor(keys.end)) continue;
        lists_[sequence * max_blocks_ + i] = num_blocks++;
      }
    }
    for (uint32_t& block : lists_) {
      if (block != kNoBlock) block = num_blocks - 1 - block;
    }
    bytes_.assign(std::max(num_blocks, 1u) * kv_.block_stride_bytes, std::byte{0xFF});
  }

  // Its base is null: LayerOffset() after the first of bytes().
  const cuda::KvBlocks& kv() const { return kv_; }
  uint32_t max_blocks() const { return max_blocks_; }
  const std::vector<uint32_t>& lists() const { return lists_; }  // [num_sequences][max_blocks]
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  size_t LayerOffset() const { return 2 * kv_.ValueOffset(); }

  // The offset of K in bytes(); V lies kv().ValueOffset() after it.
  size_t KeyOffset(uint32_t sequence, uint32_t kv_head, uint32_t position) const {
    const uint32_t block = lists_[size_t{sequence} * max_blocks_ + position / kv_.block_size];
    return LayerOffset() + kv_.KeyOffset(block, kv_head, position % kv_.block_size);
  }
  // The offset of the piece of K that the position lies in.
  size_t PieceOffset(uint32_t sequence, uint32_t kv_head, uint32_t position) const {
    return KeyOffset(sequence, kv_head, position / kv_.block_size * kv_.block_size);
  }

 private:
  uint32_t BlocksFor(uint32_t keys) const { return (keys + kv_.block_size - 1) / kv_.block_size; }

  cuda::KvBlocks kv_;
  uint32_t max_blocks_ = 1;
  std::vector<uint32_t> lists_;
  std::vector<std::byte> bytes_;
};

// A position of a sequence.
struct KeyPlace {
  uint32_t sequence;
  uint32_t position;
};

// The inputs of attention. q depends on sequence and position, K and V on kv head too: the same
// rows cut into other spans have the same inputs. Slots that no row sees are poison.
class AttentionInputs {
 public:
  AttentionInputs(const HeadShape& shape, const std::vector<Chunk>& chunks, uint32_t window,
                  float q_scale = 1.0f)
      : shape_(shape), window_(window), blocks_(shape, chunks, window) {
    for (const Chunk& chunk : chunks) {
      spans_.push_back({chunk.sequence, num_rows_, chunk.count, chunk.first});
      num_rows_ += chunk.count;
      for (uint32_t position = chunk.first; position < chunk.first + chunk.count; ++position) {
        const auto row = RandomBf16(size_t{shape.num_heads} * shape.head_dim,
                                    100'000 * (chunk.sequence + 1) + position, q_scale);
        q_.insert(q_.end(), row.begin(), row.end());
      }
    }
    const std::vector<SeenKeys> seen = SeenBy(chunks, window);
    for (uint32_t sequence = 0; sequence < seen.size(); ++sequence) Fill(sequence, seen[sequence]);
  }

  const HostBlocks& blocks() const { return blocks_; }
  const std::vector<cuda::AttentionRows>& spans() const { return spans_; }
  const std::vector<cuda::Bf16>& q() const { return q_; }  // [num_rows][num_heads][head_dim]
  uint32_t num_rows() const { return num_rows_; }
  cuda::AttentionShape plan_shape() const {
    return {shape_.num_heads, shape_.num_kv_heads, window_};
  }

  // Another V of the first kv head.
  void StoreValue(const KeyPlace& place, const std::vector<cuda::Bf16>& row) {
    const cuda::KvBlocks& kv = blocks_.kv();
    const size_t piece = blocks_.PieceOffset(place.sequence, 0, place.position) + kv.ValueOffset();
    cuda::ReferenceStoreRow(kv, row.data(), blocks_.bytes().data() + piece,
                            place.position % kv.block_size);
  }

  // For the references.
  cuda::AttentionData Data(float scale) {
    cuda::AttentionData data = {
        q_.data(), blocks_.kv(), blocks_.lists().data(), blocks_.max_blocks(), plan_shape(), scale};
    data.kv.base = blocks_.bytes().data() + blocks_.LayerOffset();
    return data;
  }

 private:
  void Fill(uint32_t sequence, const SeenKeys& seen) {
    const size_t dim = shape_.head_dim;
    for (uint32_t head = 0; head < shape_.num_kv_heads; ++head) {
      const auto keys = RandomBf16(seen.end * dim, 100 * sequence + head);
      const auto values = RandomBf16(seen.end * dim, 100 * sequence + 50 + head);
      for (uint32_t position = seen.first; position < seen.end; ++position) {
        const cuda::KvBlocks& kv = blocks_.kv();
        std::byte* piece = blocks_.bytes().data() + blocks_.PieceOffset(sequence, head, position);
        const uint32_t token = position % kv.block_size;
        cuda::ReferenceStoreRow(kv, keys.data() + position * dim, piece, token);
        cuda::ReferenceStoreRow(kv, values.data() + position * dim, piece + kv.ValueOffset(),
                                token);
      }
    }
  }

  HeadShape shape_;
  uint32_t window_;
  HostBlocks blocks_;
  std::vector<cuda::AttentionRows> spans_;
  uint32_t num_rows_ = 0;
  std::vector<cuda::Bf16> q_;
};

}  // namespace baton::kernels::simt_test

#endif  // BATON_TESTS_KERNELS_SIMT_HOST_BLOCKS_H_
