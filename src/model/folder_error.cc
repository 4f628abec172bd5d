#include "src/model/folder_error.h"

#include "src/base/quoted_text.h"
#include "src/model/error_table.h"

namespace baton::model {
namespace {

constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;
constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;

constexpr ErrorRow kRows[] = {
    {"none"},
    {"missing_file", kNotFound},
    {"file_too_large"},
    {"bad_json"},
    {"missing_key", kNotFound},
    {"bad_value"},
    {"unknown_architecture", kUnimplemented},
    {"unknown_rope_type", kUnimplemented},
    {"unsupported_value", kUnimplemented},
    {"quantized", kUnimplemented},
    {"truncated"},
    {"bad_dtype", kUnimplemented},
    {"bad_shape"},
    {"bad_offsets"},
    {"data_out_of_file"},
    {"duplicate_tensor"},
    {"bad_index"},
    {"missing_shard", kNotFound},
    {"tied_mismatch"},
    {"unknown_tensor", kUnimplemented},
    {"missing_expert", kNotFound},
    {"bad_scale"},
};
static_assert(std::size(kRows) == static_cast<size_t>(FolderErrorCode::kBadScale) + 1);
constexpr ErrorTable<FolderErrorCode> kTable("baton/folder-error", kRows);

}  // namespace

std::string_view FolderErrorName(FolderErrorCode code) { return kTable.Name(code); }

absl::Status FolderError(FolderErrorCode code, std::string_view message) {
  return kTable.Make(code, message);
}

absl::Status TensorError(FolderErrorCode code, std::string_view name, std::string_view what) {
  return FolderError(code, fmt::format("tensor {}: {}", QuotedForMessage(name), what));
}

absl::Status CannotOpenFile(std::string_view name, const absl::Status& why) {
  return FolderError(FolderErrorCode::kMissingFile,
                     fmt::format("{}: {}", name, std::string(why.message())));
}

FolderErrorCode FolderErrorOf(const absl::Status& status) { return kTable.Of(status); }

}  // namespace baton::model
