// GgufBuilder: writes GGUF files for tests, right or wrong in a chosen way. One thread.
#ifndef BATON_TESTS_MODEL_GGUF_BUILDER_H_
#define BATON_TESTS_MODEL_GGUF_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/model/gguf.h"

namespace baton::model {

// Little-endian bytes that grow.
class ByteWriter {
 public:
  template <typename T>
  ByteWriter& Put(T value) {
    const auto* begin = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), begin, begin + sizeof(T));
    return *this;
  }
  ByteWriter& PutString(std::string_view text) {
    Put<uint64_t>(text.size());
    return PutBytes(std::as_bytes(std::span(text)));
  }
  ByteWriter& PutBytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  void PadTo(size_t alignment) {
    while (bytes_.size() % alignment != 0) bytes_.push_back(std::byte{0});
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
};

// Collects keys and tensors, then writes the file. The public fields override what a right file
// has.
class GgufBuilder {
 public:
  std::string magic = "GGUF";
  uint32_t version = 3;
  int64_t tensor_count_delta = 0;
  int64_t key_count_delta = 0;
  uint32_t alignment = 32;  // of the data; the key general.alignment is up to the test

  // A key whose value bytes the test gives (without the type).
  GgufBuilder& AddRaw(std::string_view key, uint32_t type, const ByteWriter& value) {
    keys_.PutString(key).Put<uint32_t>(type).PutBytes(value.bytes());
    ++num_keys_;
    return *this;
  }
  template <typename T>
  GgufBuilder& Add(std::string_view key, GgufValueType type, T value) {
    return AddRaw(key, static_cast<uint32_t>(type), ByteWriter().Put<T>(value));
  }
  GgufBuilder& AddU32(std::string_view key, uint32_t value) {
    return Add<uint32_t>(key, GgufValueType::kUint32, value);
  }
  GgufBuilder& AddF32(std::string_view key, float value) {
    return Add<float>(key, GgufValueType::kFloat32, value);
  }
  GgufBuilder& AddString(std::string_view key, std::string_view text) {
    return AddRaw(key, 8, ByteWriter().PutString(text));
  }
  GgufBuilder& AddStrings(std::string_view key, const std::vector<std::string>& texts) {
    ByteWriter value;
    value.Put<uint32_t>(8).Put<uint64_t>(texts.size());
    for (const std::string& text : texts) value.PutString(text);
    return AddRaw(key, 9, value);
  }

  // A tensor at the next padded offset, its data filled with `fill`.
  GgufBuilder& AddTensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                         size_t num_bytes, uint8_t fill = 0) {
    AddTensorRow(name, dims, type, next_offset_);
    data_.PutBytes(std::vector<std::byte>(num_bytes, std::byte{fill}));
    data_.PadTo(alignment);
    next_offset_ = data_.size();
    return *this;
  }
  // Only the row of the tensor table, with any offset.
  GgufBuilder& AddTensorRow(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                            uint64_t offset) {
    tensors_.PutString(name).Put<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (uint64_t dim : dims) tensors_.Put<uint64_t>(dim);
    tensors_.Put<uint32_t>(type).Put<uint64_t>(offset);
    ++num_tensors_;
    return *this;
  }
  // A zero F32 vector or matrix.
  GgufBuilder& AddF32Tensor(std::string_view name, const std::vector<uint64_t>& dims) {
    size_t count = 1;
    for (uint64_t dim : dims) count *= dim;
    return AddTensor(name, dims, 0, count * 4);
  }

  // Header bytes only: everything before the padding of the data section.
  size_t HeaderBytes() const { return Header().size(); }

  std::vector<std::byte> Build() const {
    ByteWriter out = Header();
    if (num_tensors_ == 0) return out.bytes();
    out.PadTo(alignment);
    out.PutBytes(data_.bytes());
    return out.bytes();
  }

 private:
  ByteWriter Header() const {
    ByteWriter out;
    out.PutBytes(std::as_bytes(std::span(magic)));
    out.Put<uint32_t>(version);
    out.Put<int64_t>(num_tensors_ + tensor_count_delta);
    out.Put<int64_t>(num_keys_ + key_count_delta);
    out.PutBytes(keys_.bytes());
    out.PutBytes(tensors_.bytes());
    return out;
  }

  ByteWriter keys_;
  ByteWriter tensors_;
  ByteWriter data_;
  int64_t num_keys_ = 0;
  int64_t num_tensors_ = 0;
  uint64_t next_offset_ = 0;
};

