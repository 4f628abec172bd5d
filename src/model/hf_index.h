// Reads model.safetensors.index.json: which file of a model folder holds which tensors. Pure; any
// thread. The text is untrusted input and never becomes a tree: what reading holds at once is below
// eight times the text plus 64 MiB (the entries of kMaxHfTensors).
#ifndef BATON_MODEL_HF_INDEX_H_
#define BATON_MODEL_HF_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace baton::model {

inline constexpr const char* kHfIndexName = "model.safetensors.index.json";
// The index of a model of some hundred shards and 40,000 tensors has 4 MiB.
inline constexpr uint64_t kMaxHfIndexBytes = uint64_t{16} << 20;
inline constexpr size_t kMaxHfShards = 4096;
inline constexpr size_t kMaxHfTensors = size_t{1} << 18;

// The names of the tensors of each file, in the order of the text; a name may occur twice.
using HfIndex = std::map<std::string, std::vector<std::string>>;

// Every file's name ends with .safetensors and may begin with subfolders; no part of it is empty,
// "." or "..". Fails with kFileTooLarge, kBadJson (not JSON, or no weight_map) or kBadIndex (a
// limit above, or a file that cannot be of the folder).
absl::StatusOr<HfIndex> ReadHfIndex(std::string_view text);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_INDEX_H_
