// Pooling of a model folder: what sentence-transformers keeps beside the model. Any thread.
#ifndef BATON_MODEL_HF_POOLING_H_
#define BATON_MODEL_HF_POOLING_H_

#include <optional>
#include <string>

#include "src/base/status.h"
#include "src/model/row_pool.h"

namespace baton::model {

// The pooling in 1_Pooling/config.json of `folder`; nothing without that file. kNone where it says
// another way than mean, last token or first token, several at once, or where a dense layer
// follows (2_Dense). Reads `pooling_mode` of sentence-transformers 6 and the bools of older
// releases. A FolderErrorCode where the file is no JSON object, or a mode none that is known.
absl::StatusOr<std::optional<Pooling>> ReadHfPooling(const std::string& folder);

}  // namespace baton::model

#endif  // BATON_MODEL_HF_POOLING_H_
