// Reads a Hugging Face model folder (config.json and *.safetensors) as the GGUF file that it would
// be converted to: same keys, same names, same row order, same bytes. So a folder and a file of the
// same weights have one weights_id and give the same bits, and every reader of a model knows one
// form. Matrices in fp8 are the exception, because GGUF has no type for them. Their type is
// Fp8TensorType (gguf_types.h), and the folder has a weights_id of its own. Packed matrices become
// the blocks of GGUF that hold their weights (hf_packed.h). Any thread.
//
// The folder is untrusted input: every length, offset, number and name is checked, and a refused
// one gives one Status with a FolderErrorCode. Weights stay in the mapped files. Data that GGUF
// stores in another order or type is copied: rows of q and k of llama, vectors, packed matrices and
// the experts of a mixture. For these two the copy is most of the model. The scales of fp8 are
// copied too, an fp32 for each group of a row.
#ifndef BATON_MODEL_HF_FOLDER_H_
#define BATON_MODEL_HF_FOLDER_H_

#include <memory>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/model/gguf.h"

namespace baton::model {

// The key in which OpenHfFolder says for people what packed matrices became. It is of the folder: a
// file that is made from it does not have it.
inline constexpr std::string_view kPackedMatricesKey = "baton.packed_matrices";

// The headers of all files of a folder together; hf_index.h limits their number and the tensors.
inline constexpr uint64_t kMaxHfHeaderBytes = uint64_t{64} << 20;

// Costs the headers of the files and the copies named above. Errors as the file comment says;
// ResourceExhausted when memory is short. The result has no tokenizer keys (is_folder()): the
// tokenizer is in tokenizer.json, which this folder never opens and src/text reads
// (ReadModelTokenizer).
absl::StatusOr<std::unique_ptr<GgufFile>> OpenHfFolder(const std::string& path);

// Opens a path: a GGUF file (the first part of a split one) or a folder. --model may name other
// things too; cli/model_store.h has turned them into a path before. An error says what to do as
// well (open_hint.h).
absl::StatusOr<std::unique_ptr<GgufFile>> OpenModelFile(const std::string& path);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_FOLDER_H_
