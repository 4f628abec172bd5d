// Split models: NAME-00001-of-00003.gguf and its siblings, joined into one directory. The first
// part holds the metadata; every part has split.no, split.count and split.tensors.count.
#include <algorithm>

#include "src/base/quoted_text.h"
#include "src/model/gguf.h"

namespace baton::model {
namespace {

constexpr std::string_view kSuffix = ".gguf";

// "-00002-of-00003.gguf" of part 1 of 3.
std::string PartSuffix(uint64_t part_idx, uint64_t num_parts) {
  return fmt::format("-{:05}-of-{:05}{}", part_idx + 1, num_parts, kSuffix);
}

std::string_view FileName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

absl::Status Mismatch(uint64_t part_idx, std::string_view what) {
  return GgufError(GgufErrorCode::kSplitMismatch,
                   fmt::format("part {} is of another model: {}", part_idx + 1, what));
}

// The message of an error of one part, without the prefix that the outer one gets again.
std::string Inner(const absl::Status& status) {
  constexpr std::string_view kPrefix = "GGUF: ";
  const std::string message(status.message());
  return message.starts_with(kPrefix) ? message.substr(kPrefix.size()) : message;
}

bool SameValue(const GgufValue& a, const GgufValue& b) {
  return a.type() == b.type() && a.element_type() == b.element_type() &&
         std::equal(a.payload().begin(), a.payload().end(), b.payload().begin(), b.payload().end());
}

}  // namespace

absl::Status GgufFile::JoinParts(const std::string& path) {
  const uint64_t num_parts = split_.num_parts;
  const std::string suffix = PartSuffix(split_.part_idx, num_parts);
  if (split_.part_idx != 0) {
    return GgufError(GgufErrorCode::kSplitFile,
                     fmt::format("part {} of a split model; give its first part, ...{}",
                                 split_.part_idx + 1, PartSuffix(0, num_parts)));
  }
  if (!path.ends_with(suffix)) {
    return GgufError(GgufErrorCode::kSplitFile,
                     fmt::format("part 1 of a model split into {} files must have a name that ends "
                                 "with {}, so that the others can be found",
                                 num_parts, suffix));
  }
  const std::string stem = path.substr(0, path.size() - suffix.size());
  for (uint64_t i = 1; i < num_parts; ++i) {
    const std::string part_path = stem + PartSuffix(i, num_parts);
    absl::StatusOr<std::unique_ptr<GgufFile>> part =
        OpenPart(part_path, kMaxGgufHeaderBytes - header_bytes_);
    const std::string name = QuotedForMessage(FileName(part_path));
    if (GgufErrorOf(part.status()) == GgufErrorCode::kOpen) {
      return GgufError(GgufErrorCode::kSplitMissing,
                       fmt::format("part {} of {}, {}, is missing: {}", i + 1, num_parts, name,
                                   Inner(part.status())));
    }
    if (!part.ok()) {
      return GgufError(GgufErrorOf(part.status()),
                       fmt::format("{}: {}", name, Inner(part.status())));
    }
    BATON_RETURN_IF_ERROR(TakePart(**part, i));
    // The mapping; the part's own keys and indices go.
    memory_.insert(memory_.end(), (*part)->memory_.begin(), (*part)->memory_.end());
    mappings_.insert(mappings_.end(), (*part)->mappings_.begin(), (*part)->mappings_.end());
  }
  if (tensors_.size() != split_.num_tensors) {
    return GgufError(
        GgufErrorCode::kSplitMismatch,
        fmt::format("the {} parts hold {} tensors, key \"split.tensors.count\" says {}", num_parts,
                    tensors_.size(), split_.num_tensors));
  }
  return IndexTensors();
}

absl::Status GgufFile::TakePart(const GgufFile& part, uint64_t part_idx) {
  if (part.split_.part_idx != part_idx || part.split_.num_parts != split_.num_parts) {
    return Mismatch(part_idx, fmt::format("it says that it is part {} of {}",
                                          part.split_.part_idx + 1, part.split_.num_parts));
  }
  if (part.split_.num_tensors != split_.num_tensors) {
    return Mismatch(part_idx, fmt::format("its model has {} tensors, the first part's {}",
                                          part.split_.num_tensors, split_.num_tensors));
  }
  for (const GgufEntry& entry : part.entries_) {
    if (entry.key.starts_with("split.")) continue;
    const GgufValue* mine = FindValue(entry.key);
    if (mine != nullptr && SameValue(*mine, entry.value)) continue;
    return Mismatch(part_idx, fmt::format("key {} has another value than in the first part",
                                          QuotedForMessage(entry.key)));
  }
  if (tensors_.size() + part.tensors_.size() > kMaxGgufTensors) {
    return GgufError(
        GgufErrorCode::kTooManyTensors,
        fmt::format("the first {} parts have {} tensors, the limit is {}", part_idx + 1,
                    tensors_.size() + part.tensors_.size(), kMaxGgufTensors));
  }
  tensors_.insert(tensors_.end(), part.tensors_.begin(), part.tensors_.end());
  file_bytes_ += part.file_bytes_;
  header_bytes_ += part.header_bytes_;
  return absl::OkStatus();
}

}  // namespace baton::model
