// The GGUF reader on one file's bytes, the model config and the tokenizer that are read from it,
// and the writer as its inverse.
#include <algorithm>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/model/gguf.h"
#include "src/model/gguf_writer.h"
#include "src/model/model_config.h"
#include "src/model/tokenizer_metadata.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/gguf_checks.h"
#include "tests/fuzz/input_bytes.h"

namespace baton::fuzz {

using namespace model;  // NOLINT(google-build-using-namespace)

namespace {

// The name of the tensor that scales one in NVFP4; empty for another, and without a scale.
std::string NameOfScale(const GgufTensor& tensor) {
  constexpr std::string_view kWeight = ".weight";
  if (tensor.type->scale == 1.0f || !tensor.name.ends_with(kWeight)) return "";
  return std::string(tensor.name.substr(0, tensor.name.size() - kWeight.size())) + ".scale";
}

// Writes the keys, values and tensors of the file anew.
std::vector<std::byte> Rewrite(const GgufFile& file) {
  GgufWriter writer;
  for (const GgufEntry& entry : file.entries()) writer.AddValue(entry.key, entry.value);
  constexpr uint64_t kOne[] = {1};
  std::deque<std::string> names;
  std::vector<float> scales;
  for (const GgufTensor& tensor : file.tensors()) {
    writer.AddTensor({.name = tensor.name,
                      .dims = std::span<const uint64_t>(tensor.dims).first(tensor.num_dims),
                      .type_id = tensor.type->id,
                      .num_bytes = tensor.data.size()});
  }
  for (const GgufTensor& tensor : file.tensors()) {
    const std::string& name = names.emplace_back(NameOfScale(tensor));
    if (name.empty()) continue;
    scales.push_back(tensor.type->scale);
    writer.AddTensor({.name = name,
                      .dims = kOne,
                      .type_id = static_cast<uint32_t>(GgmlType::kF32),
                      .num_bytes = sizeof(float)});
  }
  std::vector<std::byte> bytes = writer.Header();
  for (const GgufTensor& tensor : file.tensors()) {
    bytes.insert(bytes.end(), tensor.data.begin(), tensor.data.end());
    bytes.resize(bytes.size() + GgufWriter::Padded(tensor.data.size()) - tensor.data.size());
  }
  for (const float scale : scales) {
    const auto raw = std::as_bytes(std::span(&scale, 1));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
    bytes.resize(bytes.size() + GgufWriter::Padded(raw.size()) - raw.size());
  }
  return bytes;
}

void CheckSame(const GgufFile& a, const GgufFile& b) {
  BATON_CHECK(a.entries().size() == b.entries().size() && a.tensors().size() == b.tensors().size(),
              "{} keys and {} tensors became {} and {}", a.entries().size(), a.tensors().size(),
              b.entries().size(), b.tensors().size());
  for (size_t i = 0; i < a.entries().size(); ++i) {
    const GgufValue& x = a.entries()[i].value;
    const GgufValue& y = b.entries()[i].value;
    BATON_CHECK(a.entries()[i].key == b.entries()[i].key && x.type() == y.type() &&
                    x.element_type() == y.element_type() && x.count() == y.count() &&
                    std::equal(x.payload().begin(), x.payload().end(), y.payload().begin(),
                               y.payload().end()),
                "key {} changed", i);
  }
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    const GgufTensor& x = a.tensors()[i];
    const GgufTensor& y = b.tensors()[i];
    BATON_CHECK(x.name == y.name && x.type->id == y.type->id && x.type->scale == y.type->scale &&
                    x.type->divides == y.type->divides && x.dims == y.dims &&
                    std::equal(x.data.begin(), x.data.end(), y.data.begin(), y.data.end()),
                "tensor {} changed", i);
  }
}

}  // namespace
}  // namespace baton::fuzz

BATON_FUZZ_TARGET(gguf) {
  using namespace baton;         // NOLINT: the whole target
  using namespace baton::model;  // NOLINT
  using namespace baton::fuzz;   // NOLINT
  const AlignedBytes copy(input);
  const auto file = GgufFile::FromBytes(copy.bytes());
  if (!file.ok()) return CheckRefusal(file.status());
  CheckInside(**file, copy.bytes());
  CheckConfigAndTokenizer(**file);
  // The writer pads to the default only, and lays the tensors out in their order.
  if ((*file)->alignment() != GgufWriter::kAlignment) return;
  const std::vector<std::byte> rewritten = Rewrite(**file);
  const AlignedBytes second({reinterpret_cast<const uint8_t*>(rewritten.data()), rewritten.size()});
  const auto again = GgufFile::FromBytes(second.bytes());
  BATON_CHECK(again.ok(), "what was read cannot be written: {}", again.status().ToString());
  CheckSame(**file, **again);
}
