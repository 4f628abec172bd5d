// KV slices between scattered blocks and staging, each with its XXH3-64.
//
// Work: one cta of 256 threads a slice. A thread takes 16 bytes (two of the hash's eight lanes) of
// a stripe, with four loads under way. So a pass is 4 KiB and a round 16 KiB. A warp adds its eight
// stripes by shuffles. Eight threads then follow the hash's chain over the round's KiB while the
// others load the next round. Bytes: gather 2 a byte of slice; scatter 2, and one more from L2,
// since it hashes before it writes. Integer operations: 1.1 a byte. Limit: memory. Where ranks
// share a slice (KvSide), kernels of their own look up each 16 bytes. That is a division a side:
// KvGather has 888 instructions for 600 (sm_90a). Their limit is the links to the other ranks.
// Reached: kernels/NOTES.md.
#include "kernels/cuda/kernel_table.h"
#include "kernels/simt/device.h"
#include "kernels/simt/newer_ctas.h"

namespace baton::kernels::cuda {
inline namespace BATON_BODY {
namespace {

using kv::IsKvSliceOfRanks;
using kv::IsKvSliceSize;
using kv::kMaxKvRanks;
using kv::KvSide;
using kv::KvSlicePlace;
using kv::KvSlicesParams;
using kv::kXxh3LastKeys;
using kv::kXxh3MergeKeys;
using simt::Vec16;

constexpr uint32_t kKvThreads = 256;
constexpr uint32_t kLanes = 8;         // accumulators of XXH3, 64 bits each
constexpr uint32_t kStripeVecs = 4;    // 64 bytes
constexpr uint32_t kStripesAKib = 16;  // between two scrambles
constexpr uint32_t kKibVecs = kStripeVecs * kStripesAKib;
constexpr uint32_t kPassKib = kKvThreads / kKibVecs;
constexpr uint32_t kPasses = 4;
constexpr uint32_t kRoundKib = kPassKib * kPasses;
constexpr uint32_t kRoundVecs = kRoundKib * kKibVecs;
static_assert(kKibVecs == 2 * simt::kWarpSize, "two warps add up one KiB");

constexpr uint64_t kPrime32a = 0x9E3779B1u;
constexpr uint64_t kPrime32b = 0x85EBCA77u;
constexpr uint64_t kPrime32c = 0xC2B2AE3Du;
constexpr uint64_t kPrime64a = 0x9E3779B185EBCA87ull;
constexpr uint64_t kPrime64b = 0xC2B2AE3D27D4EB4Full;
constexpr uint64_t kPrime64c = 0x165667B19E3779F9ull;
constexpr uint64_t kPrime64d = 0x85EBCA77C2B2AE63ull;
constexpr uint64_t kPrime64e = 0x27D4EB2F165667C5ull;
constexpr uint64_t kAvalanche = 0x165667919E3779F9ull;

// Shared memory of a cta: the sums of two rounds, by KiB and warp, and the accumulators at the end.
struct KvShared {
  uint64_t sums[2][kRoundKib][2][kLanes];
  uint64_t accumulators[kLanes];
  uint64_t hash;
};

// Two neighbouring lanes of the hash.
struct LanePair {
  uint64_t even;
  uint64_t odd;
};

// One slice at one side, all of it in one memory.
struct WholeSlice {
  Vec16* begin;

  BATON_DEVICE WholeSlice(const KvSide& side, uint64_t offset, uint32_t /*num_vecs*/)
      : begin(reinterpret_cast<Vec16*>(side.ranks[0] + offset)) {}
  BATON_DEVICE Vec16* At(uint32_t at) const { return begin + at; }
};

// One slice at one side, divided among the memories of ranks, or in that of one rank. Each memory
// has K of its rank's heads, and then V of them.
struct DividedSlice {
  const KvSide& side;
  uint64_t offset;      // in each memory
  uint32_t piece_vecs;  // of K, or V, of one rank's heads

  BATON_DEVICE DividedSlice(const KvSide& of, uint64_t from, uint32_t num_vecs)
      : side(of), offset(from), piece_vecs(num_vecs / (2 * of.num_ranks)) {}
  BATON_DEVICE Vec16* At(uint32_t at) const {
    const uint32_t piece = at / piece_vecs;  // [K|V][rank]
    const bool is_value = piece >= side.num_ranks;
    const uint32_t rank = piece - (is_value ? side.num_ranks : 0);
    return reinterpret_cast<Vec16*>(side.ranks[rank] + offset) + at - piece * piece_vecs +
           (is_value ? piece_vecs : 0);
  }
};

// One slice on its way.
template <typename Slice>
struct Move {
  Slice from;
  Slice to;
  const uint64_t* keys;
  uint32_t num_vecs;
};

BATON_DEVICE uint64_t StartOfLane(uint32_t lane) {
  switch (lane) {
    case 0:
      return kPrime32c;
    case 1:
      return kPrime64a;
    case 2:
      return kPrime64b;
    case 3:
      return kPrime64c;
    case 4:
      return kPrime64d;
    case 5:
      return kPrime32b;
    case 6:
      return kPrime64e;
    default:
      return kPrime32a;
  }
}

BATON_DEVICE uint64_t LowTimesHigh(uint64_t x) { return (x & 0xFFFFFFFFu) * (x >> 32); }

// The terms that 16 bytes of a stripe add to their two lanes.
BATON_DEVICE LanePair Terms(const Vec16& v, const LanePair& keys) {
  const uint64_t even = v.words[0] | uint64_t{v.words[1]} << 32;
  const uint64_t odd = v.words[2] | uint64_t{v.words[3]} << 32;
  return {odd + LowTimesHigh(even ^ keys.even), even + LowTimesHigh(odd ^ keys.odd)};
}

BATON_DEVICE uint64_t Exchanged(uint64_t value, uint32_t lane_mask) {
  const uint32_t low = simt::shfl_xor(static_cast<uint32_t>(value), lane_mask);
  const uint32_t high = simt::shfl_xor(static_cast<uint32_t>(value >> 32), lane_mask);
  return low | uint64_t{high} << 32;
}

// The sum over the warp's eight stripes. All lanes call it.
BATON_DEVICE LanePair SumOfStripes(LanePair terms) {
  BATON_UNROLL
  for (uint32_t step = kStripeVecs; step < simt::kWarpSize; step *= 2) {
    terms.even += Exchanged(terms.even, step);
    terms.odd += Exchanged(terms.odd, step);
  }
  return terms;
}

BATON_DEVICE uint64_t Scramble(uint64_t accumulator, uint64_t key) {
  return (accumulator ^ accumulator >> 47 ^ key) * kPrime32a;
}

// Low and high half of the product, exclusive-ored.
BATON_DEVICE uint64_t FoldedProduct(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

BATON_DEVICE uint64_t Merge(const uint64_t* accumulators, const uint64_t* keys, uint64_t size) {
  uint64_t hash = size * kPrime64a;
  BATON_UNROLL
  for (uint32_t i = 0; i < kLanes; i += 2) {
    hash += FoldedProduct(accumulators[i] ^ keys[kXxh3MergeKeys + i],
                          accumulators[i + 1] ^ keys[kXxh3MergeKeys + i + 1]);
  }
  hash = (hash ^ hash >> 37) * kAvalanche;
  return hash ^ hash >> 32;
}

// One round: copies if asked to, and leaves the sums of its KiB in `sums`.
template <bool kStores, typename Slice>
BATON_DEVICE void AddRound(const Move<Slice>& move, uint32_t round, uint64_t (*sums)[2][kLanes]) {
  const uint32_t quad = simt::thread() % kStripeVecs;
  const uint32_t stripe = simt::thread() / kStripeVecs % kStripesAKib;
  const LanePair keys = {move.keys[stripe + 2 * quad], move.keys[stripe + 2 * quad + 1]};
  BATON_UNROLL
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    const uint32_t at = round * kRoundVecs + pass * kKvThreads + simt::thread();
    LanePair terms = {0, 0};
    if (simt::guard(at < move.num_vecs)) {
      const Vec16 v = *move.from.At(at);
      if (kStores) *move.to.At(at) = v;
      // The last stripe has keys of its own.
      const bool is_last = simt::guard(at + kStripeVecs - quad == move.num_vecs);
      terms = Terms(v, is_last ? LanePair{move.keys[kXxh3LastKeys + 2 * quad],
                                          move.keys[kXxh3LastKeys + 2 * quad + 1]}
                               : keys);
    }
    terms = SumOfStripes(terms);
    if (simt::lane() < kStripeVecs) {
      uint64_t* sum = sums[pass * kPassKib + simt::thread() / kKibVecs][simt::warp() % 2];
      sum[2 * quad] = terms.even;
      sum[2 * quad + 1] = terms.odd;
    }
  }
}

// The chain of one lane over a round's KiB; the last KiB of a slice is not scrambled.
template <typename Slice>
BATON_DEVICE uint64_t FollowRound(const Move<Slice>& move, uint32_t round, uint64_t accumulator,
                                  const uint64_t (*sums)[2][kLanes]) {
  const uint32_t lane = simt::thread();
  const uint32_t num_kib = (move.num_vecs + kKibVecs - 1) / kKibVecs;
  const uint64_t key = move.keys[kStripesAKib + lane];
  for (uint32_t i = 0; i < kRoundKib && round * kRoundKib + i < num_kib; ++i) {
    accumulator += sums[i][0][lane] + sums[i][1][lane];
    const bool is_last = round * kRoundKib + i + 1 == num_kib;
    if (simt::guard(!is_last)) accumulator = Scramble(accumulator, key);
  }
  return accumulator;
}

// The slice's checksum, known to all threads of the cta.
template <bool kStores, typename Slice>
BATON_DEVICE uint64_t HashSlice(const Move<Slice>& move) {
  auto& shared = simt::shared<KvShared>();
  const uint32_t num_rounds = (move.num_vecs + kRoundVecs - 1) / kRoundVecs;
  uint64_t accumulator = StartOfLane(simt::thread());
  for (uint32_t round = 0; round < num_rounds; ++round) {
    auto* const sums = shared.sums[round % 2];
    AddRound<kStores>(move, round, sums);
    // After the next barrier nobody reads these sums any more.
    simt::sync_block();
    if (simt::thread() < kLanes) accumulator = FollowRound(move, round, accumulator, sums);
  }
  if (simt::thread() < kLanes) shared.accumulators[simt::thread()] = accumulator;
  simt::sync_block();
  if (simt::thread() == 0) {
    shared.hash = Merge(shared.accumulators, move.keys, uint64_t{move.num_vecs} * sizeof(Vec16));
  }
  simt::sync_block();
  return shared.hash;
}

// The move of the cta's slice, in the direction of each kernel.
template <typename Slice>
BATON_DEVICE Move<Slice> MoveOf(const KvSlicesParams& params, bool is_gather) {
  const KvSlicePlace place = params.places[simt::block().x];
  const uint32_t num_vecs = params.slice_bytes / static_cast<uint32_t>(sizeof(Vec16));
  const Slice blocks(params.blocks, place.block_offset, num_vecs);
  const Slice staging(params.staging, place.staging_offset, num_vecs);
  return {is_gather ? blocks : staging, is_gather ? staging : blocks, params.keys, num_vecs};
}

template <typename Slice>
BATON_DEVICE void GatherSlice(const KvSlicesParams& params) {
  const uint64_t hash = HashSlice<true>(MoveOf<Slice>(params, true));
  if (simt::thread() == 0) params.checksums[simt::block().x] = hash;
}

template <typename Slice>
BATON_DEVICE void ScatterSlice(const KvSlicesParams& params) {
  const auto move = MoveOf<Slice>(params, false);
  const uint64_t hash = HashSlice<false>(move);
  const uint32_t slice = simt::block().x;
  if (simt::thread() == 0) params.checksums[slice] = hash;
  // A slice with other bytes than the sender hashed never reaches a block.
  if (simt::guard(hash != params.expected[slice])) return;
  for (uint32_t at = simt::thread(); at < move.num_vecs; at += kKvThreads) {
    *move.to.At(at) = *move.from.At(at);
  }
}

BATON_KERNEL(kKvThreads) KvGatherKernel(BATON_MAP_PARAM KvSlicesParams params) {
  GatherSlice<WholeSlice>(params);
}
BATON_KERNEL(kKvThreads) KvGatherRanksKernel(BATON_MAP_PARAM KvSlicesParams params) {
  GatherSlice<DividedSlice>(params);
}
// Eight would fit, with 32 registers each.
BATON_KERNEL_NEWER(kKvThreads, 6) KvScatterKernel(BATON_MAP_PARAM KvSlicesParams params) {
  ScatterSlice<WholeSlice>(params);
}
BATON_KERNEL(kKvThreads) KvScatterRanksKernel(BATON_MAP_PARAM KvSlicesParams params) {
  ScatterSlice<DividedSlice>(params);
}

absl::Status CheckSlices(const char* kernel, const KvSlicesParams& params) {
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(std::string(kernel) + ": slices of " +
                                      std::to_string(params.slice_bytes) + " bytes " + why);
  };
  if (!IsKvSliceSize(params.slice_bytes)) return refuse("are no multiple of 64 in [256, 64 MiB]");
  for (const uint32_t num_ranks : {params.blocks.num_ranks, params.staging.num_ranks}) {
    if (num_ranks >= 1 && num_ranks <= kMaxKvRanks &&
        IsKvSliceOfRanks(params.slice_bytes, num_ranks)) {
      continue;
    }
    return refuse("of " + std::to_string(num_ranks) +
                  " ranks are no multiple of 32 for each of 1 to 8");
  }
  return absl::OkStatus();
}

// `whole` where each side is one memory, `divided` otherwise.
absl::Status LaunchSlices(const char* name, const KvSlicesParams& params, void* stream,
                          void (*whole)(KvSlicesParams), void (*divided)(KvSlicesParams)) {
  if (absl::Status status = CheckSlices(name, params); !status.ok()) return status;
  if (params.num_slices == 0) return absl::OkStatus();
  const bool is_whole = params.blocks.num_ranks == 1 && params.staging.num_ranks == 1;
  return simt::launch({.name = name,
                       .grid = {params.num_slices, 1, 1},
                       .num_threads = kKvThreads,
                       .shared_bytes = sizeof(KvShared),
                       .stream = stream},
                      is_whole ? whole : divided, params);
}

}  // namespace

const KernelInfo kKvSlicesInfos[4] = {{"KvGatherKernel", kKvThreads, sizeof(KvShared)},
                                      {"KvGatherRanksKernel", kKvThreads, sizeof(KvShared)},
                                      {"KvScatterKernel", kKvThreads, sizeof(KvShared)},
                                      {"KvScatterRanksKernel", kKvThreads, sizeof(KvShared)}};

absl::Status KvGather(const KvSlicesParams& params, void* stream) {
  return LaunchSlices("KvGather", params, stream, KvGatherKernel, KvGatherRanksKernel);
}

absl::Status KvScatter(const KvSlicesParams& params, void* stream) {
  return LaunchSlices("KvScatter", params, stream, KvScatterKernel, KvScatterRanksKernel);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::cuda
