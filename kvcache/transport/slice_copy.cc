#include "kvcache/transport/slice_copy.h"

#include <algorithm>
#include <cstring>

#include "kvcache/transport/slice_copy_avx2.h"
#include "src/base/instruction_sets.h"
#include "src/base/xxh3.h"

namespace baton::kv {
namespace {

// Copied pieces are hashed while they are in the first-level cache: 8 KiB of 32 KiB. 2 KiB pieces
// were 1.6 times slower (store forwarding into the hash), whole slices equal (Zen 3).
constexpr size_t kPieceBytes = 8192;
// Below this XXH3 takes another path (240 bytes and less).
constexpr size_t kMinFusedBytes = 256;

uint64_t CopyAndChecksumPortable(std::byte* dest, const std::byte* source, size_t size_bytes) {
  thread_local Xxh3Stream stream;
  stream.Reset();
  for (size_t offset = 0; offset < size_bytes; offset += kPieceBytes) {
    const size_t piece = std::min(kPieceBytes, size_bytes - offset);
    std::memcpy(dest + offset, source + offset, piece);
    stream.Update(dest + offset, piece);
  }
  return stream.Digest64();
}

bool IsAligned(const std::byte* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 32 == 0; }

}  // namespace

uint64_t SliceChecksum(const std::byte* data, size_t size_bytes) {
  return Xxh3Hash64(data, size_bytes);
}

uint64_t CopyAndChecksum(std::byte* dest, const std::byte* source, size_t size_bytes) {
  static const bool has_avx2 = RunsAvx2();
  if (has_avx2 && size_bytes >= kMinFusedBytes && size_bytes % 64 == 0 && IsAligned(dest) &&
      IsAligned(source)) {
    return internal::CopyAndChecksumAvx2(dest, source, size_bytes);
  }
  return CopyAndChecksumPortable(dest, source, size_bytes);
}

}  // namespace baton::kv
