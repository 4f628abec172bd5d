// Surface: one public HTTP API that generates text (OpenAI's chat, Anthropic's Messages ...). A
// surface is a reader, which turns its own JSON into ApiParams, and a writer (answer_writer.h),
// which turns tokens into its own answers. Between them every surface is one request
// (build_request.h). Constant; any thread.
#ifndef BATON_API_SURFACE_H_
#define BATON_API_SURFACE_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/api/answer_writer.h"
#include "src/api/json_value.h"
#include "src/api/params.h"
#include "src/api/stored_items.h"
#include "src/http/http_message.h"
#include "src/router/request_error.h"

namespace baton::api {

// A comment of server-sent events, and an empty line: some clients read blocks between empty lines,
// not lines.
inline constexpr std::string_view kCommentPing = ": ping\n\n";
// The comment of a stream whose events have ids. OpenAI's and Anthropic's clients for Python hold
// on to an id, and an empty line then is an event without data, which they cannot read.
inline constexpr std::string_view kCommentPingOfIds = ": ping\n";

// A request as it came.
struct SurfaceCall {
  const JsonValue& body;  // an object
  const http::HttpHeaders& headers;
  const StoredItems& items;   // of earlier answers of all tenants
  const std::string& tenant;  // that asks; "" = there are no keys
};

// A request as a surface has read it.
struct SurfaceRequest {
  ApiParams params;
  std::vector<std::string> ignored;  // fields that nothing read (read_json.h)
  // Makes the writer of the answer. It holds what the answer repeats of the request. Called once.
  std::function<std::unique_ptr<AnswerWriter>(AnswerPlan plan)> make_writer;
};

// See the file comment.
struct Surface {
  Endpoint endpoint = Endpoint::kChat;
  std::string_view answer_id_prefix;  // "chatcmpl-"
  std::string_view stream_type = "text/event-stream";
  std::string_view ping = kCommentPing;  // what a silent stream gets; "" = nothing
  std::string_view request_id_field;     // of answers, beside X-Request-Id; "" = none
  // Ollama's clients add the tag ":latest" to names without one. Elsewhere it is no model's name.
  bool may_have_tag = false;
  bool tells_progress = false;  // its writer has AddProgress
  // False: `error` names the field.
  bool (*read)(const SurfaceCall& call, SurfaceRequest* request,
               router::RequestError* error) = nullptr;
  // The client's name for a field of the chat that its request became; null = they have one name.
  std::string (*name_field)(std::string field) = nullptr;
  // The body of an answer that is an error as a whole.
  std::string (*error_body)(const router::RequestError& error,
                            std::string_view request_id) = nullptr;
};

}  // namespace baton::api

#endif  // BATON_API_SURFACE_H_
