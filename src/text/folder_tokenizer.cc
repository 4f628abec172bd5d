#include "src/text/folder_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "nlohmann/json.hpp"

#include "src/base/folder_entries.h"
#include "src/base/log.h"
#include "src/base/quoted_text.h"
#include "src/base/regular_file.h"
#include "src/text/added_tokens.h"
#include "src/text/pre_tokenizer.h"
#include "src/text/spm_encoder.h"
#include "src/text/tokenizer.h"
#include "src/text/tokenizer_json.h"
#include "src/text/tokenizer_json_shape.h"
#include "src/text/utf8.h"

namespace baton::text {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// Rows are rounded up to a multiple of this (at least) for the matrix units.
constexpr size_t kPaddingMultiple = 8;
// The most rows without a token: 1/32. DeepSeek-V2 and V2-Lite leave 2385 of 102400 (1/43), gpt-oss
// leaves 1069 of 201088 (1/188).
constexpr size_t kPaddingShare = 32;
constexpr size_t kNumBytes = 256;
constexpr auto kNormal = static_cast<int32_t>(TokenType::kNormal);
constexpr auto kUnused = static_cast<int32_t>(TokenType::kUnused);

bool HoldsSpace(std::string_view text) {
  return text.find(' ') != std::string_view::npos || text.find(kSpmSpace) != std::string_view::npos;
}

// Fills a spec from one folder. Used once.
class FolderReader {
 public:
  FolderReader(const FolderTokenizerFiles& files, size_t vocab_size)
      : files_(files), vocab_size_(vocab_size) {}

  StatusOr<TokenizerSpec> Read() {
    if (vocab_size_ == 0 || vocab_size_ > kMaxSpecTokens) {
      return InvalidArgument("the model has {} tokens, outside [1, {}]", vocab_size_,
                             kMaxSpecTokens);
    }
    BATON_ASSIGN_OR_RETURN(TokenizerJson json, ParseTokenizerJson(files_.tokenizer_json));
    if (!files_.tokenizer_config_json.empty()) {
      BATON_ASSIGN_OR_RETURN(config_,
                             ParseSmallJson(files_.tokenizer_config_json, "tokenizer_config.json"));
    }
    BATON_ASSIGN_OR_RETURN(shape_, ReadTokenizerShape(json.tree));
    if (json.vocabulary_is_list) {
      return Unimplemented("tokenizer.json: a model.vocab that is a list is not supported");
    }
    BATON_RETURN_IF_ERROR(SetVocabulary(std::move(json.vocabulary)));
    spec_.merges = std::move(json.merges);
    BATON_RETURN_IF_ERROR(SetAddedTokens(json.tree));
    BATON_RETURN_IF_ERROR(CheckSize());
    BATON_RETURN_IF_ERROR(SetShape());
    BATON_RETURN_IF_ERROR(SetSpecialIds(json.tree));
    return std::move(spec_);
  }

 private:
  Status WrongSize(size_t num_tokens) const {
    return InvalidArgument(
        "tokenizer.json has {} tokens, but the model has {}: they do not belong together (rows "
        "without a token: at most 1/{}, where all rows are a multiple of {})",
        num_tokens, vocab_size_, kPaddingShare, kPaddingMultiple);
  }

  Status SetVocabulary(std::vector<std::pair<std::string, uint32_t>>&& vocabulary) {
    size_t num_tokens = vocabulary.size();
    for (const auto& [text, id] : vocabulary) num_tokens = std::max(num_tokens, size_t{id} + 1);
    if (num_tokens > vocab_size_) return WrongSize(num_tokens);
    spec_.tokens.resize(vocab_size_);
    spec_.token_types.assign(vocab_size_, kNormal);
    ids_.reserve(vocabulary.size());
    for (auto& [text, id] : vocabulary) BATON_RETURN_IF_ERROR(AddToken(std::move(text), id));
    return OkStatus();
  }

