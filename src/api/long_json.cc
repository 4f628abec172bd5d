#include "src/api/long_json.h"

#include <algorithm>

namespace baton::api {

std::string_view TextStep(std::string_view text, size_t at) {
  constexpr size_t kTextStepBytes = size_t{4} << 10;
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };
  size_t end = std::min(text.size(), at + kTextStepBytes);
  for (int i = 0; i < 3 && end < text.size() && continues(text[end]); ++i) --end;
  return text.substr(at, end - at);
}

void LongJson::LongString(std::string_view text) {
  json_.BeginString();
  parts_.push_back({json_.Take(), text});
  json_.EndString();
}

std::string LongJson::Next(size_t num_bytes) {
  std::string out;
  JsonWriter escaped;
  while (next_ < parts_.size() && out.size() < num_bytes) {
    const Part& part = parts_[next_];
    if (!json_given_) out += part.json;
    json_given_ = true;
    const std::string_view step = TextStep(part.text, text_at_);
    escaped.AppendString(step);
    out += escaped.Take();
    text_at_ += step.size();
    if (text_at_ < part.text.size()) continue;
    ++next_;
    text_at_ = 0;
    json_given_ = false;
  }
  if (next_ == parts_.size() && out.size() < num_bytes) out += json_.Take();
  return out;
}

}  // namespace baton::api
