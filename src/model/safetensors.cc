#include "src/model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "nlohmann/json.hpp"

#include "src/base/checked_math.h"
#include "src/base/quoted_text.h"
#include "src/model/folder_error.h"

namespace baton::model {
namespace {

using Json = nlohmann::json;

// One entry of the header as it is written there.
struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;  // begin and end, in bytes of the data
};

// One element type: its name in a header, and its size.
struct TypeRow {
  std::string_view name;
  size_t bytes;
};
// By SafetensorsType.
constexpr TypeRow kTypes[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1}, {"U8", 1},
                              {"I8", 1},  {"I32", 4}, {"I64", 8},  {"F8_E8M0", 1}};

absl::StatusOr<SafetensorsType> TypeOf(const HeaderEntry& entry) {
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    if (entry.dtype == kTypes[i].name) return static_cast<SafetensorsType>(i);
  }
  return TensorError(FolderErrorCode::kBadDtype, entry.name,
                     fmt::format("element type {} is not supported (F32, F16, BF16, F8_E4M3, "
                                 "F8_E8M0, U8, I8, I32 and I64 are)",
                                 QuotedForMessage(entry.dtype)));
}

// Bytes of the shape; an error when it has no weight's shape.
absl::StatusOr<uint64_t> BytesOfShape(const HeaderEntry& entry, SafetensorsType type) {
  if (entry.shape.size() > kMaxSafetensorsDims) {
    return TensorError(
        FolderErrorCode::kBadShape, entry.name,
        fmt::format("{} dimensions, allowed are 0..{}", entry.shape.size(), kMaxSafetensorsDims));
  }
  std::optional<uint64_t> bytes = BytesOf(type);
  for (uint64_t size : entry.shape) {
    if (size == 0) return TensorError(FolderErrorCode::kBadShape, entry.name, "a dimension of 0");
    bytes = CheckedMul(*bytes, size);
    if (!bytes.has_value() || *bytes > INT64_MAX) {
      return TensorError(FolderErrorCode::kBadShape, entry.name, "more than 2^63 - 1 bytes");
    }
  }
  return *bytes;
}

absl::StatusOr<SafetensorsTensor> CheckEntry(const HeaderEntry& entry,
                                             std::span<const std::byte> data) {
  SafetensorsTensor out;
  BATON_ASSIGN_OR_RETURN(out.type, TypeOf(entry));
  BATON_ASSIGN_OR_RETURN(const uint64_t bytes, BytesOfShape(entry, out.type));
  if (entry.offsets.size() != 2 || entry.offsets[0] > entry.offsets[1] ||
      entry.offsets[1] - entry.offsets[0] != bytes) {
    return TensorError(FolderErrorCode::kBadOffsets, entry.name,
                       fmt::format("data_offsets [{}], its shape needs {} bytes",
                                   fmt::join(entry.offsets, ", "), bytes));
  }
  if (entry.offsets[1] > data.size()) {
    return TensorError(FolderErrorCode::kDataOutOfFile, entry.name,
                       fmt::format("bytes [{}, {}), the file has {} of data", entry.offsets[0],
                                   entry.offsets[1], data.size()));
  }
  out.data = data.subspan(entry.offsets[0], bytes);
  out.shape = entry.shape;
  out.name = entry.name;
  return out;
}

// The shortest entry that CheckEntry accepts.
constexpr std::string_view kShortestEntry =
    R"("":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)";

