#include "src/text/tokenizer_json_shape.h"

#include <vector>

#include "src/base/quoted_text.h"
#include "src/text/pre_tokenizer.h"
#include "src/text/spm_encoder.h"

namespace baton::text {
namespace {

using Json = nlohmann::json;

// The member `key`, or null.
const Json& Member(const Json& object, std::string_view key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(std::string(key));
  return found == object.end() ? kNull : *found;
}

std::string TypeOf(const Json& part) { return StringMember(part, "type"); }

// A part and what it is a sequence of (`list` names that member), in order; null gives none.
std::vector<const Json*> Flatten(const Json& part, std::string_view list) {
  std::vector<const Json*> out;
  if (part.is_null()) return out;
  if (TypeOf(part) != "Sequence" || !Member(part, list).is_array()) return {&part};
  for (const Json& inner : Member(part, list)) {
    for (const Json* leaf : Flatten(inner, list)) out.push_back(leaf);
  }
  return out;
}

Status Unsupported(std::string_view what, const Json& part) {
  // The dump is ASCII, with control characters escaped.
  const std::string dump = part.dump(-1, ' ', true, Json::error_handler_t::replace);
  return Unimplemented("tokenizer.json: {} {} is not supported: {}", what,
                       QuotedForMessage(TypeOf(part)), dump.substr(0, 200));
}

// The work of the normalizers.
struct Normalizing {
  bool nfc = false;
  bool marks_spaces = false;  // " " -> U+2581
  bool prepends_mark = false;
};

StatusOr<Normalizing> ReadNormalizer(const Json& tree) {
  Normalizing out;
  for (const Json* part : Flatten(Member(tree, "normalizer"), "normalizers")) {
    const std::string type = TypeOf(*part);
    if (type == "NFC" && !out.marks_spaces) {
      out.nfc = true;
    } else if (type == "Prepend" && Member(*part, "prepend") == kSpmSpace && !out.marks_spaces) {
      out.prepends_mark = true;
    } else if (type == "Replace" && Member(Member(*part, "pattern"), "String") == " " &&
               Member(*part, "content") == kSpmSpace) {
      out.marks_spaces = true;
    } else {
      return Unsupported("normalizer", *part);
    }
  }
  return out;
}

// Metaspace in its new form, and in the one with add_prefix_space instead of prepend_scheme.
Status ReadMetaspace(const Json& part, TokenizerShape* shape) {
  const std::string scheme = StringMember(part, "prepend_scheme");
  const bool old_prefix = BoolMember(part, "add_prefix_space", true);
  const bool known = scheme.empty() || scheme == "always" || scheme == "first" || scheme == "never";
  if (!known || Member(part, "replacement") != kSpmSpace || BoolMember(part, "split", true)) {
    return Unsupported("pre_tokenizer", part);
  }
  shape->add_space_prefix = scheme.empty() ? old_prefix : scheme != "never";
  shape->prefix_at_start_only = scheme == "first";
  shape->prefix_unless_there = true;
  return OkStatus();
}

// "Removed" and inverted: text that the pattern does not match vanishes.
bool DropsTheRest(const Json& part) {
  return TypeOf(part) == "Split" && StringMember(part, "behavior") == "Removed" &&
         BoolMember(part, "invert", false);
}

// The pattern that one pre-tokenizer of a byte-level model splits by; empty = none.
StatusOr<std::string> SplitPattern(const Json& part) {
  const std::string type = TypeOf(part);
  if (type == "ByteLevel" && !BoolMember(part, "add_prefix_space", true)) {
    return BoolMember(part, "use_regex", true) ? std::string(kGpt2Pattern) : std::string();
  }
  if (type == "Digits" && BoolMember(part, "individual_digits", false)) {
    return std::string(kSingleDigitPattern);
  }
  const std::string regex = StringMember(Member(part, "pattern"), "Regex");
  // "Isolated" makes pieces of the matches and of what lies between them, inverted or not.
  const bool isolates = StringMember(part, "behavior") == "Isolated" || DropsTheRest(part);
  if (type == "Split" && !regex.empty() && isolates) return regex;
  return Unsupported("pre_tokenizer", part);
}

Status ReadByteLevel(const std::vector<const Json*>& parts, TokenizerShape* shape) {
  std::vector<std::string> patterns;
  const Json* dropping = nullptr;
  for (const Json* part : parts) {
    if (DropsTheRest(*part)) dropping = part;
    if (TypeOf(*part) == "ByteLevel" && part != parts.back()) {
      return Unimplemented("tokenizer.json: pre_tokenizer \"ByteLevel\" is not the last");
    }
    BATON_ASSIGN_OR_RETURN(std::string pattern, SplitPattern(*part));
    if (!pattern.empty()) patterns.push_back(std::move(pattern));
  }
  const StatusOr<std::string_view> rule = FindRuleByPatterns(patterns);
  if (!rule.ok()) return WithPrefix(rule.status(), "tokenizer.json: pre_tokenizer");
  // A rule of one pattern matches every character; the patterns of the others do so together only.
  if (dropping != nullptr && patterns.size() > 1) return Unsupported("pre_tokenizer", *dropping);
  shape->pre = *rule;
  return OkStatus();
}

Status ReadSpm(const std::vector<const Json*>& parts, const Normalizing& normalizing,
               TokenizerShape* shape) {
  shape->is_spm = true;
  shape->add_space_prefix = normalizing.prepends_mark;
  shape->marks_spaces_first = normalizing.marks_spaces;
  shape->adds_prefix_first = normalizing.prepends_mark;
  bool marks_spaces = normalizing.marks_spaces;
  for (const Json* part : parts) {
    const std::string type = TypeOf(*part);
    // There are no spaces left to split at.
    const bool is_void = type == "Split" && normalizing.marks_spaces &&
                         Member(Member(*part, "pattern"), "String") == " ";
    if (is_void) continue;
    if (type != "Metaspace" || normalizing.prepends_mark)
      return Unsupported("pre_tokenizer", *part);
    BATON_RETURN_IF_ERROR(ReadMetaspace(*part, shape));
    marks_spaces = true;
  }
  if (!marks_spaces) {
    return Unimplemented(
        "tokenizer.json: neither byte-level (pre_tokenizer ByteLevel) nor SentencePiece-style "
        "(normalizer Replace or pre_tokenizer Metaspace)");
  }
  return OkStatus();
}

Status ReadModelOptions(const Json& model, TokenizerShape* shape) {
  const std::string type = TypeOf(model);
  // Files from before the type was written are told by their merges.
  if (type != "BPE" && !(type.empty() && model.contains("merges"))) {
    return Unimplemented("tokenizer.json: model {} is not supported; this build has \"BPE\"",
                         QuotedForMessage(type));
  }
  // Without them every text would be cut into single bytes. An empty list is one of bytes alone.
  if (Member(model, "merges").is_null()) {
    return InvalidArgument("tokenizer.json: no model.merges, which a \"BPE\" model needs");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!StringMember(model, key).empty()) {
      return Unimplemented("tokenizer.json: model option {} is not supported", key);
    }
  }
  const Json& dropout = Member(model, "dropout");
  if (!dropout.is_null() && dropout != 0.0) {
    return Unimplemented("tokenizer.json: model option dropout is not supported");
  }
  shape->ignore_merges = BoolMember(model, "ignore_merges", false);
  shape->byte_fallback = BoolMember(model, "byte_fallback", false);
  shape->unk_token = StringMember(model, "unk_token");
  return OkStatus();
}

}  // namespace

