#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/math.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/mma_vectors.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/word_check.h"
#include "tests/kernels/simt/overlap_kernels.h"
#include "tests/test_seed.h"

namespace baton::kernels::gpu_check {
namespace {

uint32_t InputWord(uint32_t i) { return 7 * i + 1; }

std::vector<uint32_t> InputWords(uint32_t count) {
  std::vector<uint32_t> words(count);
  for (uint32_t i = 0; i < count; ++i) words[i] = InputWord(i);
  return words;
}

uint32_t SumOf(uint32_t first, uint32_t end) {
  uint32_t sum = 0;
  for (uint32_t i = first; i < end; ++i) sum += InputWord(i);
  return sum;
}

// in and expected from functions of the index; `out` starts as poison.
template <typename Expected>
WordCheck FromIndex(std::string name, Launch launch, uint32_t num_in, uint32_t num_out,
                    const Expected& expected) {
  WordCheck check{.name = std::move(name), .launch = launch, .in = InputWords(num_in)};
  check.out.assign(num_out, 0xDEADBEEF);
  for (uint32_t i = 0; i < num_out; ++i) check.expected.push_back(expected(i));
  return check;
}

std::vector<WordCheck> WarpChecks(const Primitives& p) {
  std::vector<WordCheck> checks;
  checks.push_back(FromIndex(
      "shfl_xor", p.shuffle, kShuffleThreads, kNumShuffles * kShuffleThreads, [](uint32_t i) {
        return InputWord(i % kShuffleThreads ^ ShuffleMask(i / kShuffleThreads));
      }));
  checks.push_back(
      FromIndex("sync_warp", p.warp_reverse, 32, 32, [](uint32_t i) { return InputWord(31 - i); }));
  constexpr uint32_t kCtas = 7;
  checks.push_back(FromIndex(
      "sync_block", p.block_reduce, kCtas * simt_test::kReduceThreads, kCtas, [](uint32_t i) {
        return SumOf(i * simt_test::kReduceThreads, (i + 1) * simt_test::kReduceThreads);
      }));
  checks.back().num_ctas = kCtas;
  // out[lane][matrix]: the pair at row lane / 4, columns 2 (lane % 4), whose row is given by lane
  // 8 matrix + row.
  checks.push_back(FromIndex("ldmatrix_x4", p.ldmatrix, 128, 128, [](uint32_t i) {
    const uint32_t named = (5 * (i % 4 * 8 + i / 4 / 4) + 3) % 32;
    return InputWord(4 * named + i / 4 % 4);
  }));
  // Element e of the 256 holds e. out[lane][matrix]: rows 2 (lane % 4) and + 1 of column lane / 4.
  checks.push_back(FromIndex("ldmatrix_x4_trans", p.ldmatrix_trans, 128, 128, [](uint32_t i) {
    const uint32_t first = 64 * (i % 4) + 16 * (i / 4 % 4) + i / 4 / 4;
    return first | (first + 8) << 16;
  }));
  for (uint32_t i = 0; i < 128; ++i) checks.back().in[i] = 2 * i | (2 * i + 1) << 16;
  return checks;
}

std::vector<WordCheck> CopyChecks(const Primitives& p) {
  std::vector<WordCheck> checks;
  checks.push_back(FromIndex(
      "cp_async16 partial", p.cp_async, 8 * kCopyThreads, 8 * kCopyThreads, [](uint32_t i) {
        const uint32_t group = i / 4 / kCopyThreads;
        const uint32_t from = (i / 4 % kCopyThreads + 1) % kCopyThreads;
        const uint32_t valid = (5 * from + 3 * group) % 17;
        const uint32_t word = InputWord((group * kCopyThreads + from) * 4 + i % 4);
        const uint32_t bytes = valid > i % 4 * 4 ? std::min(valid - i % 4 * 4, 4u) : 0;
        return bytes == 4 ? word : word & ((1u << 8 * bytes) - 1);
      }));
  checks.push_back(FromIndex("cp_async16 pipeline", p.cp_async_pipeline, 1021, 1021,
                             [](uint32_t i) { return 3 * InputWord(i); }));
  checks.back().count = 1021;
  constexpr uint32_t kTiles = 7;
  checks.push_back(FromIndex("mbarrier, bulk_copy", p.bulk_ring, 64 * kTiles, 64 * kTiles,
                             [](uint32_t i) { return InputWord(i) + 1; }));
  checks.back().count = kTiles;
  checks.back().hopper_only = true;
  return checks;
}

std::vector<WordCheck> AtomicChecks(const Primitives& p) {
  std::vector<WordCheck> checks;
  constexpr uint32_t kAll = kAtomicCtas * kAtomicThreads;
  checks.push_back(FromIndex("atomics", p.atomics, kAll, 8 + 2 * kAll, [](uint32_t i) {
    if (i == 0) return kAll;
    if (i == 1) return InputWord(kAll - 1);
    if (i == 2) return SumOf(0, kAll);
    const uint64_t sum64 = uint64_t{SumOf(0, kAll)} << 20;
    if (i == 4) return static_cast<uint32_t>(sum64);
    if (i == 5) return static_cast<uint32_t>(sum64 >> 32);
    if (i < 8) return 0u;
    return i < 8 + kAll ? i - 8 + 7 : 0u;
  }));
  checks.back().out.assign(8 + 2 * kAll, 0);
  checks.push_back(
      FromIndex("fence, last cta", p.last_cta, 1009, 1, [](uint32_t) { return SumOf(0, 1009); }));
  checks.back().count = 1009;
  checks.push_back(
      FromIndex("store_release", p.message, 32, 32, [](uint32_t i) { return 3 * InputWord(i); }));
  constexpr uint32_t kCtas = 9;
  checks.push_back(FromIndex("load_acquire, grid", p.grid_barrier, kCtas, kCtas,
                             [](uint32_t) { return SumOf(0, kCtas); }));
  checks.back().num_ctas = kCtas;
  return checks;
}

// Every upper half of a float with the lower halves at which rounding turns; all fields.
std::vector<WordCheck> RoundingChecks(const Primitives& p, bool is_tiny) {
  WordCheck check{.name = "to_bf16, from_bf16", .launch = p.to_bf16};
  for (uint32_t upper = 0; upper < 65536; upper += is_tiny ? 251 : 1) {
    for (const uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const uint32_t word = upper << 16 | lower;
      check.in.push_back(word);
      const uint32_t rounded = Bf16FromFloat(std::bit_cast<float>(word));
      const float exact = FloatFromBf16(static_cast<uint16_t>(upper));
      check.expected.push_back(rounded | uint32_t{Bf16FromFloat(exact)} << 16);
    }
  }
  check.count = static_cast<uint32_t>(check.in.size());
  check.out.assign(check.in.size(), 0);
  return {check};
}

// Every finite half, as the lower half of floats of all exponents.
std::vector<WordCheck> HalfChecks(const Primitives& p, bool is_tiny) {
  WordCheck check{.name = "from_half, pack_bf16, and_or", .launch = p.half};
  TestRandom random(12);
  for (uint32_t half = 0; half < 65536; half += is_tiny ? 127 : 1) {
    const uint32_t word = random.Below(1u << 16) << 16 | half;
    const bool is_finite = (half & 0x7C00u) != 0x7C00u && (word & 0x7F800000u) != 0x7F800000u;
    if (!is_finite) continue;
    check.in.push_back(word);
    check.expected.push_back(std::bit_cast<uint32_t>(FloatFromHalf(static_cast<uint16_t>(half))));
    check.expected.push_back(Bf16FromFloat(std::bit_cast<float>(word)) |
                             uint32_t{Bf16FromFloat(std::bit_cast<float>(word ^ 0x80000001u))}
                                 << 16);
    check.expected.push_back((word & 0x007F8000u) | 0x43000000u);
  }
  check.count = static_cast<uint32_t>(check.in.size());
  check.out.assign(check.expected.size(), 0);
  return {check};
}

uint32_t ProductOfPairs(uint32_t a, uint32_t b) {
  uint32_t pair = 0;
  for (uint32_t shift = 0; shift < 32; shift += 16) {
    const float product = FloatFromBf16(static_cast<uint16_t>(a >> shift)) *
                          FloatFromBf16(static_cast<uint16_t>(b >> shift));
    pair |= (std::isnan(product) ? 0x7FFFu : uint32_t{Bf16FromFloat(product)}) << shift;
  }
  return pair;
}

// Codes of fp8 KV times scales, as kernels/cuda/kv_fp8.h needs them exact, subnormals included; any
// bf16; and the floats at which rounding to e4m3 turns, of both signs.
std::vector<WordCheck> Fp8Checks(const Primitives& p, bool is_tiny) {
  WordCheck check{.name = "mul_bf16x2, to_e4m3x2", .launch = p.fp8};
  const auto add = [&check](uint32_t a, uint32_t b) {
    check.in.push_back(a);
    check.in.push_back(b);
    check.expected.push_back(ProductOfPairs(a, b));
    check.expected.push_back(E4m3FromFloat(std::bit_cast<float>(a)) |
                             uint32_t{E4m3FromFloat(std::bit_cast<float>(b))} << 8);
  };
  for (uint32_t code = 0; code < 0x7F; ++code) {
    for (uint32_t exponent = 0; exponent < 255; exponent += is_tiny ? 41 : 1) {
      add(code << 4 | (code << 4 | 0x8000u) << 16, exponent << 7 | exponent << 23);
    }
    const double low = FloatFromE4m3(static_cast<uint8_t>(code));
    const double high = code == 0x7E ? 480.0 : FloatFromE4m3(static_cast<uint8_t>(code + 1));
    const auto middle = std::bit_cast<uint32_t>(static_cast<float>((low + high) / 2));
    for (const uint32_t bits : {middle - 1, middle, middle + 1}) add(bits, bits | 0x80000000u);
  }
  TestRandom random(13);
  for (uint32_t i = 0; i < (is_tiny ? 256u : 65536u); ++i) {
    add(static_cast<uint32_t>(random.Next()), static_cast<uint32_t>(random.Next()));
  }
  check.count = static_cast<uint32_t>(check.in.size() / 2);
  check.out.assign(check.expected.size(), 0xDEADBEEF);
  return {check};
}

std::vector<WordCheck> ArithmeticChecks(const Primitives& p, bool is_tiny) {
  WordCheck check{.name = "fma, sqrt, /, Exp, *+, larger", .launch = p.arithmetic, .any_nan = true};
  TestRandom random(11);
  check.count = is_tiny ? 512 : 65536;
  for (uint32_t i = 0; i < check.count; ++i) {
    float values[4];
    for (float& value : values) {
      // Half near one, where sums cancel and Exp is not 0 or infinity; half any bits.
      const auto bits = static_cast<uint32_t>(random.Next());
      value = std::bit_cast<float>(i % 2 == 0 ? bits : (bits & 0x83FFFFFFu) | 0x3C000000u);
      check.in.push_back(std::bit_cast<uint32_t>(value));
    }
    const float a = values[0];
    const float b = values[1];
    const float product = a * b;
    const float larger = std::isnan(a) || std::isnan(b) ? a + b : std::fmax(a, b);
    for (const float result : {std::fma(a, b, values[2]), std::sqrt(a), a / b, Exp(a),
                               product + values[2], larger, std::fmin(a, b)}) {
      check.expected.push_back(std::bit_cast<uint32_t>(result));
    }
  }
  check.out.assign(check.expected.size(), 0);
  return {check};
}

// Sums that each launch takes up where the one before it left them.
std::vector<WordCheck> OverlapChecks(const Primitives& p, bool is_tiny) {
  const uint32_t num_ctas = is_tiny ? 3 : 1000;
  const uint32_t num_words = num_ctas * simt_test::kOverlapThreads;
  const uint32_t times = is_tiny ? 4 : 100;
  WordCheck check = FromIndex("wait_for_previous", p.overlap, num_words, num_words,
                              [times](uint32_t i) { return times * InputWord(i); });
  check.num_ctas = num_ctas;
  check.count = times;
  check.out.assign(num_words, 0);
  return {check};
}

// By the model of the GPU at hand; where none is known, Hopper's, which then judges nothing.
std::vector<WordCheck> MmaChecks(const Primitives& p, const StageInput& input) {
  const auto core = simt::TensorCoreOf(input.major).value_or(simt::TensorCore::kHopper);
  std::vector<WordCheck> checks;
  for (const MmaKind kind : kMmaKinds) {
    WordCheck check{.name = std::string("mma ") + MmaKindName(kind), .launch = p.mma};
    check.num_ctas = input.is_tiny ? 2 : 32;
    const uint64_t seed = 1 + static_cast<uint64_t>(kind);
    check.in = MmaInputs(kind, check.num_ctas, seed);
    check.drawn = fmt::format("MmaInputs({}, {}, {})", MmaKindName(kind), check.num_ctas, seed);
    check.expected = MmaModel(core, check.in);
    check.out.assign(check.expected.size(), 0xDEADBEEF);
    check.is_mma = true;
    WordCheck exchanged = check;
    exchanged.name += " exchanged";
    exchanged.in = MmaExchanged(check.in);
    exchanged.drawn = fmt::format("MmaExchanged({})", check.drawn);
    exchanged.expected = ExchangedModel(check.expected, MmaModel(core, exchanged.in));
    checks.push_back(std::move(check));
    checks.push_back(std::move(exchanged));
  }
  return checks;
}

}  // namespace

absl::Status CheckPrimitives(const StageInput& input, Report& report) {
  const Primitives& p = input.body.primitives();
  for (const auto& group :
       {WarpChecks(p), CopyChecks(p), AtomicChecks(p), RoundingChecks(p, input.is_tiny),
        HalfChecks(p, input.is_tiny), Fp8Checks(p, input.is_tiny),
        ArithmeticChecks(p, input.is_tiny), OverlapChecks(p, input.is_tiny), MmaChecks(p, input)}) {
    for (const WordCheck& check : group) {
      BATON_RETURN_IF_ERROR(AddCheck(input, check, report));
    }
  }
  return CheckWgmmaPrimitives(input, report);
}

}  // namespace baton::kernels::gpu_check
