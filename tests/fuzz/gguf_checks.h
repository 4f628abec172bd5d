// Checks that hold for every GGUF file that was accepted, however it was opened.
#ifndef BATON_TESTS_FUZZ_GGUF_CHECKS_H_
#define BATON_TESTS_FUZZ_GGUF_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "src/model/gguf.h"
#include "src/model/model_config.h"
#include "src/model/tokenizer_metadata.h"
#include "src/text/spec_from_metadata.h"
#include "tests/fuzz/input_bytes.h"
#include "tests/fuzz/tokenizer_checks.h"

namespace baton::fuzz {

// A copy of an input of its exact size, so that the sanitizer notices a read beyond it; allocated
// memory begins at a multiple of 8, as a mapped file does.
class AlignedBytes {
 public:
  explicit AlignedBytes(Input input) : bytes_(input.begin(), input.end()) {}
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  std::vector<uint8_t> bytes_;
};

inline bool IsInside(std::span<const std::byte> all, const void* data, size_t size) {
  const auto* const begin = static_cast<const std::byte*>(data);
  return size == 0 || (begin >= all.data() && size <= all.size() &&
                       static_cast<size_t>(begin - all.data()) <= all.size() - size);
}

// Names are unique, lookups find them, and tensors have the bytes that type and shape need.
inline void CheckDirectory(const model::GgufFile& file) {
  std::set<std::string_view> names;
  for (const model::GgufEntry& entry : file.entries()) {
    BATON_CHECK(names.insert(entry.key).second, "a key is there twice");
    BATON_CHECK(file.FindValue(entry.key) == &entry.value, "a key is not found");
  }
  names.clear();
  for (const model::GgufTensor& tensor : file.tensors()) {
    BATON_CHECK(names.insert(tensor.name).second, "a tensor is there twice");
    BATON_CHECK(file.FindTensor(tensor.name) == &tensor, "a tensor is not found");
    BATON_CHECK(
        tensor.type != nullptr && tensor.num_dims >= 1 && tensor.num_dims <= model::kMaxGgufDims,
        "{} dimensions", tensor.num_dims);
    BATON_CHECK(!tensor.DimsText().empty());
    // Every byte may be read.
    std::byte sum{0};
    for (size_t i = 0; i < tensor.data.size(); i += 4096) sum ^= tensor.data[i];
    if (!tensor.data.empty()) sum ^= tensor.data.back();
    volatile std::byte used = sum;
    (void)used;
  }
}

// Invariant 1 of GgufFile, for a file whose bytes are at hand.
inline void CheckInside(const model::GgufFile& file, std::span<const std::byte> all) {
  for (const model::GgufEntry& entry : file.entries()) {
    BATON_CHECK(IsInside(all, entry.key.data(), entry.key.size()), "a key outside the file");
    BATON_CHECK(IsInside(all, entry.value.payload().data(), entry.value.payload().size()),
                "a value outside the file");
  }
  for (const model::GgufTensor& tensor : file.tensors()) {
    BATON_CHECK(IsInside(all, tensor.name.data(), tensor.name.size()), "a name outside the file");
    BATON_CHECK(IsInside(all, tensor.data.data(), tensor.data.size()), "data outside the file");
  }
  CheckDirectory(file);
}

// Checks what the next readers make of the file: a config, a tokenizer, or refusals.
inline void CheckConfigAndTokenizer(const model::GgufFile& file) {
  const auto config = model::ReadModelConfig(file);
  if (!config.ok()) {
    CheckRefusal(config.status());
  } else {
    BATON_CHECK(config->num_layers >= 1 && config->vocab_size >= 1 && config->head_dim >= 1,
                "a config of {} layers, {} tokens", config->num_layers, config->vocab_size);
    BATON_CHECK(config->layer_is_local.size() == config->num_layers, "{} layer kinds, {} layers",
                config->layer_is_local.size(), config->num_layers);
    BATON_CHECK(config->num_kv_heads >= 1 && config->num_shared_layers < config->num_layers &&
                    config->num_slices() + config->num_shared_layers >=
                        config->num_attention_layers() + config->num_conv_layers() &&
                    (config->num_conv_layers() == 0 || config->num_slices() <= model::kMaxKvSlices),
                "{} KV heads, {} slices, {} layers", config->num_kv_heads, config->num_slices(),
                config->num_layers);
    BATON_CHECK(!model::CanonicalText(*config).empty());
  }
  if (file.is_folder()) return;
  const auto metadata = model::ReadTokenizerMetadata(file);
  if (!metadata.ok()) return CheckRefusal(metadata.status());
  CheckTokenizerSpec(text::TokenizerSpecFrom(*metadata), "the ab  c\xc3\xa9 \xf0\x9f\x98\x80<s>");
}

}  // namespace baton::fuzz

#endif  // BATON_TESTS_FUZZ_GGUF_CHECKS_H_
