#include "kvcache/kv_layout.h"

#include "fmt/format.h"

#include "src/base/checked_math.h"
#include "src/base/status.h"
#include "src/base/xxh3.h"

namespace baton::kv {
namespace {

// Larger than any published model; together they keep every product below 2^63.
constexpr uint32_t kMaxLayers = 4096;
constexpr uint32_t kMaxKvHeads = 4096;
constexpr uint32_t kMaxHeadDim = 8192;
constexpr uint32_t kMaxBlockSize = 4096;
// Dims and tokens that the encoding of fp8 takes at a time.
constexpr uint32_t kFp8Tile = 16;
// A Grant names each block of a sequence (limits.h): a quarter of what it may name.
constexpr uint32_t kMaxStateBlocks = 65'280;
// 1 TiB: no arena holds such a block, so a larger product is a damaged file.
constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 40;

std::string_view EncodingName(KvEncoding encoding) {
  switch (encoding) {
    case KvEncoding::kUnspecified:
      return "unspecified";
    case KvEncoding::kPlain:
      return "plain";
    case KvEncoding::kPaired:
      return "paired";
    case KvEncoding::kFragments:
      return "fragments";
    case KvEncoding::kLanes:
      return "turned-lanes";
    case KvEncoding::kLatent:
      return "latent";
  }
  return "unknown";
}

Status CheckRange(std::string_view name, uint32_t value, uint32_t max, bool even) {
  if (value == 0 || value > max) {
    return InvalidArgument("KV layout: {} {} is outside [1, {}]", name, value, max);
  }
  if (even && value % 2 != 0) return InvalidArgument("KV layout: {} {} is odd", name, value);
  return OkStatus();
}

}  // namespace

std::string_view KvDtypeName(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kUnspecified:
      return "unspecified";
    case KvDtype::kBf16:
      return "bf16";
    case KvDtype::kF32:
      return "f32";
    case KvDtype::kFp8:
      return "fp8";
    case KvDtype::kQ8:
      return "q8";
  }
  return "unknown";
}

std::optional<KvDtype> KvDtypeNamed(std::string_view name) {
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kF32, KvDtype::kFp8, KvDtype::kQ8}) {
    if (name == KvDtypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

absl::Status KvLayout::Validate() const {
  if (dtype < KvDtype::kBf16 || dtype > KvDtype::kQ8) {
    return InvalidArgument("KV layout: dtype {} is not bf16 (1), f32 (2), fp8 (3) or q8 (4)",
                           int(dtype));
  }
  if (encoding < KvEncoding::kPlain || encoding > KvEncoding::kLatent) {
    return InvalidArgument(
        "KV layout: encoding {} is not plain (1), paired (2), fragments (3), turned-lanes (4) or "
        "latent (5)",
        int(encoding));
  }
  if ((dtype == KvDtype::kFp8) != (encoding == KvEncoding::kFragments) ||
      (dtype == KvDtype::kQ8) != (encoding == KvEncoding::kLanes)) {
    return InvalidArgument("KV layout: {} does not go with the encoding {}", KvDtypeName(dtype),
                           EncodingName(encoding));
  }
  BATON_RETURN_IF_ERROR(CheckRange("num_layers", num_layers, kMaxLayers, false));
  BATON_RETURN_IF_ERROR(CheckRange("num_kv_heads", num_kv_heads, kMaxKvHeads, false));
  if (encoding == KvEncoding::kLatent && num_kv_heads != 1) {
    return InvalidArgument("KV layout: num_kv_heads {} of latent rows is not 1", num_kv_heads);
  }
  BATON_RETURN_IF_ERROR(CheckRange("head_dim", head_dim, kMaxHeadDim, true));
  BATON_RETURN_IF_ERROR(CheckRange("block_size", block_size, kMaxBlockSize, true));
  if (dtype == KvDtype::kFp8 && (head_dim % kFp8Tile != 0 || block_size % kFp8Tile != 0)) {
    return InvalidArgument("KV layout: fp8 takes head_dim {} and block_size {} in multiples of {}",
                           head_dim, block_size, kFp8Tile);
  }
  if (SliceBytes() % 64 != 0) {
    return InvalidArgument(
        "KV layout: a slice of {} bytes ({} heads x {} dims x {} tokens) is no multiple of 64",
        SliceBytes(), num_kv_heads, head_dim, block_size);
  }
  if (state_blocks > kMaxStateBlocks) {
    return InvalidArgument("KV layout: state_blocks {} is above {}", state_blocks, kMaxStateBlocks);
  }
  const std::optional<uint64_t> block_bytes = CheckedMul(SliceBytes(), num_layers);
  if (!block_bytes || *block_bytes > kMaxBlockBytes) {
    return InvalidArgument("KV layout: a block of {} layers x {} bytes exceeds {} bytes",
                           num_layers, SliceBytes(), kMaxBlockBytes);
  }
  return OkStatus();
}

uint64_t KvLayout::LayoutId() const { return Xxh3Hash64(ToString()); }

std::string KvLayout::ToString() const {
  // "spread" names the order of the states (src/model/state_map.h). Builds that had another order
  // lack the word, so no worker of theirs is paired with one of this build.
  const std::string state = state_blocks == 0 ? "" : fmt::format(" state={} spread", state_blocks);
  return fmt::format("{} {} layers={} kv_heads={} head_dim={} block={} window={}{}",
                     KvDtypeName(dtype), EncodingName(encoding), num_layers, num_kv_heads, head_dim,
                     block_size, window_tokens, state);
}

std::string KvLayout::Difference(const KvLayout& a, const KvLayout& b) {
  const auto field = [](std::string_view name, auto x, auto y) {
    return x == y ? std::string() : fmt::format("{} {} against {}", name, x, y);
  };
  std::string text = field("dtype", KvDtypeName(a.dtype), KvDtypeName(b.dtype));
  if (text.empty()) text = field("encoding", EncodingName(a.encoding), EncodingName(b.encoding));
  if (text.empty()) text = field("num_layers", a.num_layers, b.num_layers);
  if (text.empty()) text = field("num_kv_heads", a.num_kv_heads, b.num_kv_heads);
  if (text.empty()) text = field("head_dim", a.head_dim, b.head_dim);
  if (text.empty()) text = field("block_size", a.block_size, b.block_size);
  if (text.empty()) text = field("window_tokens", a.window_tokens, b.window_tokens);
  if (text.empty()) text = field("state_blocks", a.state_blocks, b.state_blocks);
  return text;
}

}  // namespace baton::kv
