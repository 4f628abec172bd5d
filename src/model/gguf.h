// GgufFile: the directory of a GGUF v2 or v3 model file (metadata and tensor table) over a
// read-only memory map. Constant after opening; any thread may read it. Format: ggml's
// docs/gguf.md.
//
// The file is untrusted input. Invariants of an opened file
//  1. Every name, key, value and tensor lies inside the file; all of them are views into the map
//     and valid while the GgufFile lives.
//  2. Keys are unique, tensor names are unique; tensor data follows the header without gap or
//     overlap, each padded to general.alignment.
//  3. The directory needs less memory than twice the file plus 1 MiB (the entries of kMaxGgufKeys),
//     and parsing reads at most kMaxGgufHeaderBytes, whatever the counts in the file say. The parts
//     of a split model share these limits, and only the first one's keys are kept.
// A refused file gives one Status that carries a GgufErrorCode (gguf_error.h); nothing else
// happens.
//
// A model split into several files (NAME-00001-of-00003.gguf) is opened by its first; the others
// are found by their names and joined. A Hugging Face folder is given the form of the file that it
// would be converted to (hf_folder.h), so that all readers of a model read this type.
#ifndef BATON_MODEL_GGUF_H_
#define BATON_MODEL_GGUF_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/model/gguf_error.h"
#include "src/model/gguf_types.h"
#include "src/model/gguf_value.h"

namespace baton::model {

// Real files hold 20 to 60 keys; an entry takes 52 bytes of memory, so all take less than 1 MiB.
inline constexpr uint64_t kMaxGgufKeys = 8192;
// The largest published models have some thousands.
inline constexpr uint64_t kMaxGgufTensors = 65536;
// The largest vocabularies (262144 tokens with merges) take 10 MB. To walk over 64 MiB of strings
// takes 0.25 s on a busy core when every page of a sparse file must first be made.
inline constexpr uint64_t kMaxGgufHeaderBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMaxGgufStringBytes = uint64_t{1} << 30;
inline constexpr uint64_t kMaxGgufArrayCount = uint64_t{1} << 30;
inline constexpr uint64_t kMaxGgufKeyBytes = 65535;
inline constexpr uint64_t kMaxGgufTensorNameBytes = 63;
inline constexpr uint32_t kMaxGgufDims = 4;
// Files of one split model.
inline constexpr uint64_t kMaxGgufParts = 4096;

// One row of the tensor table.
struct GgufTensor {
  std::string_view name;
  const GgufTensorType* type = nullptr;
  uint32_t num_dims = 0;
  uint32_t num_folder_name_bytes = 0;  // they stand in memory after those of `name`
  // dims[0] is the contiguous row length; unused dimensions are 1.
  std::array<uint64_t, kMaxGgufDims> dims = {1, 1, 1, 1};
  std::span<const std::byte> data;

