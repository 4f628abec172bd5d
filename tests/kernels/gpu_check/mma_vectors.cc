#include "tests/kernels/gpu_check/mma_vectors.h"

#include <algorithm>
#include <bit>

#include "tests/kernels/gpu_check/primitives.h"
#include "tests/test_seed.h"

namespace baton::kernels::gpu_check {
namespace {

// Exponent fields [first, first + count) of what a kind is made of, for A and B, and for C.
struct Range {
  uint32_t first;
  uint32_t count;
  uint32_t first_c;
  uint32_t count_c;
};

Range RangeOf(MmaKind kind) {
  switch (kind) {
    case MmaKind::kRandom:
    case MmaKind::kCancelling:
    case MmaKind::kSpecial:
      return {124, 4, 122, 8};
    case MmaKind::kWide:
      return {107, 40, 100, 54};
    case MmaKind::kDenormal:
      return {0, 70, 0, 4};
    case MmaKind::kHuge:
      return {186, 6, 248, 7};
    case MmaKind::kZeros:
      return {50, 12, 0, 3};
  }
  return {124, 4, 122, 8};
}

uint16_t Draw(TestRandom& random, MmaKind kind) {
  constexpr uint16_t kSpecials[] = {0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x0001, 0x7F7F};
  if (kind == MmaKind::kSpecial && random.OneIn(24)) return kSpecials[random.Below(8)];
  const Range range = RangeOf(kind);
  // Half of the denormal kind's factors are subnormal themselves.
  const bool is_zero_field = kind == MmaKind::kDenormal && random.OneIn(2);
  const uint32_t field = is_zero_field ? 0 : range.first + random.Below(range.count);
  const uint32_t mantissa = random.Below(128);
  return static_cast<uint16_t>(field << 7 | mantissa | random.Below(2) << 15);
}

uint32_t DrawC(TestRandom& random, MmaKind kind) {
  const Range range = RangeOf(kind);
  const uint32_t field = range.first_c + random.Below(range.count_c);
  const auto mantissa = static_cast<uint32_t>(random.Next() & 0x7FFFFF);
  if (kind == MmaKind::kSpecial && random.OneIn(24)) return 0x7F800000u | random.Below(2) << 31;
  const bool is_zero = kind == MmaKind::kZeros && !random.OneIn(4);
  return (is_zero ? 0 : field << 23 | mantissa) | random.Below(2) << 31;
}

// Two places k of sixteen in which A is zero and B huge, and one the other way around.
void PlantZeros(uint32_t* a, uint32_t* b) {
  const auto plant = [](uint32_t* words, uint32_t k, uint32_t row, uint32_t magnitude) {
    uint32_t& word = words[row * 8 + k / 2];
    const uint32_t shift = k % 2 * 16;
    word = (word & ~(0x7FFFu << shift)) | magnitude << shift;
  };
  constexpr uint32_t kHuge = 0x7F7F;
  for (uint32_t row = 0; row < 16; ++row) {
    plant(a, 3, row, 0);
    plant(a, 10, row, row % 2 == 0 ? 0 : kHuge);
    plant(a, 12, row, kHuge);
  }
  for (uint32_t column = 0; column < 8; ++column) {
    plant(b, 3, column, kHuge);
    plant(b, 10, column, 0);
    plant(b, 12, column, 0);
  }
}

simt::Bf16 ElementOf(const uint32_t* words, size_t i) {
  return {static_cast<uint16_t>(i % 2 == 0 ? words[i / 2] : words[i / 2] >> 16)};
}

}  // namespace

const char* MmaKindName(MmaKind kind) {
  constexpr const char* kNames[] = {"random",     "wide",    "denormal", "huge",
                                    "cancelling", "special", "zeros"};
  return kNames[static_cast<int>(kind)];
}

std::vector<uint32_t> MmaInputs(MmaKind kind, uint32_t num_tiles, uint64_t seed) {
  TestRandom random(seed);
  std::vector<uint32_t> words(size_t{num_tiles} * kMmaWords);
  for (uint32_t tile = 0; tile < num_tiles; ++tile) {
    uint32_t* a = &words[size_t{tile} * kMmaWords];
    for (uint32_t i = 0; i < kWordsA + kWordsB; ++i) {
      const uint32_t low = Draw(random, kind);
      uint32_t high = Draw(random, kind);
      if (kind == MmaKind::kCancelling) {
        // A's pairs are x, -x; B's are y, y or its neighbour.
        high = i < kWordsA ? low ^ 0x8000u : low + random.Below(2);
      }
      a[i] = low | high << 16;
    }
    if (kind == MmaKind::kZeros) PlantZeros(a, a + kWordsA);
    for (uint32_t i = 0; i < kWordsC; ++i) a[kWordsA + kWordsB + i] = DrawC(random, kind);
  }
  return words;
}

std::vector<uint32_t> MmaModel(simt::TensorCore core, const std::vector<uint32_t>& in) {
  std::vector<uint32_t> out(in.size() / kMmaWords * kWordsC);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint32_t* a = &in[i / kWordsC * kMmaWords];
    const uint32_t* b = a + kWordsA;
    const size_t row = i % kWordsC / 8;
    simt::Bf16 x[16];
    simt::Bf16 y[16];
    for (size_t k = 0; k < 16; ++k) {
      x[k] = ElementOf(a, row * 16 + k);
      y[k] = ElementOf(b, i % 8 * 16 + k);
    }
    const float c = std::bit_cast<float>(b[kWordsB + i % kWordsC]);
    out[i] = std::bit_cast<uint32_t>(simt::DotBf16(core, x, y, c));
  }
  return out;
}

