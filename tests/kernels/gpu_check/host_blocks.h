// KV of some sequences in host memory, in the order in which kernels read it on a device.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_HOST_BLOCKS_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_HOST_BLOCKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/kernel_table.h"

namespace baton::gpu_check {

// What of a model the kernels around attention take.
struct HeadShape {
  uint32_t head_dim;
  uint32_t num_heads;
  uint32_t num_kv_heads;
  uint32_t block_size;
};

// Rows [first, first + count) of a sequence; so many rows of padding where it is kPaddingRow.
struct Chunk {
  uint32_t sequence;
  uint32_t first;
  uint32_t count;
};

// Blocks of two layers, of which the second one is used; poison until something is written. The
// later parts of sequences lie in the earlier blocks.
class HostBlocks {
 public:
  HostBlocks(const HeadShape& shape, const std::vector<Chunk>& chunks)
      : kv_{nullptr, 0, shape.num_kv_heads, shape.head_dim, shape.block_size} {
    uint32_t num_sequences = 0;
    for (const Chunk& chunk : chunks) {
      if (chunk.sequence == cuda::kPaddingRow) continue;
      num_sequences = std::max(num_sequences, chunk.sequence + 1);
      max_blocks_ = std::max(max_blocks_, (chunk.first + chunk.count - 1) / kv_.block_size + 1);
    }
    kv_.block_stride_bytes = 2 * LayerOffset();
    const uint32_t num_blocks = num_sequences * max_blocks_;
    for (uint32_t i = 0; i < num_blocks; ++i) {
      lists_.push_back(num_blocks - 1 - i % max_blocks_ * num_sequences - i / max_blocks_);
    }
    bytes_.assign(num_blocks * kv_.block_stride_bytes, std::byte{0xFF});
  }

  // Its base is null: LayerOffset() behind the first of bytes().
  const cuda::KvBlocks& kv() const { return kv_; }
  uint32_t max_blocks() const { return max_blocks_; }
  const std::vector<uint32_t>& lists() const { return lists_; }  // [num_sequences][max_blocks]
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  size_t LayerOffset() const { return 2 * kv_.ValueOffset(); }

  // Of K in bytes(); V lies kv().ValueOffset() behind.
  size_t KeyOffset(uint32_t sequence, uint32_t kv_head, uint32_t position) const {
    const uint32_t block = lists_[size_t{sequence} * max_blocks_ + position / kv_.block_size];
    return LayerOffset() + kv_.KeyOffset(block, kv_head, position % kv_.block_size);
  }

 private:
  cuda::KvBlocks kv_;
  uint32_t max_blocks_ = 1;
  std::vector<uint32_t> lists_;
  std::vector<std::byte> bytes_;
};

}  // namespace baton::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_HOST_BLOCKS_H_
