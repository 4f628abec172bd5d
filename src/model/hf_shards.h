// Opens the files that hold the weights of a Hugging Face folder. Private to the folder reader; any
// thread.
#ifndef BATON_MODEL_HF_SHARDS_H_
#define BATON_MODEL_HF_SHARDS_H_

#include <memory>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/model/safetensors.h"

namespace baton::model {

// One file, or the shards that the folder's index names, by their names. Each must hold the tensors
// that the index gives it, and no others. An index beside model.safetensors that does not name it
// is not read, and the log says so. A shard in a subfolder may be a link into the folder, or into
// the blobs of the hub's cache, and to nothing else. Fails with kMissingFile, kMissingShard,
// kBadIndex, kFileTooLarge (kMaxHfTensors, kMaxHfHeaderBytes of all files), and as
// SafetensorsFile::Open and ReadHfIndex do.
absl::StatusOr<std::vector<std::unique_ptr<SafetensorsFile>>> OpenHfShards(
    const std::string& folder);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_SHARDS_H_
