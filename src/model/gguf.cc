#include "src/model/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "src/base/unique_fd.h"
#include "src/model/gguf_parser.h"

namespace baton {
namespace {

absl::Status OpenError(std::string_view what) {
  return GgufError(GgufErrorCode::kOpen, fmt::format("{}: {}", what, std::strerror(errno)));
}

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

std::string GgufTensor::DimsText() const {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.begin() + num_dims, ", "));
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must fail below, not wait for a writer.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return OpenError("cannot open");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return OpenError("cannot stat");
  if (!S_ISREG(info.st_mode)) {
    return GgufError(GgufErrorCode::kOpen, "not a regular file");
  }
  if (info.st_size == 0) {
    return GgufError(GgufErrorCode::kTruncated, "magic needs 4 bytes, the file is empty");
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) return OpenError("cannot map");
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->mapping_ = {address, size};
  file->bytes_ = {static_cast<const std::byte*>(address), size};
  BATON_RETURN_IF_ERROR(GgufParser(*file).Parse());
  return file;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::FromBytes(std::span<const std::byte> bytes) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->bytes_ = bytes;
  BATON_RETURN_IF_ERROR(GgufParser(*file).Parse());
  return file;
}

GgufFile::~GgufFile() {
  if (mapping_.address != nullptr) ::munmap(mapping_.address, mapping_.size);
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

}  // namespace baton
