#include "src/text/tokenizer_json.h"

#include "src/base/python_json.h"
#include "src/base/quoted_text.h"
#include "src/text/tokenizer_spec.h"

namespace baton::text {
namespace {

using Json = nlohmann::json;

// Receives the parser's events. Everything becomes a tree, except, when `large` is given, the
// members "vocab" and "merges" of the top-level member "model".
class JsonReader : public nlohmann::json_sax<Json> {
 public:
  JsonReader(TokenizerJson* large, std::string_view name) : large_(large), name_(name) {}

  Json TakeTree() { return std::move(tree_); }
  const Status& status() const { return status_; }

  bool null() override { return Scalar(nullptr); }
  bool boolean(bool value) override { return Scalar(value); }
  bool number_float(double value, const std::string&) override { return Scalar(value); }
  bool binary(Json::binary_t&) override { return Fail("holds binary data"); }

  bool number_integer(int64_t value) override {
    if (place_ == Place::kVocabulary) return BadId();
    return Scalar(value);
  }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::kVocabulary) return Scalar(value);
    if (value > UINT32_MAX) return BadId();
    if (large_->vocabulary.size() >= kMaxSpecTokens) return Fail("has too many tokens");
    large_->vocabulary.emplace_back(std::move(key_), static_cast<uint32_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMerges) return OldMerge(value);
    if (place_ == Place::kPair) {
      pair_.push_back(std::move(value));
      return pair_.size() <= 2 || BadMerge();
    }
    return Scalar(std::move(value));
  }

  bool start_object(size_t) override { return Start(Json::object()); }
  bool start_array(size_t) override {
    if (place_ == Place::kMerges) {
      place_ = Place::kPair;
      pair_.clear();
      return true;
    }
    return Start(Json::array());
  }

  bool key(std::string& value) override {
    key_ = std::move(value);
    if (place_ != Place::kTree) return true;
    if (open_.back()->contains(key_)) {
      return Fail(fmt::format("has the key {} twice", QuotedForMessage(key_)));
    }
    return true;
  }

  bool end_object() override { return End(); }
  bool end_array() override {
    if (place_ != Place::kPair) return End();
    place_ = Place::kMerges;
    return pair_.size() == 2 ? AddMerge(pair_[0], pair_[1]) : BadMerge();
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    if (status_.ok()) status_ = InvalidArgument("{} is not JSON at byte {}", name_, position);
    return false;
  }

 private:
  enum class Place : uint8_t { kTree, kVocabulary, kVocabularyList, kMerges, kPair };

  bool Fail(std::string_view why) {
    if (status_.ok()) status_ = InvalidArgument("{} {}", name_, why);
    return false;
  }

  bool BadId() {
    return Fail(fmt::format("has an id for the token {} that is not a number below 2^32",
                            QuotedForMessage(key_)));
  }

  bool BadMerge() {
    return Fail(fmt::format("merges[{}] is not two tokens", large_->merges.size()));
  }

  bool OldMerge(const std::string& text) {
    const size_t space = text.find(' ');
    if (space == std::string::npos) return BadMerge();
    return AddMerge(text.substr(0, space), text.substr(space + 1));
  }

  bool AddMerge(const std::string& left, const std::string& right) {
    const size_t at = large_->merges.size();
    if (at >= kMaxMerges) return Fail(fmt::format("has more than {} merges", kMaxMerges));
    if (left.empty() || right.empty()) {
      return Fail(fmt::format("merges[{}] has an empty part: joining it would never end", at));
    }
    if ((left + right).find(' ') != std::string::npos) {
      status_ = Unimplemented("{} merges[{}] joins a token with a space: not supported", name_, at);
      return false;
    }
    large_->merges.push_back(left + ' ' + right);
    return true;
  }

  // Puts a value where the parser is.
  bool Scalar(Json value) {
    switch (place_) {
      case Place::kTree:
        return Insert(std::move(value)) != nullptr;
      case Place::kVocabulary:
        return BadId();
      case Place::kVocabularyList:
        return true;
      default:
        return BadMerge();
    }
  }

  Json* Insert(Json value) {
    if (++num_values_ > kMaxJsonValues) {
      Fail(fmt::format("has more than {} values", kMaxJsonValues));
      return nullptr;
    }
    if (open_.empty()) {
      tree_ = std::move(value);
      return &tree_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool Start(Json empty) {
    if (++depth_ > kMaxJsonDepth) return Fail(fmt::format("is nested above {}", kMaxJsonDepth));
    if (place_ == Place::kVocabularyList) return true;
    if (place_ == Place::kVocabulary) return BadId();
    if (place_ != Place::kTree) return BadMerge();
    const bool in_model = large_ != nullptr && open_.size() == 2 && in_model_;
    if (in_model && key_ == "vocab") {
      large_->vocabulary_is_list = empty.is_array();
      return Enter(empty.is_array() ? Place::kVocabularyList : Place::kVocabulary);
    }
    if (in_model && key_ == "merges" && empty.is_array()) return Enter(Place::kMerges);
    if (open_.size() == 1) in_model_ = key_ == "model";
    Json* placed = Insert(std::move(empty));
    if (placed == nullptr) return false;
    open_.push_back(placed);
    return true;
  }

  bool Enter(Place place) {
    // Leaves a mark, so that a second one of that name is refused.
    if (Insert(true) == nullptr) return false;
    place_ = place;
    large_depth_ = depth_;
    return true;
  }

  bool End() {
    if (place_ == Place::kTree) {
      open_.pop_back();
    } else if (depth_ == large_depth_) {
      place_ = Place::kTree;
    }
    --depth_;
    return true;
  }

  TokenizerJson* large_;
  std::string_view name_;
  Status status_;
  Json tree_;
  std::vector<Json*> open_;  // the objects and arrays that are open; grown only at its end
  std::string key_;
  std::vector<std::string> pair_;
  Place place_ = Place::kTree;
  bool in_model_ = false;
  size_t depth_ = 0;
  size_t large_depth_ = 0;  // depth inside the large list
  size_t num_values_ = 0;
};

Status ReadJson(std::string_view text, JsonReader& reader) {
  const bool parsed = Json::sax_parse(text.begin(), text.end(), &reader);
  if (!reader.status().ok()) return reader.status();
  return parsed ? OkStatus() : InvalidArgument("JSON ended early");
}

}  // namespace

StatusOr<TokenizerJson> ParseTokenizerJson(std::string_view text) {
  TokenizerJson out;
  JsonReader reader(&out, "tokenizer.json");
  BATON_RETURN_IF_ERROR(ReadJson(text, reader));
  out.tree = reader.TakeTree();
  if (!out.tree.is_object()) return InvalidArgument("tokenizer.json is not an object");
  return out;
}

StatusOr<Json> ParseSmallJson(std::string_view text, std::string_view name) {
  JsonReader reader(nullptr, name);
  BATON_RETURN_IF_ERROR(ReadJson(PlainJsonOfPython(text), reader));
  Json tree = reader.TakeTree();
  if (!tree.is_object()) return InvalidArgument("{} is not an object", name);
  return tree;
}

}  // namespace baton::text
