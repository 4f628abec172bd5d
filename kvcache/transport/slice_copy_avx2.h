// The AVX2 body of CopyAndChecksum. Internal to kvcache/transport.
#ifndef BATON_KVCACHE_TRANSPORT_SLICE_COPY_AVX2_H_
#define BATON_KVCACHE_TRANSPORT_SLICE_COPY_AVX2_H_

#include <cstddef>
#include <cstdint>

namespace baton::kv::internal {

// CopyAndChecksum for pointers at multiples of 32 and a `size_bytes` that is a multiple of 64, at
// least 256.
uint64_t CopyAndChecksumAvx2(std::byte* dest, const std::byte* source, size_t size_bytes);

}  // namespace baton::kv::internal

#endif  // BATON_KVCACHE_TRANSPORT_SLICE_COPY_AVX2_H_