std::string StringMember(const Json& object, std::string_view key) {
  const Json& member = Member(object, key);
  return member.is_string() ? member.get<std::string>() : std::string();
}

bool BoolMember(const Json& object, std::string_view key, bool otherwise) {
  const Json& member = Member(object, key);
  return member.is_boolean() ? member.get<bool>() : otherwise;
}

StatusOr<TokenizerShape> ReadTokenizerShape(const Json& tree) {
  TokenizerShape shape;
  BATON_RETURN_IF_ERROR(ReadModelOptions(Member(tree, "model"), &shape));
  BATON_ASSIGN_OR_RETURN(const Normalizing normalizing, ReadNormalizer(tree));
  const std::vector<const Json*> parts = Flatten(Member(tree, "pre_tokenizer"), "pretokenizers");
  bool is_byte_level = false;
  for (const Json* part : parts) is_byte_level |= TypeOf(*part) == "ByteLevel";
  if (!is_byte_level) {
    BATON_RETURN_IF_ERROR(ReadSpm(parts, normalizing, &shape));
  } else if (normalizing.marks_spaces || normalizing.prepends_mark) {
    return Unimplemented("tokenizer.json: a normalizer for spaces with pre_tokenizer ByteLevel");
  } else {
    BATON_RETURN_IF_ERROR(ReadByteLevel(parts, &shape));
  }
  shape.nfc = normalizing.nfc;
  if (shape.is_spm && shape.ignore_merges) {
    return Unimplemented(
        "tokenizer.json: model option ignore_merges needs pre_tokenizer ByteLevel");
  }
  return shape;
}

StatusOr<AroundText> ReadPostProcessor(const Json& tree) {
  AroundText around;
  for (const Json* part : Flatten(Member(tree, "post_processor"), "processors")) {
    if (TypeOf(*part) == "ByteLevel") continue;  // moves offsets only
    if (TypeOf(*part) != "TemplateProcessing") return Unsupported("post_processor", *part);
    bool behind = false;
    for (const Json& piece : Member(*part, "single")) {
      if (piece.contains("Sequence")) {
        behind = true;
        continue;
      }
      std::optional<uint32_t>& slot = behind ? around.after : around.before;
      // The table says which ids a name stands for.
      const std::string name = StringMember(Member(piece, "SpecialToken"), "id");
      const Json& ids = Member(Member(Member(*part, "special_tokens"), name), "ids");
      const bool is_one = ids.is_array() && ids.size() == 1 && ids[0].is_number_unsigned() &&
                          ids[0].get<uint64_t>() <= UINT32_MAX;
      if (!is_one || slot) return Unsupported("post_processor", *part);
      slot = ids[0].get<uint32_t>();
    }
  }
  return around;
}

}  // namespace baton::text
