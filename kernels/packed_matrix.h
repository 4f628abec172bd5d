// PackedMatrix: a weight matrix [n, k] in the one order that both prefill and decode kernels read,
// and in its smallest form (nibbles stay nibbles). Built once at load; immutable and readable by
// any thread afterwards. Its bytes are its own, or lie in memory that processes share (View).
//
// Rows (outputs) are interleaved 16 wide, so that the lanes of a vector are outputs and no kernel
// adds across lanes. A panel is 16 rows (the last one filled up with zero rows); panels follow each
// other:
//   float types:  [k][16] elements
//   quantised:    [k / 32] blocks of scales, then digits (packed_layout.h has the sizes)
//     scales:     fp16 scale [16], with a min fp16 min [16]. Super-block types: in front of every 8
//                   blocks those two; in front of each block a byte [16] that each is multiplied by
//                   (IQ4_XS: a signed byte [16]; two scales a block: a signed byte [2][16]).
//                   Q2_K: a byte [2][16], two nibbles. MXFP4: a byte [16]
//     nibbles:    [4][16][4] bytes; chunk c, row r holds k = 8c .. 8c+7 of the block:
//                   low nibbles of bytes 0, 2 = k 0, 1;  high nibbles of bytes 0, 2 = k 2, 3;
//                   low nibbles of bytes 1, 3 = k 4, 5;  high nibbles of bytes 1, 3 = k 6, 7
//     5 bits:     the nibbles, then a plane [16][4] bytes: bit 2c of byte j of row r belongs on top
//                   of the low nibble of byte j of chunk c, bit 2c + 1 of its high nibble
//     6 bits:     the nibbles, then two planes for chunks 0, 1 and 2, 3: two bits for each nibble,
//                   in the same order
//     3 bits:     [3][16][4] bytes; word w, row r is two int16, of even and of odd k: from the
//                   lowest bit on the digits of pairs 5w .. 5w + 4 (k = 2 pair, 2 pair + 1), three
//                   bits each; bit 15 is bit w of pair 15's digit
//     2 bits:     [2][16][4] bytes; half h of the block, row r is two int16, of even and of odd k:
//                   from the lowest bit on the digits of k = 16h + 2i and 16h + 2i + 1, i from 0
//                   to 7
//     bytes:      [8][16][4] bytes; chunk c, row r holds k = 4c .. 4c+3:
//                   bytes 0, 2, 1, 3 = k 0, 1, 2, 3
// In this order a mask (and at most one shift) turns 32 bits of a row into a pair of int16 with
// consecutive k, or into the bytes of two pairs. vpmaddwd and vpdpwssd multiply such a pair.
//
// Rows of one matrix share one type: tensors of different types that one would like to fuse (for
// example Q|K|V with a wider V) stay separate matrices.
#ifndef BATON_KERNELS_PACKED_MATRIX_H_
#define BATON_KERNELS_PACKED_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/packed_layout.h"
#include "kernels/weight_type.h"
#include "src/base/status.h"
#include "src/device/aligned_buffer.h"
#include "src/device/thread_pool.h"

namespace baton::kernels {

// Raised when the same rows get other packed bytes.
inline constexpr uint32_t kPackedLayoutVersion = 1;

// Rows of one tensor as they lie in a model file.
struct RawRows {
  WeightType type;
  std::span<const std::byte> bytes;  // [n, RawRowBytes(type, k)]
  uint32_t n;
};

// A packed weight matrix; see the file comment.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  // Packs raw rows [n, k]. The raw bytes are not needed afterwards. Costs one read of the raw
  // bytes, divided over `pool`. InvalidArgument with the values when a size is zero or does not
  // match, or k is no multiple of a quantised type's block. A quantised row with a scale that is
  // not finite gives InvalidArgument too. ResourceExhausted when memory is short.
  static absl::StatusOr<PackedMatrix> Pack(WeightType type, std::span<const std::byte> raw,
                                           uint32_t n, uint32_t k, device::ThreadPool& pool);
  // As Pack, for several tensors joined by rows (Q|K|V, gate|up), in the order given. All of one
  // type, else InvalidArgument naming both.
  static absl::StatusOr<PackedMatrix> PackRows(std::span<const RawRows> parts, uint32_t k,
                                               device::ThreadPool& pool);

  // The shape of a matrix whose bytes follow by Own or View. InvalidArgument as Pack.
  static absl::StatusOr<PackedMatrix> Shaped(WeightType type, uint64_t n, uint32_t k);
  // Packs rows of this shape to `out` [bytes()]. There stand zeros, or what an earlier call for the
  // same rows left, whole or not. Equal rows give equal bytes. Errors as PackRows.
  absl::Status PackInto(std::span<const RawRows> parts, device::ThreadPool& pool,
                        std::span<std::byte> out) const;
  // Takes what PackInto wrote: memory of its own, or memory [bytes()] that outlives the matrix.
  void Own(device::AlignedBuffer packed);
  void View(const std::byte* packed) { data_ = packed; }

  uint32_t n() const { return n_; }
  uint32_t k() const { return k_; }
  WeightType type() const { return type_; }
  const WeightTraits& traits() const { return TraitsOf(type_); }
  // True when matmul reads MatMulArgs::a16, false when it reads MatMulArgs::x.
  bool uses_a16() const { return uses_a16_; }
  // Bytes that a pass over the matrix reads, padding rows included.
  size_t bytes() const { return num_panels() * panel_bytes_; }

  uint32_t num_panels() const { return (n_ + kPanelRows - 1) / kPanelRows; }
  size_t panel_bytes() const { return panel_bytes_; }
  const std::byte* panel(uint32_t panel_idx) const { return data_ + panel_idx * panel_bytes_; }

  // One block of one row taken out of the packed form (quantised types). Slow; for references.
  WeightBlock Block(uint32_t row, uint32_t block_idx) const;
  // Bits of one element (float types): fp32, half or bf16 bits. Slow; for references.
  uint32_t ElementBits(uint32_t row, uint32_t k_idx) const;

 private:
  uint32_t n_ = 0;
  uint32_t k_ = 0;
  WeightType type_ = WeightType::kF32;
  bool uses_a16_ = false;
  size_t panel_bytes_ = 0;
  const std::byte* data_ = nullptr;
  device::AlignedBuffer owned_;  // of data_; empty when others own it
};

}  // namespace baton::kernels

#endif  // BATON_KERNELS_PACKED_MATRIX_H_
