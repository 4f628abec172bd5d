#include "src/model/state_pools.h"

#include <algorithm>
#include <array>

#include "fmt/format.h"

#include "src/base/size_text.h"

namespace baton::model {

using kv::KvDtype;
using kv::KvDtypeName;
using kv::KvLayout;

namespace {

// Lengths whose hand-off is told, as far as the context goes.
constexpr std::array<uint32_t, 2> kToldTokens = {1024, 32'768};

void AddUnlessEmpty(const StatePool& pool, std::vector<StatePool>& pools) {
  if (pool.num_layers > 0) pools.push_back(pool);
}

}  // namespace

std::string_view StatePoolKindName(StatePoolKind kind) {
  switch (kind) {
    case StatePoolKind::kRows:
      return "rows";
    case StatePoolKind::kWindowRows:
      return "window rows";
    case StatePoolKind::kFixed:
      return "fixed state";
  }
  return "";
}

uint64_t StateManifest::ReadBytes(uint32_t num_tokens) const {
  uint64_t sum = 0;
  for (const StatePool& pool : pools) {
    // The next token's own row is one of the window.
    const uint32_t num_rows = pool.kind == StatePoolKind::kWindowRows
                                  ? std::min(num_tokens, pool.window - 1)
                                  : num_tokens;
    sum += pool.bytes_per_sequence + pool.bytes_per_token * num_rows;
  }
  return sum;
}

StateManifest StateManifestOf(const ModelConfig& config, KvDtype dtype, uint32_t block_size) {
  StateManifest manifest;
  manifest.layout = KvLayoutOf(config, dtype, block_size);
  manifest.window = {.size = config.window_of_all(), .block_size = block_size};
  const KvLayout& layout = manifest.layout;
  const std::string_view rows = KvDtypeName(dtype);
  StatePool attention{.name = config.traits->latent_kv ? "latents" : "attention", .dtype = rows};
  StatePool local{
      .name = "window", .kind = StatePoolKind::kWindowRows, .dtype = rows, .window = config.window};
  StatePool convs{.name = "convolutions",
                  .kind = StatePoolKind::kWindowRows,
                  .dtype = rows,
                  .window = config.conv_taps};
  const uint64_t slice_bytes = layout.SliceBytes() / block_size;  // of a token
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    const uint32_t num_slices = config.NumSlices(layer);
    if (num_slices == 0) continue;  // it has a fixed state, or another layer's rows
    const bool is_local = !config.layer_is_local.empty() && config.IsLocal(layer);
    StatePool& pool = config.IsConv(layer) ? convs : is_local ? local : attention;
    ++pool.num_layers;
    pool.bytes_per_token += num_slices * slice_bytes;
  }
  const StatePool nets{
      .name = "recurrent",
      .kind = StatePoolKind::kFixed,
      .dtype = KvDtypeName(KvDtype::kF32),
      .num_layers = config.num_delta_layers(),
      .bytes_per_sequence = uint64_t{config.num_delta_layers()} * config.delta.state_bytes()};
  for (const StatePool& pool : {attention, local, convs, nets}) {
    AddUnlessEmpty(pool, manifest.pools);
  }
  return manifest;
}

std::string StateManifestText(const ModelConfig& config) {
  const StateManifest manifest = StateManifestOf(config, KvDtype::kBf16, KvLayout().block_size);
  std::string out;
  for (const StatePool& pool : manifest.pools) {
    const bool is_fixed = pool.kind == StatePoolKind::kFixed;
    out += fmt::format("{:<14}{}: {} in {} layers, {} bytes a {} ({})",
                       out.empty() ? "state pools" : "", pool.name, StatePoolKindName(pool.kind),
                       pool.num_layers, is_fixed ? pool.bytes_per_sequence : pool.bytes_per_token,
                       is_fixed ? "sequence" : "token", pool.dtype);
    if (pool.kind == StatePoolKind::kWindowRows) {
      const bool goes = config.window_of_all() > 0;
      out += fmt::format("; {}the last {} are read{}", goes ? "" : "all are kept, ", pool.window,
                         goes ? ", blocks before them are released" : "");
    }
    out += "\n";
  }
  if (manifest.bytes_per_sequence() > 0) {
    out += fmt::format(
        "              {} bytes a sequence in {} blocks: no less than the rows of up to {} "
        "tokens\n",
        manifest.bytes_per_sequence(), manifest.layout.state_blocks, manifest.TokensOfState());
  }
  for (const uint32_t num_tokens : kToldTokens) {
    if (num_tokens > config.context_length) continue;
    out += fmt::format("hand-off      {} of {} tokens, of them {} that the next token reads",
                       FormatSize(manifest.SeenBytes(num_tokens)), num_tokens,
                       FormatSize(manifest.ReadBytes(num_tokens)));
    if (manifest.window.size > 0) {
      out += fmt::format("; on a device {}", FormatSize(manifest.HandOffBytes(num_tokens)));
    }
    out += "\n";
  }
  return out;
}

}  // namespace baton::model
