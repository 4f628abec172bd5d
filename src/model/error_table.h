// ErrorTable: the reasons of one reader's refusals as Status values. A reason is an enum's value,
// from 0 = none without gaps; its name travels as the Status' payload. Constant; any thread.
#ifndef BATON_MODEL_ERROR_TABLE_H_
#define BATON_MODEL_ERROR_TABLE_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "absl/strings/cord.h"

#include "src/base/status.h"

namespace baton::model {

// One reason: a stable name for logs and tests, and what the caller can do about it.
struct ErrorRow {
  std::string_view name;
  absl::StatusCode status = absl::StatusCode::kInvalidArgument;
};

// See the file comment; `Code` is the enum.
template <class Code>
class ErrorTable {
 public:
  // `rows` are those of the enum, in order.
  constexpr ErrorTable(const char* payload_url, std::span<const ErrorRow> rows)
      : payload_url_(payload_url), rows_(rows) {}

  std::string_view Name(Code code) const { return rows_[static_cast<size_t>(code)].name; }

  absl::Status Make(Code code, std::string_view message) const {
    absl::Status status(rows_[static_cast<size_t>(code)].status, std::string(message));
    status.SetPayload(payload_url_, absl::Cord(std::string(Name(code))));
    return status;
  }

  // The code that `status` carries, 0 when it carries none.
  Code Of(const absl::Status& status) const {
    const auto payload = status.GetPayload(payload_url_);
    const std::string name = payload.has_value() ? std::string(*payload) : std::string();
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].name == name) return static_cast<Code>(i);
    }
    return Code{};
  }

 private:
  const char* payload_url_;
  std::span<const ErrorRow> rows_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_ERROR_TABLE_H_
