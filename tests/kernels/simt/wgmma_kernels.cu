#include <bit>

#include "kernels/simt/device.h"
#include "tests/kernels/simt/wgmma_kernels.h"

namespace baton::kernels::simt_test {
inline namespace BATON_BODY {
namespace {

using namespace simt;  // NOLINT: the primitives are the language here

constexpr uint32_t kRowsA = 64;
constexpr uint32_t kChunks = 8;  // of 16 bytes, a row of a tile

struct TileParams {
  TensorMap map;
  WordParams words;
};

// [tile][row][chunk]
struct CopiedShared {
  alignas(kTileAlignment) Vec16 tiles[kCopiedTiles][kCopiedRows][kChunks];
  Mbarrier full[kCopiedTiles];
};

BATON_KERNEL(kWarpSize) TensorTilesKernel(BATON_MAP_PARAM TileParams params) {
  auto& memory = shared<CopiedShared>();
  if (thread() == 0) {
    for (Mbarrier& full : memory.full) mbar_init(&full, 1);
    mbar_fence_init();
    for (uint32_t tile = 0; tile < kCopiedTiles; ++tile) {
      mbar_arrive_expect(&memory.full[tile], sizeof(memory.tiles[tile]));
      tensor_copy(memory.tiles[tile], params.map, {FirstColumnOf(tile), FirstRowOf(tile)},
                  &memory.full[tile]);
    }
  }
  sync_block();
  auto* out = reinterpret_cast<Vec16*>(params.words.out);
  for (uint32_t tile = 0; tile < kCopiedTiles; ++tile) {
    mbar_wait(&memory.full[tile], 0);
    for (uint32_t i = thread(); i < kCopiedRows * kChunks; i += kWarpSize) {
      const uint32_t row = i / kChunks;
      out[tile * kCopiedRows * kChunks + i] = memory.tiles[tile][row][i % kChunks ^ row % 8];
    }
  }
}

// [row][chunk], swizzled
template <uint32_t kColumns>
struct ProductShared {
  alignas(kTileAlignment) Vec16 a[kRowsA][kChunks];
  Vec16 b[kColumns][kChunks];
};

// Words [row][8], a step of K, to the tile's columns of a step; the rest of the tile stays what it
// is.
BATON_DEVICE void PutRows(const uint32_t* words, uint32_t num_rows, uint32_t step,
                          Vec16 (*tile)[kChunks]) {
  for (uint32_t i = thread(); i < 2 * num_rows; i += kWarpgroupSize) {
    const uint32_t row = i / 2;
    tile[row][(2 * step + i % 2) ^ row % 8] = reinterpret_cast<const Vec16*>(words)[i];
  }
}

// Where value v of sums[j] of this thread lies in C and D.
BATON_DEVICE uint32_t PlaceOf(uint32_t columns, uint32_t j, uint32_t v) {
  const uint32_t row = warp() * 16 + lane() / 4 + v / 2 * 8;
  return row * columns + 8 * j + lane() % 4 * 2 + v % 2;
}

template <uint32_t kColumns>
BATON_DEVICE void LoadSums(const WordParams& params, FragmentC (&sums)[kColumns / 8]) {
  const uint32_t* c = params.in + kWgmmaWordsA + WgmmaWordsB(kColumns);
  BATON_UNROLL
  for (uint32_t j = 0; j < kColumns / 8; ++j) {
    BATON_UNROLL
    for (uint32_t v = 0; v < 4; ++v) {
      sums[j].values[v] = std::bit_cast<float>(c[PlaceOf(kColumns, j, v)]);
    }
  }
}

template <uint32_t kColumns>
BATON_DEVICE void StoreSums(const WordParams& params, const FragmentC (&sums)[kColumns / 8]) {
  BATON_UNROLL
  for (uint32_t j = 0; j < kColumns / 8; ++j) {
    BATON_UNROLL
    for (uint32_t v = 0; v < 4; ++v) {
      params.out[PlaceOf(kColumns, j, v)] = std::bit_cast<uint32_t>(sums[j].values[v]);
    }
  }
}

template <uint32_t kColumns, typename Multiply>
BATON_DEVICE void RunProduct(const WordParams& params, uint32_t step, const Multiply& multiply) {
  auto& memory = shared<ProductShared<kColumns>>();
  PutRows(params.in, kRowsA, step, memory.a);
  PutRows(params.in + kWgmmaWordsA, kColumns, step, memory.b);
  fence_proxy_async();
  sync_block();
  FragmentC sums[kColumns / 8];
  LoadSums<kColumns>(params, sums);
  const TileDescriptor a = TileStep(describe_tile(memory.a), step);
  const TileDescriptor b = TileStep(describe_tile(memory.b), step);
  multiply(sums, a, b);
  wgmma_finish(sums);
  StoreSums<kColumns>(params, sums);
}

template <uint32_t kColumns>
BATON_DEVICE void MultiplyOnce(const WordParams& params) {
  RunProduct<kColumns>(params, params.count % 4,
                       [&](FragmentC(&sums)[kColumns / 8], TileDescriptor a, TileDescriptor b) {
                         wgmma_fence();
                         wgmma_bf16_m64k16(sums, a, b, params.count >= 4);
                         wgmma_commit();
                       });
}

BATON_KERNEL(kWarpgroupSize) Product64Kernel(WordParams params) { MultiplyOnce<64>(params); }
BATON_KERNEL(kWarpgroupSize) Product128Kernel(WordParams params) { MultiplyOnce<128>(params); }
BATON_KERNEL(kWarpgroupSize) Product192Kernel(WordParams params) { MultiplyOnce<192>(params); }
BATON_KERNEL(kWarpgroupSize) Product256Kernel(WordParams params) { MultiplyOnce<256>(params); }

BATON_KERNEL(kWarpgroupSize) ChainKernel(WordParams params) {
  RunProduct<128>(params, 0, [&](FragmentC(&sums)[16], TileDescriptor a, TileDescriptor b) {
    BATON_UNROLL
    for (uint32_t i = 0; i < kChainProducts; ++i) {
      wgmma_fence();
      wgmma_bf16_m64k16(sums, a, b, true);
      wgmma_commit();
      wgmma_wait<1>();
    }
  });
}

// Tiles of columns: [tile][row][column of the tile], chunks swizzled.
template <uint32_t kColumns>
struct ColumnsShared {
  alignas(kTileAlignment) Bf16 tiles[kColumns / kTileColumns][kTileColumns][kTileColumns];
};

// A from registers, and B, [column][16], as sixteen rows of tiles of columns.
template <uint32_t kColumns>
BATON_DEVICE void MultiplyColumns(const WordParams& params) {
  auto& memory = shared<ColumnsShared<kColumns>>();
  const uint32_t step = params.count % 4;
  const auto* b = reinterpret_cast<const Bf16*>(params.in + kWgmmaWordsA);
  for (uint32_t i = thread(); i < kColumns * 16; i += kWarpgroupSize) {
    const uint32_t column = i / 16;
    const uint32_t row = 16 * step + i % 16;
    const uint32_t chunk = column % kTileColumns / 8;
    memory.tiles[column / kTileColumns][row][(chunk ^ row % 8) * 8 + column % 8] = b[i];
  }
  fence_proxy_async();
  sync_block();
  FragmentA a[1];
  BATON_UNROLL
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row = warp() * 16 + lane() / 4 + i % 2 * 8;
    a[0].regs[i] = params.in[row * 8 + lane() % 4 + i / 2 * 4];
  }
  FragmentC sums[kColumns / 8];
  LoadSums<kColumns>(params, sums);
  wgmma_fence();
  wgmma_bf16_m64k16(sums, a[0],
                    ColumnsStep(describe_columns(memory.tiles, sizeof(memory.tiles[0])), step));
  wgmma_commit();
  wgmma_finish(sums, a);
  StoreSums<kColumns>(params, sums);
}

BATON_KERNEL(kWarpgroupSize) Columns64Kernel(WordParams params) { MultiplyColumns<64>(params); }
BATON_KERNEL(kWarpgroupSize) Columns128Kernel(WordParams params) { MultiplyColumns<128>(params); }
BATON_KERNEL(kWarpgroupSize) Columns256Kernel(WordParams params) { MultiplyColumns<256>(params); }

template <uint32_t kColumns>
absl::Status StartColumns(const char* name, void (*kernel)(WordParams), const WordParams& params) {
  return launch({.name = name,
                 .num_threads = kWarpgroupSize,
                 .shared_bytes = sizeof(ColumnsShared<kColumns>)},
                kernel, params);
}

template <uint32_t kColumns>
absl::Status Start(const char* name, void (*kernel)(WordParams), const WordParams& params) {
  return launch({.name = name,
                 .num_threads = kWarpgroupSize,
                 .shared_bytes = sizeof(ProductShared<kColumns>)},
                kernel, params);
}

}  // namespace

absl::Status TensorTiles(const WordParams& params) {
  TileParams call;
  call.words = params;
  if (absl::Status status = make_tensor_map(
          {reinterpret_cast<const Bf16*>(params.in), kMatrixRows, kMatrixColumns, kCopiedRows},
          &call.map);
      !status.ok()) {
    return status;
  }
  return launch(
      {.name = "TensorTiles", .num_threads = kWarpSize, .shared_bytes = sizeof(CopiedShared)},
      TensorTilesKernel, call);
}

absl::Status WarpgroupProduct(const WordParams& params, uint32_t columns) {
  if (columns == 64) return Start<64>("Product64", Product64Kernel, params);
  if (columns == 128) return Start<128>("Product128", Product128Kernel, params);
  return columns == 192 ? Start<192>("Product192", Product192Kernel, params)
                        : Start<256>("Product256", Product256Kernel, params);
}

absl::Status WarpgroupColumns(const WordParams& params, uint32_t columns) {
  if (columns == 64) return StartColumns<64>("Columns64", Columns64Kernel, params);
  return columns == 128 ? StartColumns<128>("Columns128", Columns128Kernel, params)
                        : StartColumns<256>("Columns256", Columns256Kernel, params);
}

absl::Status WarpgroupChain(const WordParams& params) {
  return Start<128>("Chain", ChainKernel, params);
}

}  // namespace BATON_BODY
}  // namespace baton::kernels::simt_test