  Status AddToken(std::string text, uint32_t id) {
    if (text.empty()) return InvalidArgument("tokenizer.json: the token {} is empty", id);
    if (id >= vocab_size_) return WrongSize(size_t{id} + 1);
    if (!spec_.tokens[id].empty()) {
      return InvalidArgument("tokenizer.json: the tokens {} and {} both have the id {}",
                             QuotedForMessage(spec_.tokens[id]), QuotedForMessage(text), id);
    }
    const auto [found, inserted] = ids_.emplace(text, id);
    if (!inserted) {
      return InvalidArgument("tokenizer.json: the token {} has the ids {} and {}",
                             QuotedForMessage(text), found->second, id);
    }
    spec_.tokens[id] = std::move(text);
    return OkStatus();
  }

  // Makes control tokens of those that tokenizer_config.json calls special, as transformers does.
  // One that ordinary text becomes ("!" as pad_token) stays ordinary: text would lose it.
  void AddNamedTokens(std::map<uint32_t, AddedToken>& added) const {
    absl::flat_hash_map<std::string_view, AddedToken*> known;
    for (auto& [id, token] : added) known.emplace(token.text, &token);
    absl::flat_hash_map<std::string, AddedToken> named;
    for (AddedToken& token : ReadNamedTokens(config_)) {
      const auto same = known.find(token.text);
      const bool is_token = same != known.end() || ids_.contains(token.text);
      const bool is_control = same != known.end() && same->second->is_control;
      const bool is_letter = FirstCharacter(token.text).size() == token.text.size();
      if (is_token && !is_control && !is_letter) named.emplace(token.text, token);
    }
    EraseMerged(named);
    for (auto& [text, token] : named) {
      if (const auto same = known.find(text); same != known.end()) {
        same->second->is_control = true;
        same->second->traits &= ~kIsNormalized;
        continue;
      }
      token.id = ids_.find(text)->second;
      added.emplace(token.id, std::move(token));
    }
  }

  // Erases what ordinary text becomes by merges: one walk over them, however many tokens there are.
  void EraseMerged(absl::flat_hash_map<std::string, AddedToken>& tokens) const {
    std::string merged;
    for (const std::string_view merge : spec_.merges) {
      if (tokens.empty()) return;
      const size_t left = merge.find(' ');
      if (left == std::string_view::npos) continue;
      merged.assign(merge.substr(0, left)).append(merge.substr(left + 1));
      tokens.erase(merged);
    }
  }

  Status SetAddedTokens(const Json& tree) {
    BATON_ASSIGN_OR_RETURN(auto added, ReadAddedTokens(tree, config_));
    AddNamedTokens(added);
    const bool has_normalizer = shape_.nfc || shape_.marks_spaces_first;
    bool has_traits = false;
    for (const auto& [id, token] : added) {
      if (id >= vocab_size_ && token.is_control) {
        // gemma 3: a token for images, which the text model has no row for.
        BATON_LOG_WARN("the special token {} {} is past the model's {} tokens: left out", id,
                       QuotedForMessage(token.text), vocab_size_);
        continue;
      }
      const TokenType type = token.is_control ? TokenType::kControl : TokenType::kUserDefined;
      const bool is_known = id < vocab_size_ && spec_.tokens[id] == token.text;
      if (!is_known) BATON_RETURN_IF_ERROR(AddToken(token.text, id));
      spec_.token_types[id] = static_cast<int32_t>(type);
      // Without a normalizer the text is the same before and after it.
      int32_t traits = token.traits & (has_normalizer ? kAllTokenTraits : ~kIsNormalized);
      const bool is_letter = FirstCharacter(token.text).size() == token.text.size();
      const bool is_hidden = (traits & (kIsNormalized | kIsWholeWord)) != 0;
      if (shape_.is_spm && is_letter && is_hidden && !is_known) traits |= kIsFoundOnly;
      const bool is_as_written = (traits & kIsNormalized) == 0;
      const bool holds_space = shape_.is_spm && !token.is_control && HoldsSpace(token.text);
      spec_.user_defined_as_written |= holds_space && is_as_written;
      if (traits == 0) continue;
      has_traits = true;
      spec_.token_traits.resize(vocab_size_);
      spec_.token_traits[id] = traits;
    }
    if (has_traits) {
      // Blanks are those of the text as written, where U+2581 is none.
      spec_.user_defined_as_written = shape_.is_spm;
      spec_.marks_spaces_first = shape_.marks_spaces_first;
      spec_.adds_prefix_first = shape_.adds_prefix_first;
    }
    return OkStatus();
  }