  uint64_t num_elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  const Fp8Scales* fp8() const { return type->fp8; }
  // Its name in the files of a model folder (of experts, the first one); empty in other files.
  std::string_view folder_name() const {
    return {name.data() + name.size(), num_folder_name_bytes};
  }
  std::string DimsText() const;  // "[576, 49152]"
  // The name in quotes, for messages; of a folder also that of its files.
  std::string NameText() const;
};

// One metadata entry.
struct GgufEntry {
  std::string_view key;
  GgufValue value;
};

// The split.* keys of one part of a split model.
struct GgufSplit {
  uint64_t part_idx = 0;     // split.no
  uint64_t num_parts = 1;    // split.count
  uint64_t num_tensors = 0;  // split.tensors.count: of all parts
};

class FileMapping;  // file_mapping.h

// Memory in which tensors lie.
struct GgufMemory {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
  bool is_mapping = false;  // of a file; else it was allocated
};

// A model that was put together in memory.
struct GgufAssembly {
  std::vector<std::byte> header;             // GGUF magic, counts and metadata, no tensors
  std::vector<GgufTensor> tensors;           // unique names
  uint64_t file_bytes = 0;                   // of what it was made from
  std::shared_ptr<const void> storage;       // owns the names and types of `tensors`
  std::vector<GgufMemory> memory;            // the data of `tensors`
  std::vector<const FileMapping*> mappings;  // the files in which data of `tensors` lies
};

// The opened file; see the file comment.
class GgufFile {
 public:
  // Maps `path` read-only, and the other parts of a split model. Costs a walk over the headers, no
  // read of tensor data.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // Parses `bytes`, which must outlive the result; 8-byte aligned. One part of a split model is
  // refused (kSplitFile).
  static absl::StatusOr<std::unique_ptr<GgufFile>> FromBytes(std::span<const std::byte> bytes);
  // Bytes of a temporary would be gone.
  static absl::StatusOr<std::unique_ptr<GgufFile>> FromBytes(std::vector<std::byte>&&) = delete;
  // The form of a model folder: is_folder() is true.
  static absl::StatusOr<std::unique_ptr<GgufFile>> FromAssembly(GgufAssembly assembly);

  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  uint32_t version() const { return version_; }
  uint32_t alignment() const { return alignment_; }
  uint64_t file_bytes() const { return file_bytes_; }  // of all parts
  const GgufSplit& split() const { return split_; }
  // Read from a model folder, whose tokenizer is a file of its own, not from a GGUF file.
  bool is_folder() const { return is_folder_; }
  const std::vector<GgufEntry>& entries() const { return entries_; }   // in file order
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order

  // The memory that holds `data` of a tensor; nullptr where it is the caller's (FromBytes).
  const GgufMemory* MemoryOf(std::span<const std::byte> data) const;
  // The files in which tensors lie; what lies in none of them was made in memory.
  std::span<const FileMapping* const> mappings() const { return mappings_; }

  const GgufTensor* FindTensor(std::string_view name) const;  // nullptr when absent
  const GgufValue* FindValue(std::string_view key) const;     // nullptr when absent

  // Typed access: kMissingKey when absent (the ...Or forms give `fallback` then), kWrongKeyType
  // when the value is of another kind. Integers of any width are taken when not negative.
  absl::StatusOr<uint64_t> Uint(std::string_view key) const;
  absl::StatusOr<uint64_t> UintOr(std::string_view key, uint64_t fallback) const;
  absl::StatusOr<double> Double(std::string_view key) const;
  absl::StatusOr<double> DoubleOr(std::string_view key, double fallback) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;
  absl::StatusOr<std::string_view> String(std::string_view key) const;
  absl::StatusOr<std::string_view> StringOr(std::string_view key, std::string_view fallback) const;

 private:
  friend class GgufParser;

  GgufFile() = default;

  // Parses bytes_, a whole file or one part, whose header may have so many bytes.
  absl::Status Parse(uint64_t max_header_bytes = kMaxGgufHeaderBytes);
  static absl::StatusOr<std::unique_ptr<GgufFile>> OpenPart(const std::string& path,
                                                            uint64_t max_header_bytes);
  // Opens the other parts of the split model whose first part `path` is, and takes their tensors.
  absl::Status JoinParts(const std::string& path);
  absl::Status TakePart(const GgufFile& part, uint64_t part_idx);
  // Sorts the names of tensors_; kDuplicateTensor when one occurs twice.
  absl::Status IndexTensors();

  std::span<const std::byte> bytes_;
  uint64_t file_bytes_ = 0;
  uint64_t header_bytes_ = 0;  // of all parts
  // Keeps what views point into but data of tensors: an assembly's header and names, type rows.
  std::vector<std::shared_ptr<const void>> storage_;
  std::vector<GgufMemory> memory_;
  std::vector<const FileMapping*> mappings_;  // of memory_
  GgufSplit split_;
  uint32_t version_ = 0;
  uint32_t alignment_ = 32;
  bool is_folder_ = false;
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
  // Indices of entries_ and tensors_ in ascending order of name: 4 bytes a name, where a hash table
  // would take 50 and break invariant 3.
  std::vector<uint32_t> entry_order_;
  std::vector<uint32_t> tensor_order_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_GGUF_H_
