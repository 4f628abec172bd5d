// ParseJson: a JSON document from a client as a JsonValue, parsed strictly. Any thread.
//
// Refused: anything RFC 8259 does not allow (NaN, comments, trailing text), the same key twice in
// one object, nesting beyond limits::kMaxJsonDepth, more than limits::kMaxJsonValues values, text
// that is not UTF-8. So no later reader can understand the document differently. A number beyond a
// double (1e400) is infinity of its sign: out of every range, so the reader of its field names the
// field.
#ifndef BATON_API_JSON_VALUE_H_
#define BATON_API_JSON_VALUE_H_

#include <cstddef>
#include <string_view>

#include "src/base/json_value.h"
#include "src/router/request_error.h"

namespace baton::api {

// Parses `text` into `out`. False: `error` says why, and `out` is unspecified.
bool ParseJson(std::string_view text, JsonValue* out, router::RequestError* error);

// True where `value` is or holds a number that no double does.
bool HasHugeNumber(const JsonValue& value);

}  // namespace baton::api

#endif  // BATON_API_JSON_VALUE_H_
