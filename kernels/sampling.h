// The arithmetic of choosing a token that the processor's sampler (src/model/sampler.h, which
// defines the order of operations) and the kernel that chooses on a device share bit for bit.
// Sums of probabilities are integers, so that no order of adding them matters. Pure; any thread.
#ifndef BATON_KERNELS_SAMPLING_H_
#define BATON_KERNELS_SAMPLING_H_

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <string_view>

#include "kernels/math.h"
#include "src/base/philox.h"

namespace baton::kernels {

// Names the random function and every rule that decides which token is chosen, here and in
// src/model/sampler.cc; part of numerics_id. A change of any token or log-probability takes
// another.
inline constexpr std::string_view kSamplingRules = "gumbel64.3";

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// How the token of one row of logits is chosen, where nothing but the logits is needed: no
// penalty, bias or mask.
struct RowSampling {
  uint64_t seed = 0;          // key of the random function
  float temperature = 0;      // 0 = greedy, else positive
  float top_p = 1;            // [0, 1]; 1 = off
  float min_p = 0;            // [0, 1]; 0 = off
  uint32_t top_k = 0;         // 0 = off
  uint32_t output_index = 0;  // with `choice`: which random numbers
  uint32_t choice = 0;
  uint32_t on_device = 0;  // 0: not to be chosen there; nothing else counts
};

// Ascends with l; equal for the two zeros. A NaN is as -infinity.
constexpr uint32_t OrderOf(float l) {
  const uint32_t bits = std::bit_cast<uint32_t>((l == l ? l : kMinusInfinity) + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The l of an order that some l has.
constexpr float ValueOfOrder(uint32_t order) {
  return std::bit_cast<float>((order >> 31) != 0 ? order & 0x7FFFFFFFu : ~order);
}

// Tokens by descending l, then ascending id, have descending ranks; no two are equal.
constexpr uint64_t RankOf(float l, uint32_t token) { return uint64_t{OrderOf(l)} << 32 | ~token; }
constexpr uint32_t TokenOfRank(uint64_t rank) { return ~static_cast<uint32_t>(rank); }
// Every finite l has a higher rank, -infinity and NaN have a lower one.
inline constexpr uint64_t kLowestRank = uint64_t{OrderOf(kMinusInfinity) + 1} << 32;

// The probability of l relative to that of the largest, which is exactly 1.
constexpr float RelativeWeight(float l, float largest) {
  const float e = l == largest ? 1.0f : Exp(l - largest);
  return e == e ? e : 0.0f;
}

// A relative weight in units of 2^-40, truncated: a vocabulary's sum is below 2^63.
constexpr uint64_t UnitsOfWeight(float weight) {
  return static_cast<uint64_t>(static_cast<int64_t>(weight * 1099511627776.0f));
}

// Nothing further below the largest weighs a unit: e^-28 < 2^-40.
inline constexpr float kDeepest = 28.0f;

// UnitsOfWeight(RelativeWeight(l, largest)) of distance = largest - l in [0, kDeepest], for which
// all products with powers of two are exact: fewer instructions.
constexpr uint64_t UnitsOfDistance(float distance) {
  const ExpParts parts = SplitExp(-distance);
  const float scale = std::bit_cast<float>(static_cast<uint32_t>(parts.power + 127 + 40) << 23);
  return static_cast<uint64_t>(static_cast<int64_t>(parts.fraction * scale));
}

// The least sum that reaches top_p in [0, 1] of `total` < 2^63; at least 1.
constexpr uint64_t UnitsOfTopP(uint64_t total, float top_p) {
  const double share = static_cast<double>(static_cast<int64_t>(total)) * double{top_p};
  const auto whole = static_cast<int64_t>(share);
  const auto units = static_cast<uint64_t>(whole + (static_cast<double>(whole) < share ? 1 : 0));
  return units > 1 ? units : 1;
}

// Whether min_p keeps a token of this relative weight.
constexpr bool KeptByMinP(float weight, float min_p) { return !(weight < min_p); }

// -log(-log(1 - u)) with u = (word + 0.5) * 2^-32; see sampler.h. Between -2.9 and 22.9.
constexpr float GumbelFromWord(uint32_t word) {
  // Halves first: a signed conversion is one instruction in every vector set. For words >= 2^24 the
  // lowest bits are below the precision of fp32 anyway.
  const float high = static_cast<float>(static_cast<int32_t>(word >> 8)) * 256.0f;
  const float low = static_cast<float>(static_cast<int32_t>(word & 0xFFu)) + 0.5f;
  const float u = (high + low) * 2.3283064365386963e-10f;
  // 1 - u has an absolute error of 2^-25; below 2^-5 the series is exact to fp32.
  const float series =
      u * (1.0f + u * (0.5f + u * (1.0f / 3.0f + u * (0.25f + u * (0.2f + u * (1.0f / 6.0f))))));
  // u can round up to 1; the largest fp32 below 1 keeps the logarithm finite.
  const float rest = 1.0f - u;
  const float direct = -Log(rest > 5.9604645e-8f ? rest : 5.9604645e-8f);
  return -Log(u < 0.03125f ? series : direct);
}

// At least GumbelFromWord, which is at most -log(u): one conversion, no logarithm.
constexpr float GumbelBound(uint32_t word) {
  // Halved for a signed conversion, which may round up to a power of two, hence the margin.
  const float half = static_cast<float>(static_cast<int32_t>(word >> 1));
  const auto exponent = static_cast<int32_t>(std::bit_cast<uint32_t>(half) >> 23);
  return 0.6931472f * static_cast<float>(158 - exponent) + 0.01f;
}

// The inputs of the random function of one position.
struct GumbelKey {
  PhiloxKey key;
  uint32_t output_index;
  uint32_t choice;
};

// One call of Philox4x32-10 with the counter (output index, choice, call, 0) serves four tokens:
// word k of call 16 b + j is that of token 64 b + 16 k + j, so that sixteen calls give the words of
// 64 consecutive tokens.
inline constexpr uint32_t kGumbelBlock = 64;
inline constexpr uint32_t kGumbelCalls = kGumbelBlock / 4;

constexpr std::array<uint32_t, 4> GumbelWords(const GumbelKey& key, uint32_t call) {
  return Philox4x32({key.output_index, key.choice, call, 0}, key.key);
}

constexpr float GumbelAt(const GumbelKey& key, uint32_t token) {
  const uint32_t call = token / kGumbelBlock * kGumbelCalls + token % kGumbelCalls;
  const std::array<uint32_t, 4> words = GumbelWords(key, call);
  const uint32_t k = token % kGumbelBlock / kGumbelCalls;
  // No index that is known at run time only: a device has no such registers.
  const uint32_t low = k == 0 ? words[0] : words[1];
  const uint32_t high = k == 2 ? words[2] : words[3];
  return GumbelFromWord(k < 2 ? low : high);
}

}  // namespace baton::kernels

#endif  // BATON_KERNELS_SAMPLING_H_
