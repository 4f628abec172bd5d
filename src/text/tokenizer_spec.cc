#include "src/text/tokenizer_spec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "src/base/limits.h"
#include "src/base/xxh3.h"

// The serialised form: "BTOK", a version byte, then the fields in the order of Serialize() below.
// Integers are LEB128, strings a length and bytes, optionals a presence byte. Token types and
// traits are runs of (value, count). A merge is (left id + 1, right id + 1), 5 bytes where the text
// has 8; one whose parts are not tokens is a 0 and the text.

namespace baton::text {

using limits::kMaxSpecBytes;

namespace {

constexpr std::string_view kMagic = "BTOK";
// Version 3 has three fields more than 2, and 4 three more. A spec is written in the first version
// that holds it, so that its bytes and its id are those that older builds read, write and compare.
constexpr uint8_t kOldestVersion = 2;
constexpr uint8_t kVersion = 4;

uint8_t VersionFor(const TokenizerSpec& spec) {
  if (spec.marks_spaces_first || spec.adds_prefix_first || !spec.token_traits.empty()) return 4;
  const bool is_old =
      !spec.space_prefix_unless_there && !spec.user_defined_as_written && !spec.ignore_merges;
  return is_old ? kOldestVersion : 3;
}

using TokenIndex = absl::flat_hash_map<std::string_view, uint32_t>;

TokenIndex IndexTokens(const std::vector<std::string>& tokens) {
  TokenIndex index;
  index.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) index.emplace(tokens[i], static_cast<uint32_t>(i));
  return index;
}

// Appends the fields of a spec to a string.
class SpecWriter {
 public:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<char>(value | 0x80));
    out_.push_back(static_cast<char>(value));
  }

  void Text(std::string_view text) {
    Varint(text.size());
    out_.append(text);
  }

  void Bytes(const void* data, size_t size) { out_.append(static_cast<const char*>(data), size); }

  void Optional(const std::optional<uint32_t>& value) {
    Varint(value ? 1 : 0);
    if (value) Varint(*value);
  }

  void Optional(const std::optional<bool>& value) { Varint(value ? (*value ? 2 : 1) : 0); }

  void Runs(const std::vector<int32_t>& values) {
    Varint(values.size());
    for (size_t i = 0; i < values.size();) {
      size_t end = i + 1;
      while (end < values.size() && values[end] == values[i]) ++end;
      Varint(static_cast<uint32_t>(values[i]));
      Varint(end - i);
      i = end;
    }
  }

  void Merge(std::string_view merge, const TokenIndex& index) {
    const size_t space = merge.find(' ', 1);
    if (space != std::string_view::npos) {
      const auto left = index.find(merge.substr(0, space));
      const auto right = index.find(merge.substr(space + 1));
      if (left != index.end() && right != index.end()) {
        Varint(uint64_t{left->second} + 1);
        Varint(uint64_t{right->second} + 1);
        return;
      }
    }
    Varint(0);
    Text(merge);
  }

  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// Reads fields from untrusted bytes. The first failure sticks; later reads then return empty values
