// The names of ignored fields as one text, for the header X-Baton-Ignored-Fields and its gRPC
// metadata.

#ifndef BATON_API_IGNORED_NAMES_H_
#define BATON_API_IGNORED_NAMES_H_

#include <string>
#include <vector>

namespace baton::api {

// `names` with ", " between two. Readers of requests stop at kMaxIgnoredNames (read_json.h): of so
// many the last one becomes "...", since more may have been left out. "" = no names.
std::string IgnoredNamesText(const std::vector<std::string>& names);

}  // namespace baton::api

#endif  // BATON_API_IGNORED_NAMES_H_
