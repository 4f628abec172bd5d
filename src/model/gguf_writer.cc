#include "src/model/gguf_writer.h"

namespace baton::model {
namespace {

void PutBytes(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

template <typename T>
void Put(std::vector<std::byte>& out, T value) {
  PutBytes(out, std::as_bytes(std::span(&value, 1)));
}

void PutText(std::vector<std::byte>& out, std::string_view text) {
  Put<uint64_t>(out, text.size());
  PutBytes(out, std::as_bytes(std::span(text)));
}

}  // namespace

void GgufWriter::BeginValue(std::string_view key, GgufValueType type) {
  PutText(entries_, key);
  Put(entries_, static_cast<uint32_t>(type));
  ++num_entries_;
}

void GgufWriter::BeginArray(std::string_view key, GgufValueType element_type, uint64_t count) {
  BeginValue(key, GgufValueType::kArray);
  Put(entries_, static_cast<uint32_t>(element_type));
  Put(entries_, count);
}

void GgufWriter::AddString(std::string_view key, std::string_view text) {
  BeginValue(key, GgufValueType::kString);
  PutText(entries_, text);
}

void GgufWriter::AddU32(std::string_view key, uint32_t value) {
  BeginValue(key, GgufValueType::kUint32);
  Put(entries_, value);
}

void GgufWriter::AddF32(std::string_view key, float value) {
  BeginValue(key, GgufValueType::kFloat32);
  Put(entries_, value);
}

void GgufWriter::AddBool(std::string_view key, bool value) {
  BeginValue(key, GgufValueType::kBool);
  Put<uint8_t>(entries_, value ? 1 : 0);
}

void GgufWriter::AddBools(std::string_view key, const std::vector<bool>& values) {
  BeginArray(key, GgufValueType::kBool, values.size());
  for (bool value : values) Put<uint8_t>(entries_, value ? 1 : 0);
}

void GgufWriter::AddStrings(std::string_view key, std::span<const std::string> texts) {
  BeginArray(key, GgufValueType::kString, texts.size());
  for (const std::string& text : texts) PutText(entries_, text);
}

void GgufWriter::AddFloats(std::string_view key, std::span<const float> values) {
  BeginArray(key, GgufValueType::kFloat32, values.size());
  PutBytes(entries_, std::as_bytes(values));
}

void GgufWriter::AddInts(std::string_view key, std::span<const int32_t> values) {
  BeginArray(key, GgufValueType::kInt32, values.size());
  PutBytes(entries_, std::as_bytes(values));
}

void GgufWriter::AddValue(std::string_view key, const GgufValue& value) {
  if (value.is_array()) {
    BeginArray(key, value.element_type(), value.count());
  } else {
    BeginValue(key, value.type());
    // A string's payload is its characters, without their number.
    if (value.type() == GgufValueType::kString) Put<uint64_t>(entries_, value.payload().size());
  }
  PutBytes(entries_, value.payload());
}

void GgufWriter::AddTensor(const TensorRow& row) {
  PutText(tensors_, row.name);
  Put(tensors_, static_cast<uint32_t>(row.dims.size()));
  for (uint64_t size : row.dims) Put(tensors_, size);
  Put(tensors_, row.type_id);
  Put(tensors_, data_bytes_);
  data_bytes_ += Padded(row.num_bytes);
  ++num_tensors_;
}

std::vector<std::byte> GgufWriter::Header() const {
  constexpr std::string_view kMagic = "GGUF";
  constexpr uint32_t kVersion = 3;
  std::vector<std::byte> out;
  PutBytes(out, std::as_bytes(std::span(kMagic)));
  Put(out, kVersion);
  Put(out, num_tensors_);
  Put(out, num_entries_);
  PutBytes(out, entries_);
  PutBytes(out, tensors_);
  if (num_tensors_ > 0) out.resize(Padded(out.size()));
  return out;
}

}  // namespace baton::model
