#include "src/obs/admin_server.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "fmt/format.h"

#include "src/base/limits.h"

namespace baton::obs {

using http::HttpHandler;
using http::HttpRequest;
using http::HttpResponder;
using http::HttpResponse;
using http::HttpServer;
using http::HttpServerOptions;
using http::SiteCheck;
using http::SiteRules;
using limits::kMaxDrainTimeoutS;

namespace {

// A scraper and a few people: more is a mistake.
constexpr size_t kMaxConnections = 64;
constexpr size_t kMaxBodyBytes = size_t{64} * 1024;

HttpResponse TextResponse(int status, std::string body) {
  return {status, {{"Content-Type", "text/plain; charset=utf-8"}}, std::move(body)};
}

HttpResponse UnavailableResponse(const Status& status) {
  const std::string_view why(status.message().data(), status.message().size());
  return TextResponse(503, fmt::format("{}\n", why));
}

HttpHandler ProbeHandler(std::function<Status()> probe) {
  return [probe = std::move(probe)](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
    const Status status = probe ? probe() : OkStatus();
    responder->Respond(status.ok() ? TextResponse(200, "ok\n") : UnavailableResponse(status));
  };
}

HttpHandler JsonHandler(std::function<StatusOr<std::string>()> provider) {
  return [provider = std::move(provider)](const HttpRequest&,
                                          std::shared_ptr<HttpResponder> responder) {
    StatusOr<std::string> json = provider ? provider() : std::string("[]");
    if (json.ok()) {
      responder->Respond({200, {{"Content-Type", "application/json"}}, *std::move(json)});
    } else {
      responder->Respond(UnavailableResponse(json.status()));
    }
  };
}

// The question of POST /drain.
struct DrainQuery {
  std::string worker_id;
  uint32_t timeout_s = 0;
};

std::optional<uint32_t> ParseTimeout(std::string_view text) {
  uint32_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool valid = error == std::errc() && end == text.data() + text.size();
  if (!valid || seconds > kMaxDrainTimeoutS) return std::nullopt;
  return seconds;
}

// Nothing unless the query is worker=ID and perhaps timeout_s=N, each once; ids need no decoding.
std::optional<DrainQuery> ParseDrainQuery(std::string_view text) {
  DrainQuery query;
  std::optional<uint32_t> timeout_s;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const size_t equals = std::min(part.find('='), part.size());
    const std::string_view name = part.substr(0, equals);
    const std::string_view value = part.substr(std::min(equals + 1, part.size()));
    if (name == "worker" && query.worker_id.empty()) {
      query.worker_id = value;
    } else if (name == "timeout_s" && !timeout_s) {
      timeout_s = ParseTimeout(value);
      if (!timeout_s) return std::nullopt;
    } else {
      return std::nullopt;
    }
  }
  if (query.worker_id.empty()) return std::nullopt;
  query.timeout_s = timeout_s.value_or(0);
  return query;
}

HttpResponse DrainResponse(const HttpRequest& request,
                           const decltype(AdminProviders::drain)& drain) {
  const std::optional<DrainQuery> query = ParseDrainQuery(request.query);
  if (!query) {
    return TextResponse(
        400, fmt::format("the query must be worker=ID[&timeout_s=0..{}]\n", kMaxDrainTimeoutS));
  }
  StatusOr<std::string> json = drain(query->worker_id, query->timeout_s);
  if (json.ok()) return {202, {{"Content-Type", "application/json"}}, *std::move(json)};
  if (!absl::IsNotFound(json.status())) return UnavailableResponse(json.status());
  return TextResponse(404, std::string(json.status().message()) + "\n");
}

}  // namespace

AdminServer::AdminServer(const MetricsRegistry* registry, AdminProviders providers)
    : registry_(registry), providers_(std::move(providers)) {
  router_.Add("GET", "/livez", ProbeHandler(providers_.live));
  router_.Add("GET", "/readyz", ProbeHandler(providers_.ready));
  router_.Add("GET", "/startupz", ProbeHandler(providers_.started));
  router_.Add("GET", "/debug/requests", JsonHandler(providers_.requests_json));
  router_.Add("GET", "/debug/blocks", JsonHandler(providers_.blocks_json));
  if (providers_.trace_json) {
    router_.Add("GET", "/debug/trace", JsonHandler(providers_.trace_json));
  }
  if (providers_.topology_json) {
    router_.Add("GET", "/v1/topology", JsonHandler(providers_.topology_json));
  }
  if (providers_.drain) {
    router_.Add("POST", "/drain",
                [this](const HttpRequest& request, std::shared_ptr<HttpResponder> responder) {
                  responder->Respond(DrainResponse(request, providers_.drain));
                });
  }
  router_.Add(
      "GET", "/metrics", [this](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
        std::string page = registry_->Expose();
        if (providers_.more_metrics) page += providers_.more_metrics();
        responder->Respond(
            {200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}}, std::move(page)});
      });
}

StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(std::string host, uint16_t port,
                                                          const MetricsRegistry* registry,
                                                          AdminProviders providers,
                                                          SiteRules sites) {
  std::unique_ptr<AdminServer> admin(new AdminServer(registry, std::move(providers)));
  HttpServerOptions options;
  options.host = std::move(host);
  options.port = port;
  options.thread_name = "admin";
  options.max_connections = kMaxConnections;
  options.max_body_bytes = kMaxBodyBytes;
  options.sites = std::move(sites);
  options.sites.check = SiteCheck::kAllMethods;
  BATON_ASSIGN_OR_RETURN(admin->server_,
                         HttpServer::Start(std::move(options), admin->router_.AsHandler()));
  return StatusOr<std::unique_ptr<AdminServer>>(std::move(admin));
}

}  // namespace baton::obs
