#include "src/obs/admin_server.h"

#include <utility>

#include "fmt/format.h"

namespace baton {
namespace {

// A scraper and a few people: more is a mistake.
constexpr size_t kMaxConnections = 64;
constexpr size_t kMaxBodyBytes = 64 * 1024;

HttpResponse TextResponse(int status, std::string body) {
  return {status, {{"Content-Type", "text/plain; charset=utf-8"}}, std::move(body)};
}

HttpResponse UnavailableResponse(const Status& status) {
  const std::string_view why(status.message().data(), status.message().size());
  return TextResponse(503, fmt::format("{}\n", why));
}

HttpHandler ProbeHandler(std::function<Status()> probe) {
  return [probe = std::move(probe)](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    const Status status = probe ? probe() : OkStatus();
    responder->Respond(status.ok() ? TextResponse(200, "ok\n") : UnavailableResponse(status));
  };
}

HttpHandler JsonHandler(std::function<StatusOr<std::string>()> provider) {
  return [provider = std::move(provider)](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    StatusOr<std::string> json = provider ? provider() : std::string("[]");
    if (json.ok()) {
      responder->Respond({200, {{"Content-Type", "application/json"}}, *std::move(json)});
    } else {
      responder->Respond(UnavailableResponse(json.status()));
    }
  };
}

}  // namespace

AdminServer::AdminServer(const MetricsRegistry* registry, AdminProviders providers)
    : registry_(registry), providers_(std::move(providers)) {
  router_.Add("GET", "/livez", ProbeHandler(providers_.live));
  router_.Add("GET", "/readyz", ProbeHandler(providers_.ready));
  router_.Add("GET", "/startupz", ProbeHandler(providers_.started));
  router_.Add("GET", "/debug/requests", JsonHandler(providers_.requests_json));
  router_.Add("GET", "/debug/blocks", JsonHandler(providers_.blocks_json));
  router_.Add("GET", "/metrics", [this](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->Respond(
        {200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}}, registry_->Expose()});
  });
}

StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(std::string host, uint16_t port,
                                                          const MetricsRegistry* registry,
                                                          AdminProviders providers) {
  std::unique_ptr<AdminServer> admin(new AdminServer(registry, std::move(providers)));
  HttpServerOptions options;
  options.host = std::move(host);
  options.port = port;
  options.thread_name = "admin";
  options.max_connections = kMaxConnections;
  options.max_body_bytes = kMaxBodyBytes;
  BATON_ASSIGN_OR_RETURN(admin->server_,
                         HttpServer::Start(std::move(options), admin->router_.AsHandler()));
  return StatusOr<std::unique_ptr<AdminServer>>(std::move(admin));
}

}  // namespace baton
