// The names of ignored fields as one text, for the header X-Baton-Ignored-Fields and its gRPC
// metadata.

#ifndef BATON_API_IGNORED_NAMES_H_
#define BATON_API_IGNORED_NAMES_H_

#include <string>
#include <vector>

namespace baton::api {

// `names` with ", " between two; "" = no names. Readers of requests stop at kMaxIgnoredNames names
// (read_json.h). Where there are so many, "..." stands for the last one, as more may be missing.
std::string IgnoredNamesText(const std::vector<std::string>& names);

}  // namespace baton::api

#endif  // BATON_API_IGNORED_NAMES_H_
