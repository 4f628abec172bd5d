#include "src/http/http_router.h"

#include <utility>

#include "src/base/check.h"

namespace baton::http {

HttpRouter::HttpRouter(HttpErrorFormatter error_formatter)
    : error_formatter_(error_formatter ? std::move(error_formatter) : PlainTextError) {}

void HttpRouter::Add(std::string_view method, std::string_view path, HttpHandler handler) {
  BATON_CHECK(path.starts_with('/'), "path '{}' does not begin with '/'", path);
  const bool added =
      paths_[std::string(path)].emplace(std::string(method), std::move(handler)).second;
  BATON_CHECK(added, "{} {} is added twice", method, path);
}

std::string HttpRouter::AllowedMethods(const Methods& methods) {
  std::string allowed;
  for (const auto& [method, handler] : methods) {
    if (!allowed.empty()) allowed += ", ";
    allowed += method;
    if (method == "GET" && !methods.contains("HEAD")) allowed += ", HEAD";
  }
  return allowed;
}

void HttpRouter::Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) const {
  const std::string_view request_id = request.headers.Find(kRequestIdField).value_or("");
  const auto path = paths_.find(request.path);
  if (path == paths_.end()) {
    responder->Respond(error_formatter_({404, "no such path", ""}, request_id));
    return;
  }
  const Methods& methods = path->second;
  auto method = methods.find(request.method);
  if (method == methods.end() && request.method == "HEAD") method = methods.find("GET");
  if (method == methods.end()) {
    HttpResponse response =
        error_formatter_({405, "this path has no such method; see Allow", ""}, request_id);
    response.headers.Set("Allow", AllowedMethods(methods));
    responder->Respond(std::move(response));
    return;
  }
  method->second(std::move(request), std::move(responder));
}

HttpHandler HttpRouter::AsHandler() const {
  return [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    Handle(std::move(request), std::move(responder));
  };
}

}  // namespace baton::http
