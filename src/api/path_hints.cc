#include "src/api/path_hints.h"

#include <algorithm>
#include <array>
#include <vector>

#include "fmt/format.h"

#include "src/api/api_paths.h"
#include "src/base/nearest_name.h"
#include "src/http/http_message.h"

namespace baton::api {

using http::LowerCase;

namespace {

constexpr std::array<std::string_view, 6> kAdminPaths = {"/metrics",  "/livez", "/readyz",
                                                         "/startupz", "/drain", "/debug"};

// Paths of other servers that are not served, by how they begin, and what to do instead.
struct RefusedPath {
  std::string_view begin;
  std::string_view way;
};
constexpr std::string_view kNoManaging =
    "Models are not managed over this API: fetch one with 'baton pull NAME' and serve it with "
    "'baton serve NAME'.";
constexpr auto kRefusedPaths = std::to_array<RefusedPath>({
    {"/api/pull", kNoManaging},
    {"/api/push", kNoManaging},
    {"/api/create", kNoManaging},
    {"/api/delete", kNoManaging},
    {"/api/copy", kNoManaging},
    {"/api/blobs", kNoManaging},
    {"/v1/responses/compact", "An input is not compacted here: send a shorter one."},
    {"/v1/responses/",
     "No response is stored, and 'store' is answered as false: keep what POST /v1/responses "
     "answers."},
});

// The path in lower case, without empty segments: "//V1/Models/" is "/v1/models".
std::string Tidied(std::string_view path) {
  std::string tidied;
  for (const char c : LowerCase(path)) {
    if (c == '/' && tidied.ends_with('/')) continue;
    tidied.push_back(c);
  }
  if (tidied.size() > 1 && tidied.ends_with('/')) tidied.pop_back();
  return tidied;
}

// The path after "/v1": clients that have "/v1" in their address twice, or not at all, have the
// rest right.
std::string_view TailOf(std::string_view path) {
  constexpr std::string_view kVersion = "/v1";
  return path.starts_with(kVersion) ? path.substr(kVersion.size()) : path;
}

// A hint writes this for the rest of the path.
std::string_view NameOf(const ApiPath& path) {
  if (path.route == ApiRoute::kStream) return "STREAM";
  return path.last.empty() ? "" : "NAME";
}

const ApiPath* FindMeant(const std::string& tidied) {
  const ApiPath* meant = nullptr;
  for (const ApiPath& known : kApiPaths) {
    if (known.route == ApiRoute::kRoot) continue;  // a part of every path
    const std::string_view tail = TailOf(known.path);
    const bool fits =
        known.last.empty() ? tidied.ends_with(tail) : tidied.find(tail) != std::string::npos;
    if (fits && (meant == nullptr || tail.size() > TailOf(meant->path).size())) meant = &known;
  }
  if (meant != nullptr) return meant;
  // Without the version, which would make all paths near to each other.
  std::vector<std::string_view> tails;
  for (const ApiPath& known : kApiPaths) {
    if (known.route != ApiRoute::kRoot) tails.push_back(TailOf(known.path));
  }
  const std::string nearest = NearestName(TailOf(tidied), tails);
  const auto* const found =
      std::find_if(kApiPaths.begin(), kApiPaths.end(),
                   [&](const ApiPath& known) { return TailOf(known.path) == nearest; });
  return found == kApiPaths.end() ? nullptr : found;
}

}  // namespace

std::string_view PathMeant(std::string_view method, std::string_view path) {
  const std::string tidied = Tidied(path);
  for (const ApiPath& known : kApiPaths) {
    const bool answers = known.method == method || (known.method == "GET" && method == "HEAD");
    if (!answers || !known.last.empty()) continue;
    if (tidied == known.path || tidied == TailOf(known.path)) return known.path;
  }
  return {};
}

std::string PathHint(std::string_view path) {
  const std::string tidied = Tidied(path);
  const bool is_admin =
      std::any_of(kAdminPaths.begin(), kAdminPaths.end(), [&](std::string_view known) {
        return tidied == known || (tidied.starts_with(known) && tidied[known.size()] == '/');
      });
  if (is_admin) {
    return "The admin port has it: --admin of this server, 127.0.0.1:9090 where nothing else was "
           "given.";
  }
  for (const auto& [begin, way] : kRefusedPaths) {
    if (tidied.starts_with(begin)) return std::string(way);
  }
  if (const ApiPath* const meant = FindMeant(tidied)) {
    return fmt::format("Send {} {}{} instead.", meant->method, meant->path, NameOf(*meant));
  }
  return "The API is at POST /v1/chat/completions, POST /v1/completions and GET /v1/models; a page "
         "to chat with is at /ui.";
}

}  // namespace baton::api
