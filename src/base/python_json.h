// JSON as Python's json module writes and reads it: with the literals NaN, Infinity and -Infinity,
// and numbers beyond a double. Pure; any thread.
#ifndef BATON_BASE_PYTHON_JSON_H_
#define BATON_BASE_PYTHON_JSON_H_

#include <string>
#include <string_view>

namespace baton {

// The only member of the object that stands for a number that JSON cannot hold. transformers
// writes such objects from release 5.24 on.
inline constexpr std::string_view kPythonFloatKey = "__float__";

// `text` with each such number replaced by {"__float__": "NaN"}, "Infinity" or "-Infinity". Strings
// stay as they are, and text that is not JSON stays so. Costs one pass; the result has at most
// kMaxPythonJsonGrowth times the bytes of `text`.
std::string PlainJsonOfPython(std::string_view text);

// {"__float__":"NaN"} for NaN.
inline constexpr size_t kMaxPythonJsonGrowth = 7;

}  // namespace baton

#endif  // BATON_BASE_PYTHON_JSON_H_