std::vector<uint32_t> MmaExchanged(const std::vector<uint32_t>& in) {
  std::vector<uint32_t> out(in.size(), 0);
  for (size_t at = 0; at < in.size(); at += kMmaWords) {
    const uint32_t* a = &in[at];
    uint32_t* exchanged = &out[at];
    std::copy(a + kWordsA, a + kWordsA + kWordsB, exchanged);
    std::copy(a, a + kWordsB, exchanged + kWordsA);
    for (size_t row = 0; row < 8; ++row) {
      for (size_t column = 0; column < 8; ++column) {
        exchanged[kWordsA + kWordsB + column * 8 + row] = a[kWordsA + kWordsB + row * 8 + column];
      }
    }
  }
  return out;
}

std::vector<uint32_t> ExchangedModel(const std::vector<uint32_t>& model,
                                     const std::vector<uint32_t>& model_of_exchanged) {
  std::vector<uint32_t> out = model_of_exchanged;
  for (size_t at = 0; at < out.size(); at += kWordsC) {
    for (size_t i = 0; i < 64; ++i) out[at + i] = model[at + i % 8 * 8 + i / 8];
  }
  return out;
}

std::vector<uint32_t> MmaGrid(MmaKind kind, uint32_t columns, uint64_t seed) {
  const size_t across = columns / 8;
  std::vector<uint32_t> grid = MmaInputs(kind, static_cast<uint32_t>(4 * across), seed);
  for (size_t tile = 0; tile < 4 * across; ++tile) {
    const uint32_t* a = &grid[tile / across * across * kMmaWords];
    const uint32_t* b = &grid[tile % across * kMmaWords + kWordsA];
    uint32_t* to = &grid[tile * kMmaWords];
    if (a != to) std::copy(a, a + kWordsA, to);
    if (b != to + kWordsA) std::copy(b, b + kWordsB, to + kWordsA);
  }
  return grid;
}

std::vector<uint32_t> WgmmaInputs(const std::vector<uint32_t>& grid, uint32_t columns) {
  const size_t across = columns / 8;
  std::vector<uint32_t> in;
  for (size_t i = 0; i < 4; ++i) {
    const auto a = grid.begin() + static_cast<ptrdiff_t>(i * across * kMmaWords);
    in.insert(in.end(), a, a + kWordsA);
  }
  std::vector<uint32_t> c;
  for (size_t tile = 0; tile < 4 * across; ++tile) {
    const auto b = grid.begin() + static_cast<ptrdiff_t>(tile * kMmaWords + kWordsA);
    if (tile < across) in.insert(in.end(), b, b + kWordsB);
    c.insert(c.end(), b + kWordsB, b + kWordsB + kWordsC);
  }
  const std::vector<uint32_t> rows = WgmmaOutputs(c, columns);
  in.insert(in.end(), rows.begin(), rows.end());
  return in;
}

std::vector<uint32_t> WgmmaOutputs(const std::vector<uint32_t>& d, uint32_t columns) {
  std::vector<uint32_t> out(d.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t row = i / columns;
    const size_t column = i % columns;
    const size_t tile = row / 16 * (columns / 8) + column / 8;
    out[i] = d[tile * kWordsC + row % 16 * 8 + column % 8];
  }
  return out;
}

}  // namespace baton::kernels::gpu_check
