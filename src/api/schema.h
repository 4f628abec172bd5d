// The schema table: every parameter of a generation request once, with its type, range and place.
// Both readers (read_json.h, read_proto.h) work from it alone, so a value means the same and fails
// with the same sentence over both APIs. Pure; any thread.
#ifndef BATON_API_SCHEMA_H_
#define BATON_API_SCHEMA_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "src/api/params.h"
#include "src/base/limits.h"
#include "src/base/numbered_text.h"
#include "src/router/request_error.h"

namespace baton::api {

// Parameters whose shape no member pointer describes; each has its own reader.
enum class SpecialParam : uint8_t {
  kMessages,
  kPrompt,  // a text, token ids in JSON, or several of either
  kPromptTokenIds,
  kStreamOptions,  // JSON only
  kResponseFormat,
  kStructuredOutputs,
  kGuided,  // JSON only: vLLM's older names
  kTools,
  kToolChoice,
  kParallelToolCalls,
  kToolParser,
  kReasoningFormat,
  kReasoningEffort,
  kDocuments,
  kTemplateKwargs,
  kOfSurface,  // the surface's own reader has it (surface.h); the row says what it must be
  kPath,
};

// The types of JSON that a value may have; a mask.
enum JsonType : unsigned {
  kJsonBool = 1,
  kJsonInteger = 2,
  kJsonNumber = 4,
  kJsonString = 8,
  kJsonArray = 16,
  kJsonObject = 32,
};

// A field that one surface alone has, or has in a form of its own.
struct SurfaceField {
  std::string_view name;
  unsigned json_types;  // mask of JsonType; 0 = the field is refused
  std::string_view expected;
};
bool HasField(std::span<const SurfaceField> fields, std::string_view name);

using LogitBias = std::vector<std::pair<int64_t, double>>;

// Where a value goes, and thereby its type.
using ParamTarget =
    std::variant<std::optional<int64_t> ApiParams::*, std::optional<double> ApiParams::*,
                 std::optional<bool> ApiParams::*, std::string ApiParams::*,
                 std::vector<std::string> ApiParams::*, std::vector<int64_t> ApiParams::*,
                 LogitBias ApiParams::*, SpecialParam>;

// One line of the table.
struct ParamRow {
  std::string_view name;
  unsigned endpoints;  // mask of Endpoint
  ParamTarget target;
  // Range: of the value (numbers), of each entry (ids, biases), of the bytes (strings; max 0 =
  // any string).
  double min = 0;
  double max = 0;
  bool min_exclusive = false;
  size_t max_items = 0;    // lists and maps
  bool is_opaque = false;  // strings: may have control characters, since nobody looks into them
  std::string_view expected = "";  // with kOfSurface: for error messages
  unsigned json_types = 0;         // with kOfSurface: mask of JsonType

  bool AppliesTo(Endpoint endpoint) const {
    return (endpoints & static_cast<unsigned>(endpoint)) != 0;
  }
};

// All parameters, in the order in which they are checked.
std::span<const ParamRow> ParamTable();
// The row of that name for that endpoint; null = unknown there.
const ParamRow* FindParam(Endpoint endpoint, std::string_view name);

// The values that the row accepts, for error messages: "an integer from 1 to 128".
std::string ExpectedOf(const ParamRow& row);

// Stores a value of the right type; false: out of range, `error` says so.
bool StoreInteger(const ParamRow& row, int64_t value, ApiParams* params,
                  router::RequestError* error);
bool StoreNumber(const ParamRow& row, double value, ApiParams* params, router::RequestError* error);
bool StoreBool(const ParamRow& row, bool value, ApiParams* params, router::RequestError* error);
bool StoreString(const ParamRow& row, std::string value, ApiParams* params,
                 router::RequestError* error);
bool StoreStrings(const ParamRow& row, std::vector<std::string> values, ApiParams* params,
                  router::RequestError* error);
bool StoreIntegers(const ParamRow& row, std::vector<int64_t> values, ApiParams* params,
                   router::RequestError* error);
bool StoreBias(const ParamRow& row, LogitBias values, ApiParams* params,
               router::RequestError* error);
// Special ones.
bool StoreMessages(std::vector<text::ChatMessage> messages, ApiParams* params,
                   router::RequestError* error);
bool StorePromptTokens(std::string_view name, std::vector<int64_t> tokens, ApiParams* params,
                       router::RequestError* error);
// Prompts of one request, at least two.
bool StorePrompts(std::vector<ApiPrompt> prompts, ApiParams* params, router::RequestError* error);
// False, with an error: a request has no room for so many.
bool CheckPromptCount(size_t num_prompts, router::RequestError* error);
bool StoreReasoningFormat(std::string_view format, ApiParams* params, router::RequestError* error);
bool StorePath(std::string_view path, ApiParams* params, router::RequestError* error);

// The arrays of messages that are accepted, for error messages.
inline constexpr std::string_view kExpectedMessages =
    kNumberedText<"an array of 1 to {} objects with role and content", limits::kMaxMessages>;
inline constexpr std::string_view kExpectedTokenCount =
    kNumberedText<"at most {} token ids", limits::kMaxPromptTokens>;
inline constexpr std::string_view kExpectedContent =
    "a string or an array of parts {\"type\":\"text\",\"text\":string}";
inline constexpr std::string_view kExpectedPart =
    "a part {\"type\":\"text\",\"text\":string}; images, audio, video and files are not read";
inline constexpr std::string_view kExpectedNumbers = "free of numbers beyond 1.8e308 and -1.8e308";
inline constexpr std::string_view kExpectedRole =
    "one of \"system\", \"developer\", \"user\", \"assistant\", \"tool\"";
inline constexpr std::string_view kExpectedPrompt =
    kNumberedText<"a string, an array of token ids, or an array of 1 to {} of the one or the other",
                  limits::kMaxPrompts>;

}  // namespace baton::api

#endif  // BATON_API_SCHEMA_H_
