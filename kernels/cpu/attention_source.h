// Where the keys and values of one tile are read: in the blocks, or converted to fp32. Included by
// one translation unit per instruction set.
#ifndef BATON_KERNELS_CPU_ATTENTION_SOURCE_H_
#define BATON_KERNELS_CPU_ATTENTION_SOURCE_H_

#include "kernels/cpu/attention_state.h"

namespace baton::kernels::BATON_ISA {

// The keys of one KV head that a tile is made of.
struct TileKeys {
  const kv::KvView& kv;
  uint32_t layer;
  const AttentionSpan& span;
  uint32_t kv_head;
  device::TaskRange keys;  // absolute
};

// Converts the codes of q8 that `tile` points at to fp32, for groups [0, num_groups).
inline void ConvertCodes(const TileSource& tile, uint32_t num_groups, float* k_tile,
                         float* v_tile) {
  for (uint32_t g = 0; g < num_groups; ++g) {
    for (uint32_t d = 0; d < tile.dim; ++d) {
      Store(k_tile + d * kTileKeys + g * kGroupKeys, LoadCodes(tile.k[g] + d * tile.k_step));
    }
    for (uint32_t i = 0; i < kGroupKeys * tile.dim; i += 16) {
      Store(v_tile + g * kGroupKeys * tile.dim + i, LoadCodes(tile.v[g] + i));
    }
  }
}

// Converts keys to fp32, without scales; the rest of the tile is zero. For layouts without a direct
// path.
inline void ConvertTile(const TileKeys& from, float* k_tile, float* v_tile) {
  const kv::KvLayout& layout = *from.kv.layout;
  const uint32_t padded_dim = (layout.head_dim + 15) / 16 * 16;
  for (uint32_t i = 0; i < layout.head_dim * kTileKeys; ++i) k_tile[i] = 0.0f;
  for (uint32_t i = 0; i < padded_dim * kTileKeys; ++i) v_tile[i] = 0.0f;
  for (uint32_t key = from.keys.begin; key < from.keys.end; ++key) {
    const uint32_t block = from.span.kv.blocks[key / layout.block_size];
    const uint32_t token = key % layout.block_size;
    const std::byte* k_piece = from.kv.Piece(block, from.layer, 0, from.kv_head);
    const std::byte* v_piece = from.kv.Piece(block, from.layer, 1, from.kv_head);
    const uint32_t j = key % kTileKeys;
    for (uint32_t d = 0; d < layout.head_dim; ++d) {
      k_tile[d * kTileKeys + j] = LoadKv(layout.dtype, k_piece, KIndex(layout, token, d));
      v_tile[j * padded_dim + d] = LoadKv(layout.dtype, v_piece, VIndex(layout, token, d));
    }
  }
}

// Elements [i, i + 16) of a latent row, zeros beyond its `dim`.
BATON_INLINE F32x16 LatentElements(const kv::KvLayout& layout, const std::byte* row, uint32_t i) {
  const uint32_t rest = layout.head_dim - i;
  if (layout.dtype == kv::KvDtype::kF32) {
    return LoadN(reinterpret_cast<const float*>(row) + i, rest < 16 ? rest : 16);
  }
  if (rest >= 16) return LoadBf16(row + size_t{i} * 2);
  std::byte last[32] = {};
  std::memcpy(last, row + size_t{i} * 2, size_t{rest} * 2);
  return LoadBf16(last);
}

// Latent rows to fp32: all of them as keys, their beginnings as values; the rest of the tile is
// zero.
inline void ConvertLatents(const TileKeys& from, const TileSource& tile, float* k_tile,
                           float* v_tile) {
  const kv::KvLayout& layout = *from.kv.layout;
  const size_t row_bytes = layout.head_dim * layout.ElementBytes();
  for (uint32_t j = 0; j < kTileKeys; ++j) {
    const uint32_t key = from.keys.begin + j;
    const bool exists = key < from.keys.end;
    const std::byte* row = nullptr;
    if (exists) {
      const uint32_t block = from.span.kv.blocks[key / layout.block_size];
      row = from.kv.Piece(block, from.layer, 0, 0) + key % layout.block_size * row_bytes;
    }
    for (uint32_t i = 0; i < tile.dim; i += 16) {
      const F32x16 x = exists ? LatentElements(layout, row, i) : Zero();
      if (i < tile.padded_values) Store(v_tile + size_t{j} * tile.padded_values + i, x);
      float elements[16];
      Store(elements, x);
      const uint32_t n = tile.dim - i < 16 ? tile.dim - i : 16;
      for (uint32_t d = 0; d < n; ++d) k_tile[(i + d) * kTileKeys + j] = elements[d];
    }
  }
}

// The form in which a tile of the item lies in the blocks; kFloats: it has to be converted.
inline TileForm FormInBlocks(const ItemRun& run) {
  const kv::KvLayout& layout = *run.args.kv.layout;
  const bool is_paired =
      layout.dtype == kv::KvDtype::kBf16 && layout.encoding == kv::KvEncoding::kPaired;
  if (layout.block_size % kGroupKeys != 0 || run.shape.dim != run.shape.padded_dim) {
    return TileForm::kFloats;
  }
  if (layout.dtype == kv::KvDtype::kQ8) return TileForm::kCodes;
  return is_paired ? TileForm::kPairs : TileForm::kFloats;
}

// The lines of the keys (`which` 0) or values (1) [begin, begin + num_keys) of the item; none where
// tiles are converted. A group without keys has the lines of the last one. Scales of q8 are few and
// are not among them. In blocks of more than 16 tokens a line of q8 keys serves several groups,
// each of which asks for a part of its dims.
inline FetchAhead LinesOf(const ItemRun& run, uint32_t which, uint32_t begin, uint32_t num_keys) {
  FetchAhead lines = {};
  const TileForm form = FormInBlocks(run);
  if (form == TileForm::kFloats) return lines;
  const kv::KvView& kv = run.args.kv;
  const kv::KvLayout& layout = *kv.layout;
  const size_t element_bytes = layout.ElementBytes();
  const uint32_t unit = form == TileForm::kPairs ? 2 : 1;
  // A token has, of keys, `unit` elements in each unit of dims; of values, all in one unit of keys.
  const size_t token_bytes = (which == 0 ? unit : layout.head_dim) * element_bytes;
  const size_t k_step = layout.block_size * unit * element_bytes;
  lines.step = which == 0 && k_step > 64 ? k_step : 64;
  lines.num_lines = static_cast<uint32_t>(kGroupKeys * layout.head_dim * element_bytes / 64);
  for (uint32_t g = 0; g < kTileGroups; ++g) {
    const uint32_t key =
        begin + (g * kGroupKeys < num_keys ? g : (num_keys - 1) / kGroupKeys) * kGroupKeys;
    const uint32_t block = run.item.span->kv.blocks[key / layout.block_size];
    const uint32_t token = key % layout.block_size;
    const bool shares_lines = which == 0 && form == TileForm::kCodes;
    const size_t offset =
        shares_lines ? token / 64 * 64 + token % 64 / kGroupKeys * lines.num_lines * lines.step
                     : token * token_bytes;
    lines.at[g] = kv.Piece(block, run.args.layer, which, run.item.kv_head) + offset;
  }
  return lines;
}

// Points a direct tile at keys [begin, begin + num_keys) of the item.
inline void PointAt(const ItemRun& run, uint32_t begin, uint32_t num_keys, TileSource* tile) {
  const kv::KvView& kv = run.args.kv;
  const kv::KvLayout& layout = *kv.layout;
  const uint32_t unit = tile->form == TileForm::kPairs ? 2 : 1;
  const size_t unit_bytes = unit * layout.ElementBytes();
  tile->k_step = layout.block_size * unit_bytes;
  tile->v_step = layout.head_dim * unit_bytes;
  for (uint32_t g = 0; g * kGroupKeys < num_keys; ++g) {
    const uint32_t key = begin + g * kGroupKeys;
    const uint32_t block = run.item.span->kv.blocks[key / layout.block_size];
    const uint32_t token = key % layout.block_size;
    const std::byte* k_piece = kv.Piece(block, run.args.layer, 0, run.item.kv_head);
    const std::byte* v_piece = kv.Piece(block, run.args.layer, 1, run.item.kv_head);
    tile->k[g] = k_piece + token * unit_bytes;
    tile->v[g] = v_piece + token / unit * tile->v_step;
    if (tile->form != TileForm::kCodes) continue;
    // A slot that holds no key may have any scale: masked keys use none.
    for (uint32_t segment = 0; segment < run.shape.num_segments; ++segment) {
      const size_t scales = Q8ScaleOffset(layout, token, segment);
      const uint32_t at = segment * kTileKeys + g * kGroupKeys;
      Store(run.area.k_scales + at, LoadBf16(k_piece + scales));
      Store(run.area.v_scales + at, LoadBf16(v_piece + scales));
    }
  }
}

// The scales of keys [begin, begin + num_keys) of q8 without a direct path, in the thread's area; 0
// for the rest of the tile.
inline void LoadScales(const ItemRun& run, uint32_t begin, uint32_t num_keys) {
  const kv::KvView& kv = run.args.kv;
  const kv::KvLayout& layout = *kv.layout;
  for (uint32_t i = 0; i < run.shape.num_segments * kTileKeys; ++i) {
    run.area.k_scales[i] = 0.0f;
    run.area.v_scales[i] = 0.0f;
  }
  for (uint32_t j = 0; j < num_keys; ++j) {
    const uint32_t key = begin + j;
    const uint32_t block = run.item.span->kv.blocks[key / layout.block_size];
    const uint32_t token = key % layout.block_size;
    const std::byte* k_piece = kv.Piece(block, run.args.layer, 0, run.item.kv_head);
    const std::byte* v_piece = kv.Piece(block, run.args.layer, 1, run.item.kv_head);
    for (uint32_t segment = 0; segment < run.shape.num_segments; ++segment) {
      const uint32_t dim = segment * kv::kQ8SegmentDims;
      run.area.k_scales[segment * kTileKeys + j] = KvScale(layout, k_piece, token, dim);
      run.area.v_scales[segment * kTileKeys + j] = KvScale(layout, v_piece, token, dim);
    }
  }
}

// Points at keys [begin, begin + 64) of the item, of which `num_keys` exist.
inline TileSource SourceOf(const ItemRun& run, uint32_t begin, uint32_t num_keys) {
  const kv::KvLayout& layout = *run.args.kv.layout;
  TileSource tile = {};
  tile.dim = run.shape.dim;
  tile.padded_dim = run.shape.padded_dim;
  tile.padded_values = run.shape.padded_values;
  const bool is_q8 = layout.dtype == kv::KvDtype::kQ8;
  tile.form = FormInBlocks(run);
  if (is_q8) {
    tile.k_scales = run.area.k_scales;
    tile.v_scales = run.area.v_scales;
  }
  if (tile.form != TileForm::kFloats) {
    PointAt(run, begin, num_keys, &tile);
    // Rows beyond one pass would widen the same codes again.
    if (!is_q8 || run.item.num_rows * run.shape.group <= kAttentionRows) return tile;
    ConvertCodes(tile, (num_keys + kGroupKeys - 1) / kGroupKeys, run.area.k_tile, run.area.v_tile);
  } else {
    if (is_q8) LoadScales(run, begin, num_keys);
    const TileKeys keys = {
        run.args.kv, run.args.layer, *run.item.span, run.item.kv_head, {begin, begin + num_keys}};
    if (layout.encoding == kv::KvEncoding::kLatent) {
      ConvertLatents(keys, tile, run.area.k_tile, run.area.v_tile);
    } else {
      ConvertTile(keys, run.area.k_tile, run.area.v_tile);
    }
  }
  tile.form = TileForm::kFloats;
  tile.k_tile = run.area.k_tile;
  tile.v_tile = run.area.v_tile;
  return tile;
}

}  // namespace baton::kernels::BATON_ISA

#endif  // BATON_KERNELS_CPU_ATTENTION_SOURCE_H_