// Reads {"NAME": {"dtype": "F32", "shape": [..], "data_offsets": [b, e]}, "__metadata__": {..}} as
// it is parsed, so that a hostile header never becomes a tree: each entry is checked when it ends
// and kept only as the tensor that it describes. The first thing out of place ends it.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  // `tensors` gets room for all that `header_bytes` can describe, so that it never grows.
  HeaderReader(std::span<const std::byte> data, size_t header_bytes,
               std::vector<SafetensorsTensor>& tensors)
      : data_(data), tensors_(tensors) {
    tensors_.reserve(header_bytes / kShortestEntry.size() + 1);
  }
  const absl::Status& status() const { return status_; }

  bool start_object(size_t) override {
    if (++depth_ > 2 || in_array_) return Fail("an object where none may be");
    seen_ = 0;
    entry_.shape.clear();
    entry_.offsets.clear();
    return true;
  }
  bool end_object() override {
    if (depth_-- != 2 || in_metadata_) return true;
    if (seen_ != 7) return Fail("an entry without dtype, shape and data_offsets");
    absl::StatusOr<SafetensorsTensor> tensor = CheckEntry(entry_, data_);
    status_ = tensor.status();
    if (tensor.ok()) tensors_.push_back(*std::move(tensor));
    return status_.ok();
  }
  bool key(string_t& text) override {
    if (depth_ == 1) {
      in_metadata_ = text == "__metadata__";
      if (!in_metadata_) entry_.name = text;
      return true;
    }
    if (in_metadata_) return true;
    field_ = text == "dtype" ? 1 : text == "shape" ? 2 : text == "data_offsets" ? 4 : 0;
    if (field_ == 0) return Fail("an entry with an unknown field");
    if ((seen_ & field_) != 0) return Fail("an entry with a field twice");
    seen_ |= field_;
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_ && !in_array_) return true;
    if (depth_ != 2 || field_ != 1 || in_array_) return Fail("a text where none may be");
    entry_.dtype = text;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_ || field_ == 1) {
      return Fail("an array where none may be");
    }
    in_array_ = true;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return Fail("a number where none may be");
    std::vector<uint64_t>& numbers = field_ == 2 ? entry_.shape : entry_.offsets;
    if (numbers.size() == 8) return Fail("an array of more than 8 numbers");
    numbers.push_back(value);
    return true;
  }
  bool null() override { return Fail("a null"); }
  bool boolean(bool) override { return Fail("a bool"); }
  bool number_integer(number_integer_t) override { return Fail("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Fail("a fraction"); }
  bool binary(binary_t&) override { return Fail("binary data"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(fmt::format("no JSON at byte {}", position));
  }

 private:
  bool Fail(std::string_view problem) {
    status_ = FolderError(FolderErrorCode::kBadJson, fmt::format("header: {}", problem));
    return false;
  }

  const std::span<const std::byte> data_;
  std::vector<SafetensorsTensor>& tensors_;
  HeaderEntry entry_;  // the one that is being read
  absl::Status status_;
  int depth_ = 0;
  int field_ = 0;  // 1 dtype, 2 shape, 4 data_offsets
  int seen_ = 0;   // fields of this entry
  bool in_metadata_ = false;
  bool in_array_ = false;
};

// The tensors must be all of the data, each byte once.
absl::Status CheckCoverage(std::vector<SafetensorsTensor>& tensors,
                           std::span<const std::byte> data) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.data.data() < b.data.data(); });
  const std::byte* expected = data.data();
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.data.data() != expected) {
      return TensorError(
          FolderErrorCode::kBadOffsets, tensor.name,
          fmt::format("begins at byte {} of the data, the tensor before it ends at {}",
                      tensor.data.data() - data.data(), expected - data.data()));
    }
    expected += tensor.data.size();
  }
  if (expected == data.data() + data.size()) return OkStatus();
  return FolderError(
      FolderErrorCode::kBadOffsets,
      fmt::format("the tensors end at byte {} of {} of data", expected - data.data(), data.size()));
}

}  // namespace

size_t BytesOf(SafetensorsType type) { return kTypes[static_cast<size_t>(type)].bytes; }

std::string ShapeText(const SafetensorsTensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape, ", "));
}

std::string_view SafetensorsTypeName(SafetensorsType type) {
  return kTypes[static_cast<size_t>(type)].name;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<FileMapping> mapping = FileMapping::Open(path);
  if (!mapping.ok()) {
    return FolderError(FolderErrorCode::kMissingFile, std::string(mapping.status().message()));
  }
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->mapping_ = *std::move(mapping);
  file->bytes_ = file->mapping_.bytes();
  BATON_RETURN_IF_ERROR(file->Parse());
  return file;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::FromBytes(
    std::span<const std::byte> bytes) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->bytes_ = bytes;
  BATON_RETURN_IF_ERROR(file->Parse());
  return file;
}

absl::Status SafetensorsFile::Parse() {
  uint64_t header_bytes = 0;
  if (bytes_.size() < sizeof(header_bytes)) {
    return FolderError(
        FolderErrorCode::kTruncated,
        fmt::format("a header length needs 8 bytes, the file has {}", bytes_.size()));
  }
  std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
  const std::span<const std::byte> rest = bytes_.subspan(sizeof(header_bytes));
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return FolderError(FolderErrorCode::kFileTooLarge,
                       fmt::format("a header of {} bytes, the limit is {}", header_bytes,
                                   kMaxSafetensorsHeaderBytes));
  }
  if (header_bytes > rest.size()) {
    return FolderError(
        FolderErrorCode::kTruncated,
        fmt::format("a header of {} bytes, the file has {} left", header_bytes, rest.size()));
  }
  const auto* text = reinterpret_cast<const char*>(rest.data());
  header_bytes_ = header_bytes;
  const std::span<const std::byte> data = rest.subspan(header_bytes);
  HeaderReader reader(data, header_bytes, tensors_);
  if (!Json::sax_parse(text, text + header_bytes, &reader)) return reader.status();
  std::sort(tensors_.begin(), tensors_.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(tensors_.begin(), tensors_.end(),
                         [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != tensors_.end()) {
    return TensorError(FolderErrorCode::kDuplicateTensor, twice->name, "appears twice");
  }
  BATON_RETURN_IF_ERROR(CheckCoverage(tensors_, data));
  std::sort(tensors_.begin(), tensors_.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return OkStatus();
}

}  // namespace baton::model