// and take no memory.
class SpecReader {
 public:
  explicit SpecReader(std::string_view bytes) : bytes_(bytes) {}

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (pos_ >= bytes_.size()) return Fail("ends early");
      const uint8_t byte = static_cast<uint8_t>(bytes_[pos_++]);
      if (shift == 63 && byte > 1) return Fail("has a number above 64 bits");
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    return Fail("has a number above 64 bits");
  }

  uint64_t VarintUpTo(uint64_t limit, const char* what) {
    const uint64_t value = Varint();
    if (value > limit) return Fail(what);
    return value;
  }

  std::string_view Bytes(uint64_t size) {
    if (size > bytes_.size() - pos_) {
      Fail("ends early");
      return {};
    }
    const std::string_view view = bytes_.substr(pos_, size);
    pos_ += size;
    return view;
  }

  std::string Text() { return Counted(Bytes(Varint())); }

  std::optional<uint32_t> OptionalId() {
    if (VarintUpTo(1, "has a bad presence byte") == 0) return std::nullopt;
    return static_cast<uint32_t>(VarintUpTo(UINT32_MAX, "has an id above 32 bits"));
  }

  std::optional<bool> OptionalBool() {
    const uint64_t value = VarintUpTo(2, "has a bad flag");
    if (value == 0) return std::nullopt;
    return value == 2;
  }

  std::vector<int32_t> Runs() {
    const uint64_t count = VarintUpTo(kMaxSpecTokens, "has too many token types");
    std::vector<int32_t> values;
    while (ok() && values.size() < count) {
      const uint64_t value = VarintUpTo(UINT32_MAX, "has a token type above 32 bits");
      const uint64_t run = VarintUpTo(count - values.size(), "has a run of types that is too long");
      if (run == 0) Fail("has an empty run of types");
      values.insert(values.end(), run, static_cast<int32_t>(static_cast<uint32_t>(value)));
    }
    return values;
  }

  std::string Merge(const std::vector<std::string>& tokens) {
    const uint64_t left = VarintUpTo(tokens.size(), "has a merge of an unknown token");
    if (left == 0) return Text();
    const uint64_t right = VarintUpTo(tokens.size(), "has a merge of an unknown token");
    if (right == 0) Fail("has a merge of an unknown token");
    if (!ok()) return {};
    const std::string& a = tokens[left - 1];
    const std::string& b = tokens[right - 1];
    if (!Take(a.size() + 1 + b.size())) return {};
    return a + ' ' + b;
  }

  // A copy of `text`, counted against kMaxSpecTextBytes.
  std::string Counted(std::string_view text) {
    if (!Take(text.size())) return {};
    return std::string(text);
  }

  uint64_t Fail(const char* why) {
    if (status_.ok()) status_ = InvalidArgument("tokenizer spec {} at byte {}", why, pos_);
    pos_ = bytes_.size();
    return 0;
  }

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  size_t remaining() const { return bytes_.size() - pos_; }

 private:
  bool Take(size_t size) {
    if (size > text_budget_) Fail("has more text than allowed");
    if (!ok()) return false;
    text_budget_ -= size;
    return true;
  }

  std::string_view bytes_;
  size_t pos_ = 0;
  size_t text_budget_ = kMaxSpecTextBytes;
  Status status_;
};

void ReadVocabulary(SpecReader& in, TokenizerSpec& spec) {
  const uint64_t num_tokens = in.VarintUpTo(kMaxSpecTokens, "has too many tokens");
  for (uint64_t i = 0; in.ok() && i < num_tokens; ++i) spec.tokens.push_back(in.Text());
  const uint64_t num_scores = in.VarintUpTo(kMaxSpecTokens, "has too many scores");
  const std::string_view scores = in.Bytes(num_scores * sizeof(float));
  if (in.ok() && num_scores > 0) {
    spec.scores.resize(num_scores);
    std::memcpy(spec.scores.data(), scores.data(), scores.size());
  }
  spec.token_types = in.Runs();
  const uint64_t num_merges = in.VarintUpTo(kMaxMerges, "has too many merges");
  for (uint64_t i = 0; in.ok() && i < num_merges; ++i) spec.merges.push_back(in.Merge(spec.tokens));
}

}  // namespace

std::string TokenizerSpec::ToolTemplate() const {
  for (const NamedChatTemplate& named : named_templates) {
    if (named.name == "tool_use") return named.source;
  }
  return "";
}

std::string TokenizerSpec::Serialize() const {
  const uint8_t version = VersionFor(*this);
  SpecWriter out;
  out.Bytes(kMagic.data(), kMagic.size());
  out.Varint(version);
  out.Text(model);
  out.Text(pre);
  out.Varint(tokens.size());
  for (const std::string& token : tokens) out.Text(token);
  out.Varint(scores.size());
  out.Bytes(scores.data(), scores.size() * sizeof(float));
  out.Runs(token_types);
  out.Varint(merges.size());
  const TokenIndex index = IndexTokens(tokens);
  for (const std::string& merge : merges) out.Merge(merge, index);
  for (const auto* id : {&bos_id, &eos_id, &eot_id, &eom_id, &unk_id, &pad_id}) out.Optional(*id);
  for (const auto* flag : {&add_bos, &add_eos, &add_space_prefix}) out.Optional(*flag);
  out.Varint(space_prefix_at_start_only ? 1 : 0);
  if (version >= 3) {
    out.Varint(space_prefix_unless_there ? 1 : 0);
    out.Varint(user_defined_as_written ? 1 : 0);
    out.Optional(ignore_merges);
  }
  if (version >= 4) {
    out.Varint(marks_spaces_first ? 1 : 0);
    out.Varint(adds_prefix_first ? 1 : 0);
    out.Runs(token_traits);
  }
  out.Varint(nfc ? 1 : 0);
  out.Text(chat_template);
  out.Varint(named_templates.size());
  for (const NamedChatTemplate& named : named_templates) {
    out.Text(named.name);
    out.Text(named.source);
  }
  return out.Take();
}

