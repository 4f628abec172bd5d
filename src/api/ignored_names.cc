#include "src/api/ignored_names.h"

#include "src/api/read_json.h"

namespace baton::api {

std::string IgnoredNamesText(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += ", ";
    if (i + 1 >= kMaxIgnoredNames) return text + "...";
    text += names[i];
  }
  return text;
}

}  // namespace baton::api
