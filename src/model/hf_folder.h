// Reads a Hugging Face model folder (config.json and *.safetensors) as the GGUF file that it would
// be converted to: same keys, same names, same row order, same bytes. So a folder and a file of the
// same weights have one weights_id and give the same bits, and every reader of a model knows one
// form. Any thread.
//
// The folder is untrusted input: every length, offset, number and name is checked, and a refused
// one gives one Status with a FolderErrorCode. Weights stay in the mapped files; what GGUF stores
// in another order or type (rows of q and k of llama, vectors, the experts of a mixture) is copied,
// which for a mixture is most of the model.
#ifndef BATON_MODEL_HF_FOLDER_H_
#define BATON_MODEL_HF_FOLDER_H_

#include <memory>
#include <string>

#include "src/base/status.h"
#include "src/model/gguf.h"

namespace baton {

// The index of a model of some hundred shards and 40,000 tensors has 4 MiB.
inline constexpr uint64_t kMaxHfIndexBytes = uint64_t{16} << 20;
inline constexpr size_t kMaxHfShards = 4096;
inline constexpr size_t kMaxHfTensors = size_t{1} << 18;

// Costs the headers of the files and the copies named above. Errors as the file comment says;
// ResourceExhausted when memory is short. The result has no tokenizer keys (is_folder()): they are
// in tokenizer.json, which src/text reads.
absl::StatusOr<std::unique_ptr<GgufFile>> OpenHfFolder(const std::string& path);

// Opens what --model names: a GGUF file (the first part of a split one) or a folder.
absl::StatusOr<std::unique_ptr<GgufFile>> OpenModelFile(const std::string& path);

}  // namespace baton

#endif  // BATON_MODEL_HF_FOLDER_H_
