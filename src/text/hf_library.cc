#include "src/text/hf_library.h"

#include "src/base/check.h"
#include "src/text/hf/baton_text.h"
#include "src/text/hf_bytes.h"

namespace baton::text::hf {
namespace {

// Token ids that the library handed out; freed with it.
class OwnedIds {
 public:
  OwnedIds() = default;
  OwnedIds(const OwnedIds&) = delete;
  OwnedIds& operator=(const OwnedIds&) = delete;
  ~OwnedIds() { baton_text_ids_free(&ids_); }

  baton_text_ids* out() { return &ids_; }
  std::span<const uint32_t> view() const { return {ids_.data, ids_.size}; }

 private:
  baton_text_ids ids_ = {};
};

Status StatusOf(int32_t code, std::string_view what, const OwnedBytes& error) {
  const Status status = hf::StatusOf(code, error);
  if (status.ok()) return status;
  return Status(status.code(), fmt::format("{}: {}", what, error.view()));
}

}  // namespace

Status StatusOf(int32_t code, const OwnedBytes& error) {
  switch (code) {
    case BATON_TEXT_OK:
      return OkStatus();
    case BATON_TEXT_INVALID_ARGUMENT:
    case BATON_TEXT_RAISED:
      return InvalidArgument("{}", error.view());
    case BATON_TEXT_LIMIT:
      return FailedPrecondition("{}", error.view());
    case BATON_TEXT_BUSY:
      return Unavailable("{}", error.view());
    default:
      return Internal("{}", error.view());
  }
}

void CheckVersion() {
  const uint32_t version = baton_text_abi_version();
  BATON_CHECK(version == BATON_TEXT_ABI_VERSION, "the Rust library has ABI version {}, not {}",
              version, BATON_TEXT_ABI_VERSION);
}

void Bpe::Free::operator()(baton_text_bpe* bpe) const { baton_text_bpe_free(bpe); }

StatusOr<Bpe> Bpe::Create(const BpeVocabulary& vocabulary) {
  CheckVersion();
  std::vector<baton_text_slice> patterns;
  for (const std::string_view pattern : vocabulary.patterns) patterns.push_back(SliceOf(pattern));
  baton_text_bpe_spec spec = {};
  spec.token_text = SliceOf(vocabulary.token_text);
  spec.token_ends = vocabulary.token_ends.data();
  spec.token_ids = vocabulary.token_ids.data();
  spec.num_tokens = vocabulary.token_ids.size();
  spec.merges = vocabulary.merges.data();
  spec.num_merges = vocabulary.merges.size() / 2;
  spec.patterns = patterns.data();
  spec.num_patterns = patterns.size();
  spec.ignore_merges = vocabulary.ignore_merges ? 1 : 0;
  BATON_CHECK(vocabulary.token_ends.size() == vocabulary.token_ids.size());

  baton_text_bpe* handle = nullptr;
  OwnedBytes error;
  const int32_t code = baton_text_bpe_create(&spec, &handle, error.out());
  BATON_RETURN_IF_ERROR(StatusOf(code, "tokenizer", error));
  Bpe bpe;
  bpe.handle_.reset(handle);
  return bpe;
}

Status Bpe::Encode(std::string_view text, std::vector<TokenId>* out) const {
  OwnedIds ids;
  OwnedBytes error;
  const int32_t code = baton_text_bpe_encode(handle_.get(), SliceOf(text), ids.out(), error.out());
  BATON_RETURN_IF_ERROR(StatusOf(code, "tokenizer", error));
  out->insert(out->end(), ids.view().begin(), ids.view().end());
  return OkStatus();
}

StatusOr<std::string> Compose(std::string_view text) {
  OwnedBytes composed;
  OwnedBytes error;
  const int32_t code = baton_text_compose(SliceOf(text), composed.out(), error.out());
  BATON_RETURN_IF_ERROR(StatusOf(code, "tokenizer", error));
  return std::string(composed.view());
}

bool IsWordCharacter(uint32_t character) { return baton_text_is_word(character) != 0; }

void JinjaTemplate::Free::operator()(baton_text_template* handle) const {
  baton_text_template_free(handle);
}

StatusOr<JinjaTemplate> JinjaTemplate::Create(std::string_view source) {
  CheckVersion();
  baton_text_template* handle = nullptr;
  OwnedBytes error;
  const int32_t code = baton_text_template_create(SliceOf(source), &handle, error.out());
  BATON_RETURN_IF_ERROR(StatusOf(code, "chat template", error));
  JinjaTemplate compiled;
  compiled.handle_.reset(handle);
  return compiled;
}

StatusOr<std::string> JinjaTemplate::Render(const RenderRequest& request) const {
  baton_text_render_request c_request = {};
  c_request.variables_json = SliceOf(request.variables_json);
  c_request.fuel = request.fuel;
  c_request.max_output_bytes = request.max_output_bytes;
  c_request.max_memory_bytes = request.max_memory_bytes;
  c_request.timeout_ms = request.timeout_ms;
  c_request.now_unix_s = request.now_unix_s.value_or(0);
  c_request.has_now = request.now_unix_s ? 1 : 0;
  OwnedBytes text;
  OwnedBytes error;
  const int32_t code =
      baton_text_template_render(handle_.get(), &c_request, text.out(), error.out());
  BATON_RETURN_IF_ERROR(StatusOf(code, "chat template", error));
  return std::string(text.view());
}

PartsUse JinjaTemplate::parts_use() const {
  return static_cast<PartsUse>(baton_text_template_parts_use(handle_.get()));
}

bool JinjaTemplate::Reads(std::string_view variable) const {
  return baton_text_template_reads(handle_.get(), SliceOf(variable)) != 0;
}

}  // namespace baton::text::hf