  // Every row has a token, but for the last ones, which round the count up, and ids among the added
  // tokens that nobody took.
  Status CheckSize() {
    const size_t num_missing = vocab_size_ - ids_.size();
    if (num_missing == 0) return OkStatus();
    const auto is_missing = [](const std::string& token) { return token.empty(); };
    const auto last = std::find_if_not(spec_.tokens.rbegin(), spec_.tokens.rend(), is_missing);
    const auto num_rows = static_cast<size_t>(spec_.tokens.rend() - last);
    const auto first = std::find_if(spec_.tokens.begin(), spec_.tokens.end(), is_missing);
    const auto hole = static_cast<size_t>(first - spec_.tokens.begin());
    for (size_t id = hole; id < num_rows; ++id) {
      if (!spec_.tokens[id].empty() && spec_.token_types[id] == kNormal) {
        return InvalidArgument("tokenizer.json: no token has the id {}, and an ordinary one has {}",
                               hole, id);
      }
    }
    const bool is_rounded = num_rows == vocab_size_ || vocab_size_ % kPaddingMultiple == 0;
    if (!is_rounded || num_missing > vocab_size_ / kPaddingShare) return WrongSize(num_rows);
    for (size_t id = hole; id < vocab_size_; ++id) {
      if (spec_.tokens[id].empty()) spec_.token_types[id] = kUnused;
    }
    return OkStatus();
  }

  Status SetShape() {
    spec_.model = shape_.is_spm ? "llama" : "gpt2";
    spec_.pre = shape_.is_spm ? "default" : shape_.pre;
    spec_.nfc = shape_.nfc;
    if (!shape_.is_spm) {
      // The field stays absent where the value is the split rule's own, as in a GGUF file. Builds
      // from before this field then read the spec too.
      const StatusOr<PreTokenizer> rule = FindPreTokenizer(spec_.pre);
      const bool is_usual = rule.ok() && rule->ignore_merges == shape_.ignore_merges;
      if (!is_usual) spec_.ignore_merges = shape_.ignore_merges;
      return OkStatus();
    }
    spec_.add_space_prefix = shape_.add_space_prefix;
    spec_.space_prefix_at_start_only = shape_.prefix_at_start_only;
    spec_.space_prefix_unless_there = shape_.prefix_unless_there;
    size_t num_bytes = 0;
    for (size_t id = 0; shape_.byte_fallback && id < vocab_size_; ++id) {
      const bool is_normal = spec_.token_types[id] == static_cast<int32_t>(TokenType::kNormal);
      if (is_normal && ByteOfToken(spec_.tokens[id]) >= 0) {
        spec_.token_types[id] = static_cast<int32_t>(TokenType::kByte);
        ++num_bytes;
      }
    }
    if (num_bytes == kNumBytes) return OkStatus();
    // A text's other characters would become unk_token in `tokenizers`, and nothing without one.
    return Unimplemented(
        "tokenizer.json: a SentencePiece-style model needs byte_fallback and the tokens <0x00> to "
        "<0xFF>, of which {} are used here: other characters would be lost",
        num_bytes);
  }

  // The id of the token that tokenizer_config.json names under `key`, as a string or as an object.
  StatusOr<std::optional<uint32_t>> NamedToken(const char* key) const {
    if (!config_.contains(key) || config_[key].is_null()) return std::optional<uint32_t>();
    const std::string text = config_[key].is_object() ? StringMember(config_[key], "content")
                                                      : StringMember(config_, key);
    const auto found = ids_.find(text);
    if (found != ids_.end()) return std::optional<uint32_t>(found->second);
    return InvalidArgument("tokenizer_config.json: {} is {}, which is no token", key,
                           QuotedForMessage(text));
  }

