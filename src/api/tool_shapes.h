// How the parameters of functions stand in calls that write each of them as a text of its own
// ("<parameter=NAME>VALUE</parameter>"). Pure; any thread.
#ifndef BATON_API_TOOL_SHAPES_H_
#define BATON_API_TOOL_SHAPES_H_

#include "src/api/params.h"
#include "src/base/json_value.h"
#include "src/text/tools/tool_parser.h"

namespace baton::api {

// The writer of the values of parameters.
enum class ParameterWriter {
  kModel,    // as it was trained: texts stand as they are wherever a text is allowed
  kGrammar,  // plain texts stand as they are, all other values are JSON
};

// True where an object must have members that its schema does not declare by name.
bool DemandsUndeclared(const JsonValue& schema);

// True where parameters of declared names say all that a call may have. Otherwise (a union of
// objects, names by patterns, counts of members ...) no list of parameters follows the schema.
bool FitsParameters(const JsonValue& schema);

// The shape of `function` for the parser of its calls, with the types that its properties have by
// `type`, `const` and `enum`, also through `$ref` and lists of schemas.
text::ToolShape ShapeOf(const ToolFunction& function, bool is_allowed, ParameterWriter writer);

}  // namespace baton::api

#endif  // BATON_API_TOOL_SHAPES_H_
