#include "src/model/gguf_error.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/cord.h"

namespace baton {
namespace {

constexpr const char* kPayloadUrl = "baton/gguf-error";

constexpr std::array<std::string_view, 32> kNames = {
    "none",
    "open",
    "truncated",
    "bad_magic",
    "wrong_endian",
    "bad_version",
    "too_many_keys",
    "too_many_tensors",
    "header_too_large",
    "string_too_long",
    "bad_key",
    "duplicate_key",
    "bad_value_type",
    "nested_array",
    "array_too_long",
    "bad_bool",
    "bad_alignment",
    "bad_tensor_name",
    "duplicate_tensor",
    "bad_dims",
    "size_overflow",
    "bad_row_length",
    "unknown_tensor_type",
    "removed_tensor_type",
    "unsized_tensor_type",
    "bad_offset",
    "data_out_of_file",
    "split_file",
    "missing_key",
    "wrong_key_type",
    "split_missing",
    "split_mismatch",
};
static_assert(kNames.size() == static_cast<size_t>(GgufErrorCode::kSplitMismatch) + 1);

absl::StatusCode StatusCodeFor(GgufErrorCode code) {
  switch (code) {
    case GgufErrorCode::kOpen:
    case GgufErrorCode::kMissingKey:
    case GgufErrorCode::kSplitMissing:
      return absl::StatusCode::kNotFound;
    case GgufErrorCode::kWrongEndian:
    case GgufErrorCode::kBadVersion:
    case GgufErrorCode::kUnknownTensorType:
    case GgufErrorCode::kRemovedTensorType:
    case GgufErrorCode::kUnsizedTensorType:
    case GgufErrorCode::kSplitFile:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kInvalidArgument;
  }
}

}  // namespace

std::string_view GgufErrorName(GgufErrorCode code) {
  const size_t idx = static_cast<size_t>(code);
  return idx < kNames.size() ? kNames[idx] : "unknown";
}

absl::Status GgufError(GgufErrorCode code, std::string_view message) {
  absl::Status status(StatusCodeFor(code), fmt::format("GGUF: {}", message));
  status.SetPayload(kPayloadUrl, absl::Cord(std::string(GgufErrorName(code))));
  return status;
}

GgufErrorCode GgufErrorOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  if (!payload.has_value()) return GgufErrorCode::kNone;
  const auto it = std::find(kNames.begin(), kNames.end(), std::string(*payload));
  return static_cast<GgufErrorCode>(it == kNames.end() ? 0 : it - kNames.begin());
}

}  // namespace baton
