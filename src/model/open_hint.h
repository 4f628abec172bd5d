// Hints about a model that cannot be opened. The readers say what they saw in the bytes; a hint
// says what the file is and how to mend it. Reads a few first bytes of the files. Any thread.
#ifndef BATON_MODEL_OPEN_HINT_H_
#define BATON_MODEL_OPEN_HINT_H_

#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton::model {

// Says what a file is that begins with these bytes and is no model, and what to do: "it is a
// git-lfs pointer, not the file: ...". "" = not known. kHintBytes are enough.
inline constexpr size_t kHintBytes = 64;
std::string_view KindOfForeignFile(std::string_view begin);

// `status` of OpenModelFile(path), with what to do after its message. Its code and payloads stay.
// OK and errors that already say what to do are returned as they are.
absl::Status WithOpenHint(const absl::Status& status, const std::string& path);

}  // namespace baton::model

#endif  // BATON_MODEL_OPEN_HINT_H_
