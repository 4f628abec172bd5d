// Reads a JSON body into ApiParams by the schema table. Pure; any thread.
#ifndef BATON_API_READ_JSON_H_
#define BATON_API_READ_JSON_H_

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/api/json_value.h"
#include "src/api/params.h"
#include "src/router/request_error.h"

namespace baton::api {

// At most so many ignored fields of one request are named.
inline constexpr size_t kMaxIgnoredNames = 16;

// A name that a client chose, as it can stand in a header: at most `max_bytes` of it, with '?' for
// any other than the bytes [A-Za-z0-9_.-].
std::string HeaderSafe(std::string_view name, size_t max_bytes = 64);

// Fields of `root` that the table does not have for `endpoint` are named in `ignored`, with the
// path to them, at most kMaxIgnoredNames and each HeaderSafe. A null means absent. False: `error`
// names the field and what it must be. Rows of SpecialParam::kOfSurface are left to the caller.
bool ReadJsonParams(const JsonValue& root, Endpoint endpoint, ApiParams* params,
                    std::vector<std::string>* ignored, router::RequestError* error);

// Such names for a body that has the members `known`, and, if `messages` is one of them, turns.
std::vector<std::string> IgnoredJsonFields(const JsonValue& root,
                                           std::initializer_list<std::string_view> known);

// Adds the members of the object `value`, which stands at `path`, that are not `known`: those of
// "text" as "text.x". Null members are absent.
void NameUnknownMembers(const JsonValue& value, std::string_view path,
                        std::initializer_list<std::string_view> known,
                        std::vector<std::string>* ignored);

// Adds the names that rendering found (UnreadVariables) while there is room for them.
void AddUnread(const std::vector<std::string>& unread, std::vector<std::string>* ignored);

// The value of `messages` alone.
bool ReadJsonMessages(const JsonValue& value, ApiParams* params, router::RequestError* error);

// The fields of a chat that its template reads; rows of the table.
std::span<const std::string_view> TemplateFieldNames();
// Reads them alone, for /apply-template; `messages` is required.
bool ReadJsonTemplateParams(const JsonValue& root, ApiParams* params, router::RequestError* error);

// An array of token ids under the name `field`.
bool ReadJsonTokens(const JsonValue& value, std::string_view field, std::vector<int64_t>* tokens,
                    router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_READ_JSON_H_