  Status SetSpecialIds(const Json& tree) {
    BATON_ASSIGN_OR_RETURN(spec_.bos_id, NamedToken("bos_token"));
    BATON_ASSIGN_OR_RETURN(spec_.eos_id, NamedToken("eos_token"));
    BATON_ASSIGN_OR_RETURN(spec_.pad_id, NamedToken("pad_token"));
    if (const auto unk = ids_.find(shape_.unk_token); unk != ids_.end()) {
      spec_.unk_id = unk->second;
      // A control token stays one: it may end a text too (<|endoftext|>).
      int32_t& type = spec_.token_types[unk->second];
      const bool is_normal = type == static_cast<int32_t>(TokenType::kNormal);
      if (is_normal) type = static_cast<int32_t>(TokenType::kUnknown);
    }
    BATON_RETURN_IF_ERROR(SetAroundText(tree));
    BATON_RETURN_IF_ERROR(SetGenerationEnds());
    return SetTemplates();
  }

  Status SetAroundText(const Json& tree) {
    BATON_ASSIGN_OR_RETURN(const AroundText around, ReadPostProcessor(tree));
    for (const std::optional<uint32_t>& id : {around.before, around.after}) {
      const bool is_token = !id || (*id < vocab_size_ && !spec_.tokens[*id].empty());
      if (is_token) continue;
      return InvalidArgument("tokenizer.json: post_processor puts {}, which is no token", *id);
    }
    if (around.before) spec_.bos_id = around.before;
    if (around.after) spec_.eos_id = around.after;
    // The post_processor says it. Llama's class of transformers 4 alone let tokenizer_config.json
    // overrule it; release 5 does not write these keys.
    const std::string name = StringMember(config_, "tokenizer_class");
    const bool is_heard = name == "LlamaTokenizer" || name == "LlamaTokenizerFast";
    const auto adds = [&](const char* key, const std::optional<uint32_t>& id) {
      return is_heard ? BoolMember(config_, key, id.has_value()) : id.has_value();
    };
    spec_.add_bos = spec_.bos_id && adds("add_bos_token", around.before);
    spec_.add_eos = spec_.eos_id && adds("add_eos_token", around.after);
    return OkStatus();
  }

  // More ends of a generation than the one that tokenizer_config.json names.
  Status SetGenerationEnds() {
    std::vector<uint32_t> ends;
    std::optional<std::string> left_out;
    for (const auto& [text, name] :
         {std::pair<const std::string&, const char*>(files_.generation_config_json,
                                                     "generation_config.json"),
          std::pair<const std::string&, const char*>(files_.config_json, "config.json")}) {
      if (text.empty()) continue;
      BATON_ASSIGN_OR_RETURN(const Json config, ParseSmallJson(text, name));
      BATON_ASSIGN_OR_RETURN(const std::vector<Json> begins,
                             IdsOf(config.value("bos_token_id", Json()), name, "bos_token_id"));
      // A null in tokenizer_config.json says that there is none, as for Qwen's: templates write "".
      const bool is_open = !spec_.bos_id && !config_.contains("bos_token");
      if (is_open && begins.size() == 1 && IsToken(begins[0])) {
        spec_.bos_id = begins[0].get<uint32_t>();
      }
      BATON_ASSIGN_OR_RETURN(const std::vector<Json> ids,
                             IdsOf(EndsOf(config), name, "eos_token_id"));
      for (const Json& id : ids) {
        if (IsToken(id)) {
          ends.push_back(id.get<uint32_t>());
          continue;
        }
        left_out = id.dump();
        BATON_LOG_WARN("{}: eos_token_id {} is none of the model's {} tokens: left out", name,
                       *left_out, vocab_size_);
      }
    }
    for (const uint32_t id : ends) BATON_RETURN_IF_ERROR(AddEnd(id));
    if (spec_.eos_id || !left_out) return OkStatus();
    // Its answers would go on until max_tokens.
    return InvalidArgument(
        "eos_token_id {} is none of the model's {} tokens, and no other token ends "
        "a generation",
        *left_out, vocab_size_);
  }

