// The answers of /openapi.json: which statuses a path has, what a good answer is
// (answer_schemas.h), and the form of an error on each surface. Pure; any thread.
#ifndef BATON_API_OPENAPI_ANSWERS_H_
#define BATON_API_OPENAPI_ANSWERS_H_

#include "src/api/api_paths.h"
#include "src/api/json_writer.h"

namespace baton::api {

// The member `responses` of one path: 200 with its bodies, 204 where nothing may be left to say,
// and every status of the closed list of errors.
void WritePathAnswers(const ApiPath& row, JsonWriter* json);

// The member `responses` of the components, and the schemas of errors. `json` stands in an object:
// that of the components, and that of the schemas.
void WriteErrorAnswers(JsonWriter* json);
void WriteErrorSchemas(JsonWriter* json);

}  // namespace baton::api

#endif  // BATON_API_OPENAPI_ANSWERS_H_
