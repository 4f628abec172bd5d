// What to send instead of a path or a method that there is not. Pure; any thread.
#ifndef BATON_API_PATH_HINTS_H_
#define BATON_API_PATH_HINTS_H_

#include <array>
#include <string>
#include <string_view>

namespace baton {

// A path of the public port and the method that it answers; a path of "/v1/models/" stands for all
// that begin so. HEAD goes with GET.
struct ApiPath {
  std::string_view method;
  std::string_view path;
};
inline constexpr std::array<ApiPath, 11> kApiPaths = {{{"POST", "/v1/chat/completions"},
                                                       {"POST", "/v1/completions"},
                                                       {"GET", "/v1/models"},
                                                       {"GET", "/v1/models/"},
                                                       {"GET", "/v1/topology"},
                                                       {"POST", "/tokenize"},
                                                       {"POST", "/detokenize"},
                                                       {"POST", "/apply-template"},
                                                       {"GET", "/health"},
                                                       {"GET", "/version"},
                                                       {"GET", "/ui"}}};

// The path that answers `method` and is `path` but for "/v1", a last "/", double ones or capitals;
// "" = there is none. One of kApiPaths.
std::string_view PathMeant(std::string_view method, std::string_view path);

// A sentence for a client that asked for `path`, which there is not: the path that it probably
// meant, the port that has it, or the main ones. Nothing of `path` is in it.
std::string PathHint(std::string_view path);

}  // namespace baton

#endif  // BATON_API_PATH_HINTS_H_
