#include <string>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "tests/kernels/gpu_check/mma_vectors.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/word_check.h"
#include "tests/kernels/simt/wgmma_kernels.h"

namespace baton::kernels::gpu_check {
namespace {

using simt_test::WgmmaCount;

constexpr uint32_t kPoison = 0xDEADBEEF;

// Elements of the matrix count up from 1, so that a zero is one that was filled in.
WordCheck TilesCheck(const Primitives& p) {
  using namespace simt_test;  // NOLINT: the constants of one kernel
  WordCheck check{.name = "tensor_copy", .launch = p.tensor_tiles};
  check.hopper_only = true;
  for (uint32_t i = 0; i < kMatrixWords; ++i) check.in.push_back((2 * i + 1) | (2 * i + 2) << 16);
  constexpr uint32_t kRowWords = simt::kTileColumns / 2;
  for (uint32_t i = 0; i < kCopiedWords; ++i) {
    const uint32_t tile = i / (kCopiedRows * kRowWords);
    const uint32_t row = FirstRowOf(tile) + i / kRowWords % kCopiedRows;
    const uint32_t word = FirstColumnOf(tile) / 2 + i % kRowWords;
    const bool is_inside = row < kMatrixRows && word < kMatrixColumns / 2;
    check.expected.push_back(is_inside ? check.in[row * (kMatrixColumns / 2) + word] : 0);
  }
  check.out.assign(kCopiedWords, kPoison);
  return check;
}

using Launch = decltype(Primitives::wgmma128);

// A grid and the words by which it is drawn again.
struct DrawnGrid {
  std::vector<uint32_t> words;
  std::string drawn;
};

DrawnGrid DrawGrid(MmaKind kind, uint32_t columns, uint64_t seed) {
  return {MmaGrid(kind, columns, seed), fmt::format("WgmmaInputs(MmaGrid({}, {}, {}), {})",
                                                    MmaKindName(kind), columns, seed, columns)};
}

Launch ProductOf(const Primitives& p, uint32_t columns) {
  if (columns == 64) return p.wgmma64;
  return columns == 128 ? p.wgmma128 : (columns == 192 ? p.wgmma192 : p.wgmma256);
}

// A in registers, B in tiles of columns, in a step of K that differs by kind.
WordCheck ColumnsCheck(const Primitives& p, MmaKind kind, uint32_t columns) {
  const auto [grid, drawn] = DrawGrid(kind, columns, 51 + static_cast<uint64_t>(kind));
  WordCheck check{.name = fmt::format("wgmma columns {} {}", columns, MmaKindName(kind)),
                  .launch = columns == 64    ? p.wgmma_columns64
                            : columns == 128 ? p.wgmma_columns128
                                             : p.wgmma_columns256};
  check.in = WgmmaInputs(grid, columns);
  check.drawn = drawn;
  check.expected = WgmmaOutputs(MmaModel(simt::TensorCore::kHopper, grid), columns);
  check.count = WgmmaCount(static_cast<uint32_t>(kind) % 4, true);
  check.out.assign(check.expected.size(), kPoison);
  check.hopper_only = true;
  return check;
}

// A kind's operands, in a step of K that differs by kind: with C and from zero.
std::vector<WordCheck> ProductChecks(const Primitives& p, MmaKind kind, uint32_t columns) {
  std::vector<WordCheck> checks;
  const auto seed = 21 + static_cast<uint64_t>(kind);
  auto [grid, drawn] = DrawGrid(kind, columns, seed);
  for (const bool adds : {true, false}) {
    WordCheck check{
        .name = fmt::format("wgmma {} {}{}", columns, MmaKindName(kind), adds ? "" : " from zero"),
        .launch = ProductOf(p, columns)};
    check.in = WgmmaInputs(grid, columns);
    check.drawn = drawn;
    if (!adds) {
      for (size_t i = 0; i < grid.size(); ++i) {
        if (i % kMmaWords >= kWordsA + kWordsB) grid[i] = 0;
      }
    }
    check.expected = WgmmaOutputs(MmaModel(simt::TensorCore::kHopper, grid), columns);
    check.count = WgmmaCount(static_cast<uint32_t>(kind) % 4, adds);
    check.out.assign(check.expected.size(), kPoison);
    check.hopper_only = true;
    checks.push_back(std::move(check));
  }
  return checks;
}

// Products of the same sums, each begun while the one before is under way.
WordCheck ChainCheck(const Primitives& p) {
  constexpr uint32_t kColumns = 128;
  auto [grid, drawn] = DrawGrid(MmaKind::kWide, kColumns, 31);
  WordCheck check{.name = "wgmma chain", .launch = p.wgmma_chain};
  check.in = WgmmaInputs(grid, kColumns);
  check.drawn = drawn;
  std::vector<uint32_t> d;
  for (uint32_t times = 0; times < simt_test::kChainProducts; ++times) {
    d = MmaModel(simt::TensorCore::kHopper, grid);
    for (size_t i = 0; i < d.size(); ++i) {
      grid[i / kWordsC * kMmaWords + kWordsA + kWordsB + i % kWordsC] = d[i];
    }
  }
  check.expected = WgmmaOutputs(d, kColumns);
  check.out.assign(check.expected.size(), kPoison);
  check.hopper_only = true;
  return check;
}

std::string NameOfComparison(MmaKind kind) {
  return std::string("wgmma = mma ") + MmaKindName(kind);
}

// The device's own mma.sync instead of the model: what GemmBf16 needs, whatever the model is.
Finding CompareWithMma(const StageInput& input, MmaKind kind) {
  constexpr uint32_t kColumns = 128;
  Finding finding{.name = NameOfComparison(kind)};
  if (input.major != 9) {
    finding.verdict = Verdict::kNotRun;
    finding.detail = "needs sm_90";
    return finding;
  }
  const Primitives& p = input.body.primitives();
  const auto [grid, drawn] = DrawGrid(kind, kColumns, 41 + static_cast<uint64_t>(kind));
  WordCheck mma{.launch = p.mma, .in = grid, .num_ctas = 4 * kColumns / 8};
  mma.out.assign(simt_test::WgmmaWordsC(kColumns), kPoison);
  WordCheck wgmma{.name = finding.name, .launch = p.wgmma128};
  wgmma.in = WgmmaInputs(grid, kColumns);
  wgmma.drawn = drawn;
  wgmma.count = WgmmaCount(0, true);
  wgmma.out = mma.out;
  std::vector<uint32_t> d;
  if (const absl::Status status = LaunchAndRead(input, mma, d); !status.ok()) {
    finding.verdict = Verdict::kFail;
    finding.detail = std::string(status.message());
    return finding;
  }
  wgmma.expected = WgmmaOutputs(d, kColumns);
  return RunCheck(input, wgmma);
}

}  // namespace

absl::Status CheckWgmmaPrimitives(const StageInput& input, Report& report) {
  const Primitives& p = input.body.primitives();
  BATON_RETURN_IF_ERROR(AddCheck(input, TilesCheck(p), report));
  for (const MmaKind kind : kMmaKinds) {
    for (const uint32_t columns : {64u, 128u, 256u}) {
      BATON_RETURN_IF_ERROR(AddCheck(input, ColumnsCheck(p, kind, columns), report));
    }
    for (const uint32_t columns : {64u, 128u, 192u, 256u}) {
      for (const WordCheck& check : ProductChecks(p, kind, columns)) {
        BATON_RETURN_IF_ERROR(AddCheck(input, check, report));
      }
    }
    if (report.Begin(NameOfComparison(kind))) {
      BATON_RETURN_IF_ERROR(report.Add(CompareWithMma(input, kind)));
    }
  }
  return AddCheck(input, ChainCheck(p), report);
}

}  // namespace baton::kernels::gpu_check
