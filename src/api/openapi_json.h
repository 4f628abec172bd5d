// The OpenAPI description of the HTTP API. It is made from the table of parameters (schema.h),
// which the readers of requests check too. Any thread.
#ifndef BATON_API_OPENAPI_JSON_H_
#define BATON_API_OPENAPI_JSON_H_

#include <string>

namespace baton::api {

// OpenAPI 3.1, some 150 KiB.
std::string OpenApiJson();

}  // namespace baton::api

#endif  // BATON_API_OPENAPI_JSON_H_