StatusOr<std::string> TokenizerSpec::SerializeUpToLimit() const {
  std::string bytes = Serialize();
  if (bytes.size() > kMaxSpecBytes) {
    return InvalidArgument(
        "the tokenizer and its chat templates have {} bytes, at most {} are served", bytes.size(),
        kMaxSpecBytes);
  }
  return bytes;
}

StatusOr<std::string> TokenizerSpec::SerializeForHello() const {
  BATON_ASSIGN_OR_RETURN(std::string bytes, SerializeUpToLimit());
  BATON_RETURN_IF_ERROR(Parse(bytes).status());
  return bytes;
}

StatusOr<TokenizerSpec> TokenizerSpec::Parse(std::string_view bytes) {
  SpecReader in(bytes);
  if (in.Bytes(kMagic.size()) != kMagic) in.Fail("does not start with BTOK");
  const uint64_t version = in.Varint();
  if (in.ok() && (version < kOldestVersion || version > kVersion)) {
    return InvalidArgument("tokenizer spec has version {}, this build reads {} to {}", version,
                           kOldestVersion, kVersion);
  }
  TokenizerSpec spec;
  spec.model = in.Text();
  spec.pre = in.Text();
  ReadVocabulary(in, spec);
  for (auto* id :
       {&spec.bos_id, &spec.eos_id, &spec.eot_id, &spec.eom_id, &spec.unk_id, &spec.pad_id}) {
    *id = in.OptionalId();
  }
  for (auto* flag : {&spec.add_bos, &spec.add_eos, &spec.add_space_prefix}) {
    *flag = in.OptionalBool();
  }
  const auto read_flag = [&in] { return in.VarintUpTo(1, "has a bad flag") != 0; };
  spec.space_prefix_at_start_only = read_flag();
  if (version >= 3) {
    spec.space_prefix_unless_there = read_flag();
    spec.user_defined_as_written = read_flag();
    spec.ignore_merges = in.OptionalBool();
  }
  if (version >= 4) {
    spec.marks_spaces_first = read_flag();
    spec.adds_prefix_first = read_flag();
    spec.token_traits = in.Runs();
  }
  spec.nfc = read_flag();
  spec.chat_template = in.Text();
  const uint64_t num_named = in.VarintUpTo(1024, "has too many named templates");
  for (uint64_t i = 0; in.ok() && i < num_named; ++i) {
    std::string name = in.Text();
    spec.named_templates.push_back({std::move(name), in.Text()});
  }
  if (in.ok() && in.remaining() > 0) in.Fail("goes on after its end");
  if (!in.ok()) return in.status();
  return spec;
}

void SetPhi3Traits(TokenizerSpec& spec) {
  for (size_t id = 0; id < std::min(spec.tokens.size(), spec.token_types.size()); ++id) {
    const auto type = static_cast<TokenType>(spec.token_types[id]);
    const std::string& text = spec.tokens[id];
    const bool is_plain = text == "<s>" || text == "<|endoftext|>";
    const bool is_found = type == TokenType::kControl || type == TokenType::kUserDefined;
    if (!is_found || is_plain) continue;
    spec.token_traits.resize(spec.tokens.size());
    spec.token_traits[id] = kTakesBlanksAfter;
    spec.user_defined_as_written = true;  // blanks are those of the text as written
  }
}

uint64_t TokenizerSpecId(std::string_view bytes) { return Xxh3Hash64(bytes); }

}  // namespace baton::text
