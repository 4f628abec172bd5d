// The table of the public port's paths. The handlers, the hints for wrong paths and the OpenAPI
// description all use it. Constant; any thread.
#ifndef BATON_API_API_PATHS_H_
#define BATON_API_API_PATHS_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace baton::api {

// The handler of a path.
enum class ApiRoute : uint8_t {
  kChat,
  kCompletion,
  kMessages,
  kCountTokens,
  kModels,
  kModel,
  kResponses,
  kInputTokens,
  kEmbeddings,
  kOllamaChat,
  kOllamaGenerate,
  kOllamaEmbed,
  kOllamaEmbeddings,
  kOllamaShow,
  kOllamaTags,
  kOllamaPs,
  kOllamaVersion,
  kTokenize,
  kDetokenize,
  kTokenizerInfo,
  kApplyTemplate,
  kHealth,
  kTopology,
  kClusterEvents,
  kStream,
  kVersion,
  kOpenApi,
  kChatPage,
  kRoot,
};

// The longer paths of models, and of streams, begin so.
inline constexpr std::string_view kModelPrefix = "/v1/models/";
inline constexpr std::string_view kStreamPrefix = "/v1/streams/";

// A path and the method that it answers; HEAD goes with GET.
struct ApiPath {
  ApiRoute route;
  std::string_view method;
  std::string_view path;     // with `last`: all that begin so and are longer
  std::string_view summary;  // for the OpenAPI description; "" = the path is for people
  std::string_view schema;   // of the body, under components; "" = an object, as the summary says
  bool is_open = false;      // needs no API key where the others do
  std::string_view last{};   // what the rest of the path names: "model"; "" = there is no rest
};
inline constexpr auto kApiPaths = std::to_array<ApiPath>({
    {ApiRoute::kChat, "POST", "/v1/chat/completions",
     "An answer to a conversation; stream: server-sent events", "ChatCompletionRequest"},
    {ApiRoute::kCompletion, "POST", "/v1/completions",
     "A continuation of a text or of token ids; stream: as above", "CompletionRequest"},
    {ApiRoute::kMessages, "POST", "/v1/messages",
     "Anthropic's Messages: an answer to a conversation; stream: its events", "MessagesRequest"},
    {ApiRoute::kCountTokens, "POST", "/v1/messages/count_tokens",
     "The prompt tokens of a body as /v1/messages takes it", "CountTokensRequest"},
    {ApiRoute::kResponses, "POST", "/v1/responses",
     "OpenAI's Responses: an answer to {input}, which nothing stores; stream: its events",
     "ResponsesRequest"},
    {ApiRoute::kInputTokens, "POST", "/v1/responses/input_tokens",
     "The prompt tokens of a body as /v1/responses takes it", "ResponsesRequest"},
    {ApiRoute::kEmbeddings, "POST", "/v1/embeddings",
     "The vector of each text, or list of token ids, of {input}", "EmbeddingsRequest"},
    {ApiRoute::kOllamaChat, "POST", "/api/chat",
     "Ollama's chat: {model, messages, tools, format, options, think}; lines of JSON unless stream "
     "is false",
     "OllamaChatRequest"},
    {ApiRoute::kOllamaGenerate, "POST", "/api/generate",
     "Ollama's answer to {model, prompt, system, raw, format, options, think}; as above",
     "OllamaGenerateRequest"},
    {ApiRoute::kOllamaEmbed, "POST", "/api/embed", "Ollama's vectors of {model, input, dimensions}",
     "OllamaEmbedRequest"},
    {ApiRoute::kOllamaEmbeddings, "POST", "/api/embeddings",
     "The vector of {model, prompt}, in the older form of Ollama's clients",
     "OllamaEmbeddingsRequest"},
    {ApiRoute::kOllamaShow, "POST", "/api/show", "What Ollama's clients are told of {model}",
     "OllamaShowRequest"},
    {ApiRoute::kOllamaTags, "GET", "/api/tags", "The models served, in Ollama's form", ""},
    {ApiRoute::kOllamaPs, "GET", "/api/ps", "The models loaded, in Ollama's form", ""},
    {ApiRoute::kOllamaVersion, "GET", "/api/version",
     "The release of Ollama whose API this is, and the server's version", ""},
    {ApiRoute::kModels, "GET", "/v1/models", "The models served", ""},
    {ApiRoute::kModel, "GET", kModelPrefix, "One model", "", false, "model"},
    {ApiRoute::kTokenize, "POST", "/tokenize",
     "Token ids of {content, add_special, parse_special, with_pieces}, of {prompt, "
     "add_special_tokens, return_token_strs}, or of the prompt of {messages}",
     "TokenizeRequest"},
    {ApiRoute::kDetokenize, "POST", "/detokenize", "The text of {tokens}", "DetokenizeRequest"},
    {ApiRoute::kTokenizerInfo, "GET", "/tokenizer_info",
     "Special tokens, sizes and the chat template", ""},
    {ApiRoute::kApplyTemplate, "POST", "/apply-template", "The prompt text of {messages}",
     "ApplyTemplateRequest"},
    {ApiRoute::kHealth, "GET", "/health", "200 when a request would be served now, else 503", "",
     true},
    {ApiRoute::kTopology, "GET", "/v1/topology", "The processes, their load and links", ""},
    {ApiRoute::kClusterEvents, "GET", "/v1/cluster/events",
     "What happens in the cluster, as server-sent events", ""},
    {ApiRoute::kStream, "GET", kStreamPrefix,
     "The rest of a stream that was asked for with X-Baton-Resumable: 1, after the event of "
     "Last-Event-ID",
     "", false, "stream"},
    {ApiRoute::kVersion, "GET", "/version", "The server's version", ""},
    {ApiRoute::kOpenApi, "GET", "/openapi.json", "This description", ""},
    {ApiRoute::kChatPage, "GET", "/ui", "", "", true},
    {ApiRoute::kRoot, "GET", "/", "", "", true},
});

// True for routes whose streams are server-sent events of generated text: a client may resume them.
constexpr bool MayBeResumable(ApiRoute route) {
  return route == ApiRoute::kChat || route == ApiRoute::kCompletion ||
         route == ApiRoute::kMessages || route == ApiRoute::kResponses;
}

// The row of a request's path, whatever its method; null = there is nothing at that path.
constexpr const ApiPath* FindApiPath(std::string_view path) {
  for (const ApiPath& row : kApiPaths) {
    const bool fits = row.last.empty()
                          ? path == row.path
                          : path.size() > row.path.size() && path.starts_with(row.path);
    if (fits) return &row;
  }
  return nullptr;
}

}  // namespace baton::api

#endif  // BATON_API_API_PATHS_H_
