#include "kvcache/kv_slices.h"

namespace baton::kv {
namespace {

// XXH3's default secret, as little-endian words.
constexpr uint64_t kSecret[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};

// Eight bytes from `offset` on, which need not be a multiple of 8.
constexpr uint64_t SecretAt(uint32_t offset) {
  const uint32_t word = offset / 8;
  const uint32_t shift = offset % 8 * 8;
  if (shift == 0) return kSecret[word];
  return kSecret[word] >> shift | kSecret[word + 1] << (64 - shift);
}

}  // namespace

std::array<uint64_t, kXxh3NumKeys> Xxh3Keys() {
  std::array<uint64_t, kXxh3NumKeys> keys{};
  for (uint32_t i = 0; i < kXxh3LastKeys; ++i) keys[i] = kSecret[i];
  for (uint32_t i = 0; i < 8; ++i) keys[kXxh3LastKeys + i] = SecretAt(121 + 8 * i);
  for (uint32_t i = 0; i < 8; ++i) keys[kXxh3MergeKeys + i] = SecretAt(11 + 8 * i);
  return keys;
}

}  // namespace baton::kv
