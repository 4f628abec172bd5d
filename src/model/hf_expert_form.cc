#include "src/model/hf_expert_form.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"

namespace baton::model {
namespace {

constexpr uint64_t kBlockElements = 32;
constexpr uint64_t kBlockBytes = 16;  // without the scale
constexpr std::string_view kBlocks = "_blocks";
constexpr std::string_view kScales = "_scales";

// The dimension that the parts take turns in is `at`.
absl::Status CheckDims(const SafetensorsTensor& tensor, const HfExpertCount& count, size_t num_dims,
                       size_t at) {
  const std::vector<uint64_t>& shape = tensor.shape;
  if (shape.size() == num_dims && shape[0] == count.experts && shape[at] % count.parts == 0) {
    return OkStatus();
  }
  return TensorError(
      FolderErrorCode::kBadShape, tensor.name,
      fmt::format("{}, a model of {} experts needs {} dimensions, the first of them {}{}",
                  ShapeText(tensor), count.experts, num_dims, count.experts,
                  count.parts == 2 ? fmt::format(" and number {} even", at + 1) : ""));
}

absl::Status CheckIsFloat(const SafetensorsTensor& tensor) {
  if (IsFloat(tensor.type)) return OkStatus();
  return TensorError(FolderErrorCode::kBadDtype, tensor.name, "it is read in F32, F16 and BF16");
}

absl::Status CheckMxfp4(const SafetensorsTensor& blocks, const SafetensorsTensor* scales) {
  if (scales == nullptr) {
    return TensorError(
        FolderErrorCode::kBadScale, blocks.name,
        fmt::format("there is no tensor {}", QuotedForMessage(HfScalesName(blocks.name))));
  }
  for (const SafetensorsTensor* tensor : {&blocks, scales}) {
    if (tensor->type == SafetensorsType::kU8) continue;
    return TensorError(FolderErrorCode::kBadDtype, tensor->name,
                       "blocks and scales of MXFP4 are U8");
  }
  if (blocks.shape[3] != kBlockBytes) {
    return TensorError(
        FolderErrorCode::kBadShape, blocks.name,
        fmt::format("{}, the last dimension of MXFP4 is {}", ShapeText(blocks), kBlockBytes));
  }
  if (std::equal(scales->shape.begin(), scales->shape.end(), blocks.shape.begin(),
                 blocks.shape.end() - 1)) {
    return OkStatus();
  }
  return TensorError(FolderErrorCode::kBadScale, scales->name,
                     fmt::format("{} does not scale {}, which is {}", ShapeText(*scales),
                                 QuotedForMessage(blocks.name), ShapeText(blocks)));
}

// One expert; `in` is at the first element of the part.
void TransposeExpert(const HfExpertShape& shape, const std::byte* in, std::byte* out) {
  constexpr uint64_t kTile = 32;  // rows: both sides stay in the nearest cache
  const uint64_t element = shape.row_bytes / shape.k;
  const uint64_t in_row = shape.parts * shape.n * element;
  for (uint64_t tile = 0; tile < shape.n; tile += kTile) {
    for (uint64_t k = 0; k < shape.k; ++k) {
      for (uint64_t r = tile; r < std::min(tile + kTile, shape.n); ++r) {
        std::memcpy(out + r * shape.row_bytes + k * element,
                    in + k * in_row + r * shape.parts * element, element);
      }
    }
  }
}

}  // namespace

std::string HfScalesName(std::string_view blocks) {
  return std::string(blocks.substr(0, blocks.size() - kBlocks.size())) + std::string(kScales);
}

std::string HfBlocksName(std::string_view scales) {
  return std::string(scales.substr(0, scales.size() - kScales.size())) + std::string(kBlocks);
}

absl::StatusOr<HfExpertShape> HfExpertShapeOf(HfExpertForm form, const SafetensorsTensor& tensor,
                                              const SafetensorsTensor* scales,
                                              const HfExpertCount& count) {
  const std::vector<uint64_t>& shape = tensor.shape;
  HfExpertShape out = {.experts = count.experts, .parts = count.parts, .k = 1};
  if (form == HfExpertForm::kMxfp4) {
    BATON_RETURN_IF_ERROR(CheckDims(tensor, count, 4, 1));
    BATON_RETURN_IF_ERROR(CheckMxfp4(tensor, scales));
    out.n = shape[1] / count.parts;
    out.k = shape[2] * kBlockElements;
    out.row_bytes = shape[2] * (kBlockBytes + 1);
    return out;
  }
  BATON_RETURN_IF_ERROR(CheckIsFloat(tensor));
  if (form == HfExpertForm::kBias) {
    BATON_RETURN_IF_ERROR(CheckDims(tensor, count, 2, 1));
    out.n = shape[1] / count.parts;
    out.row_bytes = sizeof(float);
    return out;
  }
  BATON_RETURN_IF_ERROR(CheckDims(tensor, count, 3, 2));
  out.n = shape[2] / count.parts;
  out.k = shape[1];
  out.row_bytes = out.k * BytesOf(tensor.type);
  return out;
}

void TransposeExperts(const HfExpertShape& shape, std::span<const std::byte> in, uint64_t part,
                      std::byte* out) {
  const uint64_t element = shape.row_bytes / shape.k;
  const uint64_t in_bytes = shape.k * shape.parts * shape.n * element;
  for (uint64_t e = 0; e < shape.experts; ++e) {
    TransposeExpert(shape, in.data() + e * in_bytes + part * element,
                    out + e * shape.n * shape.row_bytes);
  }
}

void CopyExpertBiases(const HfExpertShape& shape, const SafetensorsTensor& in, uint64_t part,
                      float* out) {
  const size_t element = BytesOf(in.type);
  for (uint64_t i = 0; i < shape.experts * shape.n; ++i) {
    ToF32(in.type, in.data.subspan((i * shape.parts + part) * element, element), 0.0f, out + i);
  }
}

void RepackMxfp4Experts(const HfExpertShape& shape, std::span<const std::byte> blocks,
                        std::span<const std::byte> scales, uint64_t part, std::byte* out) {
  constexpr std::byte kLow{0x0F};
  constexpr std::byte kHigh{0xF0};
  const uint64_t row_blocks = shape.k / kBlockElements;
  for (uint64_t row = 0; row < shape.experts * shape.n; ++row) {
    const uint64_t first = (row * shape.parts + part) * row_blocks;
    for (uint64_t b = 0; b < row_blocks; ++b) {
      const std::byte* in = blocks.data() + (first + b) * kBlockBytes;
      *out++ = scales[first + b];
      for (uint64_t i = 0; i < kBlockBytes / 2; ++i) {
        const std::byte low = in[i];
        const std::byte high = in[i + kBlockBytes / 2];
        *out++ = (low & kLow) | (high & kLow) << 4;
        *out++ = low >> 4 | (high & kHigh);
      }
    }
  }
}

}  // namespace baton::model
