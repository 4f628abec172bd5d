// HttpApi: the public HTTP endpoints (OpenAI's, llama-server's text endpoints, health, topology and
// a chat page). Handle is a HttpServer's handler: it runs on the server's threads and hands parsing
// and tokenising to the API's own.
#ifndef BATON_API_HTTP_API_H_
#define BATON_API_HTTP_API_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/api/api_paths.h"
#include "src/api/api_workers.h"
#include "src/api/build_request.h"
#include "src/api/json_value.h"
#include "src/api/key_check.h"
#include "src/api/ollama_params.h"
#include "src/api/stored_items.h"
#include "src/api/surface.h"
#include "src/api/tokenize_json.h"
#include "src/base/clock.h"
#include "src/http/http_responder.h"
#include "src/router/submit.h"
#include "src/router/topology.h"

namespace baton::api {

// See the file comment.
class HttpApi {
 public:
  // Everything outlives this and every server that uses it. `complete_topology` adds what the
  // router's core does not know: the row of the router itself.
  HttpApi(const ApiParts& parts, std::function<void(router::Topology*)> complete_topology);

  void Handle(http::HttpRequest request, std::shared_ptr<http::HttpResponder> responder);
  http::HttpHandler AsHandler();
  // The bodies of errors that the server answers itself; counts them.
  http::HttpErrorFormatter AsErrorFormatter();

 private:
  static router::RequestError ServerError(const http::HttpRefusal& refusal);
  // One exchange, as its handler sees it.
  struct Exchange {
    http::HttpRequest request;
    std::shared_ptr<http::HttpResponder> responder;
    Arrival arrival;
    std::vector<std::string> ignored;  // fields that nothing read
    const Surface* surface = nullptr;  // whose form answers and errors have
    Tenant tenant;                     // of its API key; null: none is asked for
    std::string stream;                // the name of an answer that can be resumed; "" = another
    bool lost_its_id = false;          // its X-Request-Id could not be used
  };
  using PostHandler = void (HttpApi::*)(Exchange& exchange, const JsonValue& body);
  // The handler of a route.
  struct RouteForm {
    const Surface* surface = nullptr;
    PostHandler post = nullptr;  // null: the route answers GET
  };

  // False: the request has no key that it needs, and is refused.
  bool CheckKey(Exchange& exchange, const ApiPath* known);
  void HandleGet(Exchange& exchange, ApiRoute route);
  void HandlePost(Exchange exchange, PostHandler handler);
  static RouteForm FormOf(ApiRoute route);
  // The surface in whose form errors at a path are written, also where nothing is there.
  static const Surface* SurfaceOf(std::string_view path);

  void Generate(Exchange& exchange, const JsonValue& body);
  using TextHandler = bool (*)(const TextCall& call, TextAnswer* answer,
                               router::RequestError* error);
  template <TextHandler kHandler>
  void PostText(Exchange& exchange, const JsonValue& body);
  void PostApplyTemplate(Exchange& exchange, const JsonValue& body);
  // Ollama's endpoints are in http_api_ollama.cc.
  void PostOllamaChat(Exchange& exchange, const JsonValue& body);
  void PostOllamaGenerate(Exchange& exchange, const JsonValue& body);
  void PostOllamaShow(Exchange& exchange, const JsonValue& body);
  void PostOllama(Exchange& exchange, const JsonValue& body, OllamaForm form);
  // The model that `body` names; null: the error is sent.
  // `field`: of the body, that names it.
  std::shared_ptr<const router::ModelInfo> ModelOf(Exchange& exchange, const JsonValue& body,
                                                   std::string_view field = "model");

  void GetHealth(Exchange& exchange);
  void GetChatPage(Exchange& exchange);
  void GetClusterEvents(Exchange& exchange);
  // Streams that can be resumed are in http_api_streams.cc.
  void GetStream(Exchange& exchange);
  // Puts a stream that can be resumed before the responder, if the client asks for one. False:
  // `error` names the header. `streams`: the answer is a stream.
  bool MakeResumable(Exchange& exchange, bool streams, std::vector<std::string>* ignored,
                     router::RequestError* error) const;
  // `known`: the row of the path, whose method is another one; null = there is no such path.
  void RefusePath(Exchange& exchange, const ApiPath* known);
  void GetRoot(Exchange& exchange);
  void GetVersion(Exchange& exchange);
  void GetModels(Exchange& exchange);
  void GetModel(Exchange& exchange, std::string_view id);
  void GetTokenizerInfo(Exchange& exchange);
  void GetTopology(Exchange& exchange);

  void Refuse(Exchange& exchange, const router::RequestError& error);
  router::RequestError UnknownModel() const;
  // The header fields of every answer; `ignored`: fields of the request that nothing read.
  static http::HttpHeaders HeadersOf(const Exchange& exchange,
                                     std::vector<std::string> ignored = {});
  // An error as a whole answer in the exchange's form.
  http::HttpResponse ErrorOf(const Exchange& exchange, const router::RequestError& error) const;
  void Send(Exchange& exchange, std::string body, std::string_view content_type);

  const ApiParts parts_;
  router::Submitter* const submitter_;
  ApiWorkers* const workers_;
  const std::function<void(router::Topology*)> complete_topology_;
  const StoredItems stored_items_;  // of all tenants
  // The clock of the keys' limits, where there are any; else the system's.
  const Clock& clock_;
};

}  // namespace baton::api

#endif  // BATON_API_HTTP_API_H_
