#include "src/loadgen/sse_parser.h"

#include <algorithm>

namespace baton::loadgen {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool IsFieldName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
  });
}

}  // namespace

Status SseParser::Push(std::string_view bytes,
                       const std::function<void(std::string_view)>& on_event) {
  while (!bytes.empty()) {
    if (skip_lf_ && bytes.front() == '\n') bytes.remove_prefix(1);
    skip_lf_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    if (line_.size() + data_.size() + std::min(end, bytes.size()) > kMaxEventBytes) {
      return ResourceExhausted("an event is larger than {} bytes", kMaxEventBytes);
    }
    if (end == std::string_view::npos) {
      line_.append(bytes);
      return OkStatus();
    }
    skip_lf_ = bytes[end] == '\r';
    if (line_.empty()) {
      BATON_RETURN_IF_ERROR(TakeLine(bytes.substr(0, end), on_event));
    } else {
      line_.append(bytes.substr(0, end));
      BATON_RETURN_IF_ERROR(TakeLine(line_, on_event));
      line_.clear();
    }
    bytes.remove_prefix(end + 1);
  }
  return OkStatus();
}

Status SseParser::TakeLine(std::string_view line,
                           const std::function<void(std::string_view)>& on_event) {
  if (at_start_ && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  at_start_ = false;
  if (line.empty()) {
    if (has_data_) on_event(data_);
    data_.clear();
    has_data_ = false;
    return OkStatus();
  }
  if (line.front() == ':') return OkStatus();
  const size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  if (!IsFieldName(name)) {
    return DataLoss("a line of the event stream is no field: '{}'", line.substr(0, 80));
  }
  if (name != "data") return OkStatus();
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_.append(value);
  has_data_ = true;
  return OkStatus();
}

}  // namespace baton::loadgen
