#include "src/model/gguf_error.h"

#include "src/model/error_table.h"

namespace baton::model {
namespace {

constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;
constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;

constexpr ErrorRow kRows[] = {
    {"none"},
    {"open", kNotFound},
    {"truncated"},
    {"bad_magic"},
    {"wrong_endian", kUnimplemented},
    {"bad_version", kUnimplemented},
    {"too_many_keys"},
    {"too_many_tensors"},
    {"header_too_large"},
    {"string_too_long"},
    {"bad_key"},
    {"duplicate_key"},
    {"bad_value_type"},
    {"nested_array"},
    {"array_too_long"},
    {"bad_bool"},
    {"bad_alignment"},
    {"bad_tensor_name"},
    {"duplicate_tensor"},
    {"bad_dims"},
    {"size_overflow"},
    {"bad_row_length"},
    {"unknown_tensor_type", kUnimplemented},
    {"removed_tensor_type", kUnimplemented},
    {"unsized_tensor_type", kUnimplemented},
    {"bad_offset"},
    {"data_out_of_file"},
    {"split_file", kUnimplemented},
    {"missing_key", kNotFound},
    {"wrong_key_type"},
    {"split_missing", kNotFound},
    {"split_mismatch"},
    {"bad_scale"},
};
static_assert(std::size(kRows) == static_cast<size_t>(GgufErrorCode::kBadScale) + 1);
constexpr ErrorTable<GgufErrorCode> kTable("baton/gguf-error", kRows);

}  // namespace

std::string_view GgufErrorName(GgufErrorCode code) { return kTable.Name(code); }

absl::Status GgufError(GgufErrorCode code, std::string_view message) {
  return kTable.Make(code, fmt::format("GGUF: {}", message));
}

GgufErrorCode GgufErrorOf(const absl::Status& status) { return kTable.Of(status); }

}  // namespace baton::model