// The values of the tiny llama that tests change.
struct TinyLlamaOptions {
  std::string architecture = "llama";
  uint32_t heads = 2;
  uint32_t kv_heads = 1;
  uint32_t hidden = 32;
  uint32_t layers = 1;
  uint32_t ffn = 64;
  uint32_t num_tokens = 8;
  uint32_t context = 128;
  std::vector<std::string> merges = {};
  std::string left_out_key;     // not written
  std::string left_out_tensor;  // not written
  std::string odd_tensor;       // written with one row more
};

// A complete llama model with zero weights that CheckServable accepts (with the default options);
// of another architecture the keys that all have, and llama's tensors.
inline GgufBuilder TinyLlama(const TinyLlamaOptions& options = {}) {
  GgufBuilder out;
  const std::string prefix = options.architecture + ".";
  const auto u32 = [&](const std::string& name, uint32_t value) {
    if (prefix + name != options.left_out_key) out.AddU32(prefix + name, value);
  };
  out.AddString("general.architecture", options.architecture);
  u32("block_count", options.layers);
  u32("context_length", options.context);
  u32("embedding_length", options.hidden);
  u32("feed_forward_length", options.ffn);
  u32("attention.head_count", options.heads);
  u32("attention.head_count_kv", options.kv_heads);
  if (options.left_out_key != prefix + "attention.layer_norm_rms_epsilon") {
    out.AddF32(prefix + "attention.layer_norm_rms_epsilon", 1e-5f);
  }
  out.AddString("tokenizer.ggml.model", "gpt2");
  std::vector<std::string> tokens;
  for (uint32_t i = 0; i < options.num_tokens; ++i) tokens.push_back("t" + std::to_string(i));
  if (options.left_out_key != "tokenizer.ggml.tokens") {
    out.AddStrings("tokenizer.ggml.tokens", tokens);
  }
  if (options.left_out_key != "tokenizer.ggml.merges") {
    out.AddStrings("tokenizer.ggml.merges", options.merges);
  }
  const auto tensor = [&](const std::string& name, std::vector<uint64_t> dims) {
    if (name == options.left_out_tensor) return;
    if (name == options.odd_tensor) dims.back() += 1;
    out.AddF32Tensor(name, dims);
  };
  const uint64_t hidden = options.hidden;
  const uint64_t head_dim = options.heads == 0 ? 1 : hidden / options.heads;
  tensor("token_embd.weight", {hidden, options.num_tokens});
  tensor("output_norm.weight", {hidden});
  for (uint32_t layer = 0; layer < options.layers; ++layer) {
    const std::string blk = "blk." + std::to_string(layer) + ".";
    tensor(blk + "attn_norm.weight", {hidden});
    tensor(blk + "attn_q.weight", {hidden, hidden});
    tensor(blk + "attn_k.weight", {hidden, options.kv_heads * head_dim});
    tensor(blk + "attn_v.weight", {hidden, options.kv_heads * head_dim});
    tensor(blk + "attn_output.weight", {hidden, hidden});
    tensor(blk + "ffn_norm.weight", {hidden});
    tensor(blk + "ffn_gate.weight", {hidden, options.ffn});
    tensor(blk + "ffn_up.weight", {hidden, options.ffn});
    tensor(blk + "ffn_down.weight", {options.ffn, hidden});
  }
  return out;
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_GGUF_BUILDER_H_
