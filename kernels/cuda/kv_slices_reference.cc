#include "kernels/cuda/kv_slices_reference.h"

#include <cstring>
#include <vector>

#include "src/base/xxh3.h"

namespace baton::kernels::cuda {

using kv::KvSide;
using kv::KvSlicePlace;
using kv::KvSlicesParams;

namespace {

// Calls `copy` with K, then V, of each rank's heads: where they lie in its memory, and in the
// slice.
template <typename Copy>
void ForEachPiece(const KvSide& side, uint64_t offset, size_t slice_bytes, const Copy& copy) {
  const size_t piece_bytes = slice_bytes / (2 * side.num_ranks);
  for (size_t which = 0; which < 2; ++which) {
    for (size_t rank = 0; rank < side.num_ranks; ++rank) {
      copy(side.ranks[rank] + offset + which * piece_bytes,
           (which * side.num_ranks + rank) * piece_bytes, piece_bytes);
    }
  }
}

std::vector<std::byte> Read(const KvSide& side, uint64_t offset, size_t slice_bytes) {
  std::vector<std::byte> slice(slice_bytes);
  ForEachPiece(side, offset, slice_bytes, [&](const std::byte* piece, size_t at, size_t bytes) {
    std::memcpy(slice.data() + at, piece, bytes);
  });
  return slice;
}

void Write(const KvSide& side, uint64_t offset, const std::vector<std::byte>& slice) {
  ForEachPiece(side, offset, slice.size(), [&](std::byte* piece, size_t at, size_t bytes) {
    std::memcpy(piece, slice.data() + at, bytes);
  });
}

}  // namespace

void ReferenceKvGather(const KvSlicesParams& params) {
  for (size_t i = 0; i < params.num_slices; ++i) {
    const KvSlicePlace& place = params.places[i];
    const auto slice = Read(params.blocks, place.block_offset, params.slice_bytes);
    params.checksums[i] = Xxh3Hash64(slice.data(), slice.size());
    Write(params.staging, place.staging_offset, slice);
  }
}

void ReferenceKvScatter(const KvSlicesParams& params) {
  for (size_t i = 0; i < params.num_slices; ++i) {
    const KvSlicePlace& place = params.places[i];
    const auto slice = Read(params.staging, place.staging_offset, params.slice_bytes);
    params.checksums[i] = Xxh3Hash64(slice.data(), slice.size());
    if (params.checksums[i] != params.expected[i]) continue;
    Write(params.blocks, place.block_offset, slice);
  }
}

}  // namespace baton::kernels::cuda