  bool IsToken(const Json& id) const {
    return id.is_number_unsigned() && id.get<uint64_t>() < vocab_size_;
  }

  // The integers of an id or a list of ids; none for null. Anything else is refused: passed over,
  // it would let answers go on until max_tokens.
  static StatusOr<std::vector<Json>> IdsOf(const Json& value, std::string_view file,
                                           std::string_view key) {
    std::vector<Json> ids;
    for (const Json& id : value.is_array() ? value : Json::array({value})) {
      if (id.is_null() && !value.is_array()) continue;
      if (!id.is_number_integer()) {
        return InvalidArgument("{}: {} is {}, wanted an id of a token or a list of ids", file, key,
                               id.is_string()       ? QuotedForMessage(id.get<std::string>())
                               : id.is_structured() ? "a list or an object"
                                                    : id.dump());
      }
      ids.push_back(id);
    }
    return ids;
  }

  // eos_token_id, or that of the text part of a model that reads images too.
  static Json EndsOf(const Json& config) {
    const Json ends = config.value("eos_token_id", Json());
    if (!ends.is_null()) return ends;
    const auto text = config.find("text_config");
    const bool has_ends =
        text != config.end() && text->is_object() && text->contains("eos_token_id");
    return has_ends ? (*text)["eos_token_id"] : Json();
  }

  // A token whose text ends a generation by itself gives its place to one that the file alone
  // names.
  Status AddEnd(uint32_t id) {
    const auto ends_by_text = [this](uint32_t end) {
      return spec_.tokens[end] != "<|end|>" && IsEogText(spec_.tokens[end]);
    };
    for (std::optional<uint32_t>* place : {&spec_.eos_id, &spec_.eot_id, &spec_.eom_id}) {
      if (*place == id) return OkStatus();
      if (place->has_value()) continue;
      *place = id;
      return OkStatus();
    }
    if (ends_by_text(id)) return OkStatus();
    for (std::optional<uint32_t>* place : {&spec_.eot_id, &spec_.eom_id}) {
      if (!ends_by_text(**place)) continue;
      *place = id;
      return OkStatus();
    }
    return Unimplemented(
        "eos_token_id: more than three tokens end a generation ({}, {}, {} and {}): not supported",
        *spec_.eos_id, *spec_.eot_id, *spec_.eom_id, id);
  }

  // The member chat_template of `config`: a text, a list of {name, template}, or templates by name.
  Status SetTemplatesFrom(const Json& config, const char* file) {
    const Json templates = config.value("chat_template", Json());
    if (templates.is_string()) spec_.chat_template = templates.get<std::string>();
    if (!templates.is_structured()) return OkStatus();
    std::vector<NamedChatTemplate> named;
    for (const auto& [name, entry] : templates.items()) {
      if (templates.is_array()) {
        named.push_back({StringMember(entry, "name"), StringMember(entry, "template")});
      } else {
        named.push_back({name, StringMember(templates, name)});
      }
    }
    for (NamedChatTemplate& one : named) {
      if (one.name.empty() || one.source.empty()) {
        return InvalidArgument("{}: a chat_template has no name or template", file);
      }
      if (one.name == "default") {
        spec_.chat_template = std::move(one.source);
      } else {
        spec_.named_templates.push_back(std::move(one));
      }
    }
    return OkStatus();
  }

  Status SetTemplates() {
    BATON_RETURN_IF_ERROR(SetTemplatesFrom(config_, "tokenizer_config.json"));
    // As in transformers, templates in files of their own stand for all of tokenizer_config.json:
    // where none of them is the default, the model has none.
    if (!files_.chat_template_jinja.empty() || !files_.additional_templates.empty()) {
      spec_.chat_template = files_.chat_template_jinja;
      spec_.named_templates.clear();
    }
    for (const NamedChatTemplate& one : files_.additional_templates) {
      if (one.name == "default") {
        spec_.chat_template = one.source;
      } else {
        spec_.named_templates.push_back(one);
      }
    }
    const bool has_none = spec_.chat_template.empty() && spec_.named_templates.empty();
    if (files_.chat_template_json.empty() || !has_none) return OkStatus();
    BATON_ASSIGN_OR_RETURN(const Json config,
                           ParseSmallJson(files_.chat_template_json, "chat_template.json"));
    return SetTemplatesFrom(config, "chat_template.json");
  }

