#include "src/model/gguf.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "src/base/quoted_text.h"
#include "src/model/file_mapping.h"
#include "src/model/gguf_nvfp4.h"
#include "src/model/gguf_parser.h"

namespace baton::model {
namespace {

absl::Status MissingKey(std::string_view key) {
  return GgufError(GgufErrorCode::kMissingKey, fmt::format("key \"{}\" is missing", key));
}

absl::Status WrongType(std::string_view key, const GgufValue& value, std::string_view wanted) {
  return GgufError(
      GgufErrorCode::kWrongKeyType,
      fmt::format("key \"{}\" is a {}{}, wanted {}", key, value.is_array() ? "array of " : "",
                  GgufValueTypeName(value.is_array() ? value.element_type() : value.type()),
                  wanted));
}

// `decoded` is what GgufValue made of `value`; an empty one becomes kWrongKeyType.
template <typename T>
absl::StatusOr<T> Typed(std::string_view key, const GgufValue& value, std::optional<T> decoded,
                        std::string_view wanted) {
  if (!decoded.has_value()) return WrongType(key, value, wanted);
  return *decoded;
}

}  // namespace

std::string GgufTensor::NameText() const {
  const std::string quoted = QuotedForMessage(name);
  if (num_folder_name_bytes == 0) return quoted;
  return fmt::format("{} (in the folder {})", quoted, QuotedForMessage(folder_name()));
}

std::string GgufTensor::DimsText() const {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.begin() + num_dims, ", "));
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::OpenPart(const std::string& path,
                                                             uint64_t max_header_bytes) {
  absl::StatusOr<FileMapping> mapping = FileMapping::Open(path);
  if (!mapping.ok())
    return GgufError(GgufErrorCode::kOpen, std::string(mapping.status().message()));
  if (mapping->bytes().empty()) {
    return GgufError(GgufErrorCode::kTruncated, "magic needs 4 bytes, the file is empty");
  }
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->bytes_ = mapping->bytes();
  const auto kept = std::make_shared<const FileMapping>(*std::move(mapping));
  file->memory_.push_back({kept->bytes(), kept, /*is_mapping=*/true});
  file->mappings_.push_back(kept.get());
  BATON_RETURN_IF_ERROR(file->Parse(max_header_bytes));
  return file;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, OpenPart(path, kMaxGgufHeaderBytes));
  if (file->split_.num_parts > 1) BATON_RETURN_IF_ERROR(file->JoinParts(path));
  BATON_RETURN_IF_ERROR(TakeNvfp4Scales(
      file->tensors_, [&](std::string_view name) { return file->FindTensor(name); },
      file->storage_));
  BATON_RETURN_IF_ERROR(file->IndexTensors());
  return file;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::FromBytes(std::span<const std::byte> bytes) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->bytes_ = bytes;
  BATON_RETURN_IF_ERROR(file->Parse());
  const GgufSplit& split = file->split_;
  BATON_RETURN_IF_ERROR(TakeNvfp4Scales(
      file->tensors_, [&](std::string_view name) { return file->FindTensor(name); },
      file->storage_));
  BATON_RETURN_IF_ERROR(file->IndexTensors());
  if (split.num_parts <= 1) return file;
  return GgufError(GgufErrorCode::kSplitFile,
                   fmt::format("part {} of a model split into {} files has no file name",
                               split.part_idx + 1, split.num_parts));
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::FromAssembly(GgufAssembly assembly) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  const auto header = std::make_shared<std::vector<std::byte>>(std::move(assembly.header));
  file->bytes_ = *header;
  file->storage_ = {header, std::move(assembly.storage)};
  BATON_RETURN_IF_ERROR(file->Parse());
  file->tensors_ = std::move(assembly.tensors);
  file->memory_ = std::move(assembly.memory);
  file->mappings_ = std::move(assembly.mappings);
  file->file_bytes_ = assembly.file_bytes;
  file->is_folder_ = true;
  BATON_RETURN_IF_ERROR(file->IndexTensors());
  return file;
}

absl::Status GgufFile::Parse(uint64_t max_header_bytes) {
  file_bytes_ = bytes_.size();
  return GgufParser(*this, max_header_bytes).Parse();
}

GgufFile::~GgufFile() = default;

const GgufMemory* GgufFile::MemoryOf(std::span<const std::byte> data) const {
  for (const GgufMemory& memory : memory_) {
    const std::byte* end = memory.bytes.data() + memory.bytes.size();
    const bool holds = std::less_equal<>()(memory.bytes.data(), data.data()) &&
                       std::less_equal<>()(data.data() + data.size(), end);
    if (holds) return &memory;
  }
  return nullptr;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto name_of = [this](uint32_t idx) { return tensors_[idx].name; };
  const auto it = std::lower_bound(
      tensor_order_.begin(), tensor_order_.end(), name,
      [&](uint32_t idx, std::string_view wanted) { return name_of(idx) < wanted; });
  return it == tensor_order_.end() || name_of(*it) != name ? nullptr : &tensors_[*it];
}

const GgufValue* GgufFile::FindValue(std::string_view key) const {
  const auto key_of = [this](uint32_t idx) { return entries_[idx].key; };
  const auto it =
      std::lower_bound(entry_order_.begin(), entry_order_.end(), key,
                       [&](uint32_t idx, std::string_view wanted) { return key_of(idx) < wanted; });
  return it == entry_order_.end() || key_of(*it) != key ? nullptr : &entries_[*it].value;
}

absl::StatusOr<uint64_t> GgufFile::Uint(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return MissingKey(key);
  return Typed(key, *value, value->AsUint(), "an integer >= 0");
}

absl::StatusOr<uint64_t> GgufFile::UintOr(std::string_view key, uint64_t fallback) const {
  return FindValue(key) == nullptr ? fallback : Uint(key);
}

absl::StatusOr<double> GgufFile::Double(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return MissingKey(key);
  return Typed(key, *value, value->AsDouble(), "f32 or f64");
}

absl::StatusOr<double> GgufFile::DoubleOr(std::string_view key, double fallback) const {
  return FindValue(key) == nullptr ? fallback : Double(key);
}

absl::StatusOr<bool> GgufFile::BoolOr(std::string_view key, bool fallback) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return fallback;
  return Typed(key, *value, value->AsBool(), "bool");
}

absl::StatusOr<std::string_view> GgufFile::String(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return MissingKey(key);
  return Typed(key, *value, value->AsString(), "string");
}

absl::StatusOr<std::string_view> GgufFile::StringOr(std::string_view key,
                                                    std::string_view fallback) const {
  return FindValue(key) == nullptr ? fallback : String(key);
}

}  // namespace baton::model
