#include "src/router/served_names.h"

#include <algorithm>

#include "src/base/ascii_text.h"
#include "src/base/limits.h"
#include "src/base/quoted_text.h"

namespace baton::router {

using limits::kMaxModelIdBytes;

namespace {

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxModelIdBytes && IsVisibleAscii(name);
}

}  // namespace

StatusOr<ServedNames> ServedNames::Parse(std::string_view text) {
  ServedNames served;
  std::string_view model;
  while (!text.empty()) {
    const size_t end = text.find(',');
    std::string_view name = text.substr(0, end);
    if (const size_t equals = name.find('='); equals != std::string_view::npos) {
      model = name.substr(0, equals);
      name.remove_prefix(equals + 1);
      if (!IsName(model)) {
        return InvalidArgument("the model {} before '=' must be 1 to {} printable characters",
                               QuotedForMessage(model), kMaxModelIdBytes);
      }
    }
    BATON_RETURN_IF_ERROR(served.Add(model, name));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
    if (text.empty()) return InvalidArgument("a name is missing after the last ','");
  }
  return served;
}

ServedNames::Row& ServedNames::RowOf(std::string_view model) {
  for (Row& row : rows_) {
    if (row.model == model) return row;
  }
  return rows_.emplace_back(Row{std::string(model), {}});
}

Status ServedNames::Add(std::string_view model, std::string_view name) {
  if (!IsName(name)) {
    return InvalidArgument("{} is no name: 1 to {} printable ASCII characters without blanks",
                           QuotedForMessage(name), kMaxModelIdBytes);
  }
  if (name == "default") {
    return InvalidArgument("'default' already means the only model; choose another name");
  }
  for (const Row& row : rows_) {
    if (std::find(row.names.begin(), row.names.end(), name) == row.names.end()) continue;
    return InvalidArgument("{} is given twice", QuotedForMessage(name));
  }
  Row& row = RowOf(model);
  if (row.names.size() >= kMaxServedNames) {
    return InvalidArgument("a model may have at most {} names", kMaxServedNames);
  }
  row.names.emplace_back(name);
  return OkStatus();
}

std::vector<std::string> ServedNames::NamesOf(std::string_view id, bool is_only) const {
  std::vector<std::string> names;
  for (const Row& row : rows_) {
    if (row.model != id && !(row.model.empty() && is_only)) continue;
    names.insert(names.end(), row.names.begin(), row.names.end());
  }
  return names;
}

std::vector<std::string> ServedNames::Models() const {
  std::vector<std::string> models;
  for (const Row& row : rows_) {
    if (!row.model.empty()) models.push_back(row.model);
  }
  return models;
}

}  // namespace baton::router
