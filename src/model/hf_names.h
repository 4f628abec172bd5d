// A list of the keys of a config.json. Private to the folder reader; pure; any thread.
#ifndef BATON_MODEL_HF_NAMES_H_
#define BATON_MODEL_HF_NAMES_H_

#include <algorithm>
#include <span>
#include <string_view>

namespace baton::model {

using Names = std::span<const std::string_view>;

inline bool IsIn(Names names, std::string_view key) {
  return std::find(names.begin(), names.end(), key) != names.end();
}

}  // namespace baton::model

#endif  // BATON_MODEL_HF_NAMES_H_
