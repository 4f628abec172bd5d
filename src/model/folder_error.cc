#include "src/model/folder_error.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/cord.h"

namespace baton {
namespace {

constexpr const char* kPayloadUrl = "baton/folder-error";

constexpr std::array<std::string_view, 21> kNames = {
    "none",
    "missing_file",
    "file_too_large",
    "bad_json",
    "missing_key",
    "bad_value",
    "unknown_architecture",
    "unknown_rope_type",
    "unsupported_value",
    "quantized",
    "truncated",
    "bad_dtype",
    "bad_shape",
    "bad_offsets",
    "data_out_of_file",
    "duplicate_tensor",
    "bad_index",
    "missing_shard",
    "tied_mismatch",
    "unknown_tensor",
    "missing_expert",
};
static_assert(kNames.size() == static_cast<size_t>(FolderErrorCode::kMissingExpert) + 1);

absl::StatusCode StatusCodeFor(FolderErrorCode code) {
  switch (code) {
    case FolderErrorCode::kMissingFile:
    case FolderErrorCode::kMissingKey:
    case FolderErrorCode::kMissingShard:
    case FolderErrorCode::kMissingExpert:
      return absl::StatusCode::kNotFound;
    case FolderErrorCode::kUnknownArchitecture:
    case FolderErrorCode::kUnknownRopeType:
    case FolderErrorCode::kUnsupportedValue:
    case FolderErrorCode::kQuantized:
    case FolderErrorCode::kBadDtype:
    case FolderErrorCode::kUnknownTensor:
      return absl::StatusCode::kUnimplemented;
    default:
      return absl::StatusCode::kInvalidArgument;
  }
}

}  // namespace

std::string_view FolderErrorName(FolderErrorCode code) {
  const size_t idx = static_cast<size_t>(code);
  return idx < kNames.size() ? kNames[idx] : "unknown";
}

absl::Status FolderError(FolderErrorCode code, std::string_view message) {
  absl::Status status(StatusCodeFor(code), std::string(message));
  status.SetPayload(kPayloadUrl, absl::Cord(std::string(FolderErrorName(code))));
  return status;
}

FolderErrorCode FolderErrorOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  if (!payload.has_value()) return FolderErrorCode::kNone;
  const auto it = std::find(kNames.begin(), kNames.end(), std::string(*payload));
  return static_cast<FolderErrorCode>(it == kNames.end() ? 0 : it - kNames.begin());
}

}  // namespace baton
