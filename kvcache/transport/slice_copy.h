// The checksum of a slice, and the one pass that copies and checks it. Pure; any thread.
#ifndef BATON_KVCACHE_TRANSPORT_SLICE_COPY_H_
#define BATON_KVCACHE_TRANSPORT_SLICE_COPY_H_

#include <cstddef>
#include <cstdint>

namespace baton::kv {

// XXH3-64, seed 0, of one (block, layer) slice. The prefill worker calls it when it seals, the
// decode worker after it received.
uint64_t SliceChecksum(const std::byte* data, size_t size_bytes);

// Copies and returns the checksum of what was *written*: `source` may change meanwhile (another
// process owns it), so the bytes hashed are the bytes kept. The ranges do not overlap.
uint64_t CopyAndChecksum(std::byte* dest, const std::byte* source, size_t size_bytes);

}  // namespace baton::kv

#endif  // BATON_KVCACHE_TRANSPORT_SLICE_COPY_H_
