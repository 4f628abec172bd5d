// Where K and V of one layer lie on a device: the bytes of kvcache/kv_layout.h for bf16 in the
// encoding kPlain and for fp8 in kFragments, as a plain struct that kernels take by value. Pure;
// any thread, host or device.
//
// A (block, layer) slice is [K|V][kv_head][piece], so V of a head and token lies ValueOffset()
// after its K. A piece is [token][dim]; in fp8 a scale for each token follows.
#ifndef BATON_KERNELS_CUDA_KV_BLOCKS_H_
#define BATON_KERNELS_CUDA_KV_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace baton::kernels::cuda {

// The most query heads that share a kv head.
inline constexpr uint32_t kMaxGroup = 16;
// The smallest block: sixteen tokens from a multiple of sixteen on lie in one block.
inline constexpr uint32_t kMinBlockSize = 16;
// Bytes of the scale of one fp8 row, which is stored as bf16.
inline constexpr uint32_t kKvScaleBytes = 2;

// The type in which K and V are stored. A kernel is compiled for one type, and names it where it
// asks for places: then they cost no more than with one type.
enum class KvElement : uint32_t { kBf16 = 0, kFp8 = 1 };

// The blocks of a device as one layer sees them.
struct KvBlocks {
  std::byte* base;            // this layer's slice of block 0; aligned to 16 bytes
  size_t block_stride_bytes;  // from a block to the next; a multiple of 16
  uint32_t num_kv_heads;
  uint32_t head_dim;    // 64, 128 or 256
  uint32_t block_size;  // tokens: 16, 32 or 64
  KvElement element = KvElement::kBf16;

  // The block of a position in a list, without a division, and the token of a position there.
  constexpr uint32_t BlockOf(uint32_t position) const {
    return block_size == 16 ? position / 16 : block_size == 32 ? position / 32 : position / 64;
  }
  constexpr uint32_t TokenOf(uint32_t position) const { return position & (block_size - 1); }
  // K (or V) of one head and token, without its scale.
  constexpr size_t RowBytes(KvElement of) const {
    return size_t{head_dim} * (of == KvElement::kFp8 ? 1 : 2);
  }
  constexpr size_t PieceBytes(KvElement of) const {
    return block_size * (RowBytes(of) + (of == KvElement::kFp8 ? kKvScaleBytes : 0));
  }
  constexpr size_t ValueOffset(KvElement of) const { return num_kv_heads * PieceBytes(of); }
  // The offset of K from `base`; token < block_size.
  constexpr size_t KeyOffset(uint32_t block, uint32_t kv_head, uint32_t token, KvElement of) const {
    return block * block_stride_bytes + kv_head * PieceBytes(of) + token * RowBytes(of);
  }
  // The offset of a token's scale from its piece, in fp8.
  constexpr size_t ScaleOffset(uint32_t token) const {
    return size_t{block_size} * head_dim + static_cast<size_t>(token * kKvScaleBytes);
  }

  constexpr size_t RowBytes() const { return RowBytes(element); }
  constexpr size_t PieceBytes() const { return PieceBytes(element); }
  constexpr size_t ValueOffset() const { return ValueOffset(element); }
  constexpr size_t KeyOffset(uint32_t block, uint32_t kv_head, uint32_t token) const {
    return KeyOffset(block, kv_head, token, element);
  }
};

// OK for the shapes that the kernels take; otherwise InvalidArgument with the numbers.
inline absl::Status CheckKvShape(const char* kernel, const KvBlocks& kv, uint32_t num_heads) {
  const auto refuse = [kernel](const std::string& why) {
    return absl::InvalidArgumentError(std::string(kernel) + ": " + why);
  };
  if (kv.head_dim != 64 && kv.head_dim != 128 && kv.head_dim != 256) {
    return refuse("head_dim " + std::to_string(kv.head_dim) + " is not 64, 128 or 256");
  }
  if (kv.block_size != 16 && kv.block_size != 32 && kv.block_size != 64) {
    return refuse("block_size " + std::to_string(kv.block_size) + " is not 16, 32 or 64");
  }
  if (kv.num_kv_heads == 0 || num_heads == 0 || num_heads % kv.num_kv_heads != 0 ||
      num_heads / kv.num_kv_heads > kMaxGroup) {
    return refuse(std::to_string(num_heads) + " heads on " + std::to_string(kv.num_kv_heads) +
                  " kv heads: the range is [1, " + std::to_string(kMaxGroup) + "] for each");
  }
  if (kv.block_stride_bytes % 16 != 0 ||
      kv.block_stride_bytes < size_t{2} * kv.num_kv_heads * kv.PieceBytes()) {
    return refuse("a block stride of " + std::to_string(kv.block_stride_bytes) +
                  " bytes is no multiple of 16 that holds a slice");
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_KV_BLOCKS_H_
