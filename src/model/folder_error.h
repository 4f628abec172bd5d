// FolderErrorCode: why a Hugging Face model folder was refused, carried as a payload of the Status.
// Pure functions; any thread. Every check has its own code, so that tests assert the reason and not
// the wording; the message names the file, the field and the values.
#ifndef BATON_MODEL_FOLDER_ERROR_H_
#define BATON_MODEL_FOLDER_ERROR_H_

#include <cstdint>
#include <string_view>

#include "src/base/status.h"

namespace baton::model {

// One value per kind of check.
enum class FolderErrorCode : uint8_t {
  kNone = 0,                 // the Status is OK or not from the folder reader
  kMissingFile = 1,          // config.json or the weights cannot be opened
  kFileTooLarge = 2,         // a JSON text or a header above its limit
  kBadJson = 3,              // not JSON, or not of the shape that the file has
  kMissingKey = 4,           // a key of config.json that the model needs
  kBadValue = 5,             // a key of another type or out of range
  kUnknownArchitecture = 6,  // model_type that is not supported
  kUnknownRopeType = 7,      // rope_scaling that is not supported
  kUnsupportedValue = 8,     // a key whose value changes the result and is not computed
  kQuantized = 9,            // quantization_config of a method that is not read
  kTruncated = 10,           // a safetensors file ends inside its header
  kBadDtype = 11,            // element type that is not read, or not for this tensor
  kBadShape = 12,            // more dimensions than a weight has, or another shape than needed
  kBadOffsets = 13,          // bytes that overlap, leave a gap or are not those of the shape
  kDataOutOfFile = 14,       // bytes beyond the end of the file
  kDuplicateTensor = 15,     // a name twice, in one file or in two
  kBadIndex = 16,            // the index names a file or a tensor that cannot be
  kMissingShard = 17,        // a file that the index names is not there
  kTiedMismatch = 18,        // lm_head.weight disagrees with tie_word_embeddings
  kUnknownTensor = 19,       // a tensor that the architecture does not have
  kMissingExpert = 20,       // experts that are not numbered 0 to n - 1, or differ in shape
  kBadScale = 21,            // of an fp8 or packed matrix: missing, of another shape or no number
};

// "missing_file", "bad_json": stable names for logs and tests.
std::string_view FolderErrorName(FolderErrorCode code);

// NotFound for what is missing, Unimplemented for what could be supported, else InvalidArgument,
// with `message` and the code as payload.
absl::Status FolderError(FolderErrorCode code, std::string_view message);

// FolderError for one tensor: the message is "tensor 'NAME': WHAT".
absl::Status TensorError(FolderErrorCode code, std::string_view name, std::string_view what);

// kMissingFile for a file of the folder that could not be opened: "NAME: WHY".
absl::Status CannotOpenFile(std::string_view name, const absl::Status& why);

// The code that `status` carries, kNone when it carries none.
FolderErrorCode FolderErrorOf(const absl::Status& status);

}  // namespace baton::model

#endif  // BATON_MODEL_FOLDER_ERROR_H_