  const FolderTokenizerFiles& files_;
  const size_t vocab_size_;
  Json config_ = Json::object();  // tokenizer_config.json
  TokenizerShape shape_;
  TokenizerSpec spec_;
  absl::flat_hash_map<std::string, uint32_t> ids_;
};

// The text of a file of the folder; empty when it is not there.
StatusOr<std::string> ReadLimited(const fs::path& folder, const char* name, size_t max_bytes) {
  StatusOr<std::string> text = ReadRegularFile(folder / name, max_bytes);
  if (absl::IsNotFound(text.status())) return std::string();
  if (!text.ok()) return WithPrefix(text.status(), name);
  if (text->empty()) return InvalidArgument("{} is empty", name);
  return text;
}

StatusOr<std::vector<NamedChatTemplate>> ReadAdditionalTemplates(const fs::path& folder) {
  const fs::path inner = "additional_chat_templates";
  std::error_code error;
  const auto entries = FolderEntries(folder / inner, &error);
  const bool is_folder =
      error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory;
  if (error && is_folder) return Unavailable("{}: {}", inner.string(), error.message());
  std::vector<NamedChatTemplate> out;
  size_t num_bytes = 0;
  for (const fs::directory_entry& entry : entries) {
    const fs::path file = inner / entry.path().filename();
    if (file.extension() != ".jinja") continue;
    if (out.size() == kMaxAdditionalTemplates) {
      return InvalidArgument("{} has more than {} templates", inner.string(),
                             kMaxAdditionalTemplates);
    }
    BATON_ASSIGN_OR_RETURN(std::string text,
                           ReadLimited(folder, file.c_str(), kMaxConfigJsonBytes));
    num_bytes += text.size();
    if (num_bytes > kMaxConfigJsonBytes) {
      return InvalidArgument("{} has more than {} bytes of templates", inner.string(),
                             kMaxConfigJsonBytes);
    }
    out.push_back({file.stem().string(), std::move(text)});
  }
  return out;
}

}  // namespace

StatusOr<TokenizerSpec> TokenizerSpecFromFolder(const FolderTokenizerFiles& files,
                                                size_t vocab_size) {
  return FolderReader(files, vocab_size).Read();
}

StatusOr<TokenizerSpec> LoadFolderTokenizer(const std::string& path, size_t vocab_size) {
  const fs::path folder(path);
  FolderTokenizerFiles files;
  const auto read = [&folder](const char* name, size_t max_bytes, std::string* out) {
    StatusOr<std::string> text = ReadLimited(folder, name, max_bytes);
    if (!text.ok()) return text.status();
    *out = *std::move(text);
    return OkStatus();
  };
  BATON_RETURN_IF_ERROR(read("tokenizer.json", kMaxTokenizerJsonBytes, &files.tokenizer_json));
  if (files.tokenizer_json.empty()) {
    return NotFound("{} has no tokenizer.json (a tokenizer.model alone is not enough)", path);
  }
  BATON_RETURN_IF_ERROR(
      read("tokenizer_config.json", kMaxConfigJsonBytes, &files.tokenizer_config_json));
  BATON_RETURN_IF_ERROR(
      read("generation_config.json", kMaxConfigJsonBytes, &files.generation_config_json));
  BATON_RETURN_IF_ERROR(read("config.json", kMaxConfigJsonBytes, &files.config_json));
  BATON_RETURN_IF_ERROR(
      read("chat_template.jinja", kMaxConfigJsonBytes, &files.chat_template_jinja));
  BATON_RETURN_IF_ERROR(read("chat_template.json", kMaxConfigJsonBytes, &files.chat_template_json));
  BATON_ASSIGN_OR_RETURN(files.additional_templates, ReadAdditionalTemplates(folder));
  return TokenizerSpecFromFolder(files, vocab_size);
}

}  // namespace baton::text
