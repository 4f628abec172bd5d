// The good answers of all paths, for /openapi.json: one line of text for each object of JSON, and
// one for each path. Tests hold real answers against them (openapi_answers_test). Constant; any
// thread.
//
// An object is a list of members "name:TYPE"; "name?:TYPE" may be absent. A TYPE is one or several
// of these with '|' between them: string, integer, number, boolean, null, object, any; 'text', that
// text alone; [TYPE], an array; {TYPE}, an object with such values; Name, another object of the
// table. Objects may have more members than their line: clients ignore what they do not know.
#ifndef BATON_API_ANSWER_SCHEMAS_H_
#define BATON_API_ANSWER_SCHEMAS_H_

#include <span>
#include <string_view>

#include "src/api/api_paths.h"
#include "src/api/json_writer.h"

namespace baton::api {

// The forms of a good answer of one route.
struct RouteAnswer {
  ApiRoute route;
  std::string_view whole;    // TYPE of the body as JSON; "" = the answer is a stream
  std::string_view event{};  // TYPE of one event, or line, of a stream; "" = there are no streams
};

// The answer of a path with a summary. The build fails where such a path has none.
const RouteAnswer& RouteAnswerOf(const ApiPath& path);

// Writes all objects as members of the components' schemas; `json` stands in them.
void WriteAnswerSchemas(JsonWriter* json);

// Writes the schema of a TYPE as one value.
void WriteSchemaOf(std::string_view type, JsonWriter* json);

}  // namespace baton::api

#endif  // BATON_API_ANSWER_SCHEMAS_H_
