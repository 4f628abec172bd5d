// Hints for clients that ask for a wrong path or with a wrong method. Pure; any thread.
#ifndef BATON_API_PATH_HINTS_H_
#define BATON_API_PATH_HINTS_H_

#include <string>
#include <string_view>

namespace baton::api {

// The path that answers `method` and is `path` but for "/v1", a last "/", double ones or capitals;
// "" = there is none. One of kApiPaths.
std::string_view PathMeant(std::string_view method, std::string_view path);

// A sentence for a client that asked for `path`, which there is not: the path that it probably
// meant, the port that has it, or the main ones. Nothing of `path` is in it.
std::string PathHint(std::string_view path);

}  // namespace baton::api

#endif  // BATON_API_PATH_HINTS_H_
