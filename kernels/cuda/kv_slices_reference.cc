#include "kernels/cuda/kv_slices_reference.h"

#include <cstring>

#include "src/base/xxh3.h"

namespace baton::cuda {

void ReferenceKvGather(const KvSlicesParams& params) {
  for (size_t i = 0; i < params.num_slices; ++i) {
    const KvSlicePlace& place = params.places[i];
    std::byte* const staged = params.staging + place.staging_offset;
    std::memcpy(staged, params.blocks + place.block_offset, params.slice_bytes);
    params.checksums[i] = Xxh3Hash64(staged, params.slice_bytes);
  }
}

void ReferenceKvScatter(const KvSlicesParams& params) {
  for (size_t i = 0; i < params.num_slices; ++i) {
    const KvSlicePlace& place = params.places[i];
    const std::byte* const staged = params.staging + place.staging_offset;
    params.checksums[i] = Xxh3Hash64(staged, params.slice_bytes);
    if (params.checksums[i] != params.expected[i]) continue;
    std::memcpy(params.blocks + place.block_offset, staged, params.slice_bytes);
  }
}

}  // namespace baton::cuda
