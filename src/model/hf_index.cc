#include "src/model/hf_index.h"

#include <utility>

#include "nlohmann/json.hpp"

#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"

namespace baton::model {
namespace {

using Json = nlohmann::json;

// A name of a file of this folder, or of one of its subfolders, and nothing else.
bool IsInsideName(std::string_view name) {
  if (!name.ends_with(".safetensors") || name.find('\0') != std::string_view::npos) return false;
  for (size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = name.find('/', begin);
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

// Receives the parser's events; keeps the members of the top-level object "weight_map" and skips
// everything else.
class IndexReader : public nlohmann::json_sax<Json> {
 public:
  HfIndex TakeIndex() { return std::move(index_); }
  absl::Status Finish() const {
    return status_.ok() && !has_map_ ? BadJson("no JSON object with a weight_map") : status_;
  }

  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(int64_t) override { return Value(); }
  bool number_unsigned(uint64_t) override { return Value(); }
  bool number_float(double, const std::string&) override { return Value(); }
  bool binary(Json::binary_t&) override { return Value(); }
  bool string(std::string& file) override {
    if (!InMap()) return Value();
    if (!IsInsideName(file)) {
      return BadIndex(
          fmt::format("tensor {} is in {}, which names no .safetensors file inside the "
                      "folder",
                      QuotedForMessage(tensor_), QuotedForMessage(file)));
    }
    if (++num_tensors_ > kMaxHfTensors) {
      return BadIndex(fmt::format("more than {} tensors", kMaxHfTensors));
    }
    if (index_.size() == kMaxHfShards && !index_.contains(file)) {
      return BadIndex(fmt::format("more than {} files", kMaxHfShards));
    }
    index_[file].push_back(tensor_);
    return true;
  }
  bool key(std::string& text) override {
    if (depth_ == 1) map_is_next_ = text == "weight_map";
    if (depth_ == 2 && in_map_) tensor_ = text;
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 1 && map_is_next_) {
      if (has_map_) return NoMap();
      has_map_ = in_map_ = true;
      ++depth_;
      return true;
    }
    if (InMap()) return NoFile();
    ++depth_;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 0 || !Value()) return status_.ok() ? NoMap() : false;
    ++depth_;
    return true;
  }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    status_ = BadJson(fmt::format("no JSON at byte {}", position));
    return false;
  }

 private:
  static absl::Status BadJson(std::string_view what) {
    return FolderError(FolderErrorCode::kBadJson, fmt::format("{} is {}", kHfIndexName, what));
  }
  bool NoMap() {
    status_ = BadJson("no JSON object with one weight_map");
    return false;
  }
  bool BadIndex(std::string_view what) {
    status_ = FolderError(FolderErrorCode::kBadIndex, fmt::format("{}: {}", kHfIndexName, what));
    return false;
  }
  bool NoFile() {
    return BadIndex(
        fmt::format("tensor {} is in no .safetensors file of it", QuotedForMessage(tensor_)));
  }

  bool InMap() const { return depth_ == 2 && in_map_; }
  // A value that is no member of weight_map, nor weight_map itself.
  bool Value() {
    if (InMap()) return NoFile();
    return depth_ == 1 && map_is_next_ ? NoMap() : true;
  }
  bool End() {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }

  HfIndex index_;
  absl::Status status_;
  std::string tensor_;  // the last key of weight_map
  size_t num_tensors_ = 0;
  size_t depth_ = 0;
  bool map_is_next_ = false;  // the last key of the top level was weight_map
  bool in_map_ = false;
  bool has_map_ = false;
};

}  // namespace

absl::StatusOr<HfIndex> ReadHfIndex(std::string_view text) {
  if (text.size() > kMaxHfIndexBytes) {
    return FolderError(FolderErrorCode::kFileTooLarge,
                       fmt::format("{} has {} bytes, the limit is {}", kHfIndexName, text.size(),
                                   kMaxHfIndexBytes));
  }
  IndexReader reader;
  Json::sax_parse(text.begin(), text.end(), &reader);
  BATON_RETURN_IF_ERROR(reader.Finish());
  return reader.TakeIndex();
}

}  // namespace baton::model
