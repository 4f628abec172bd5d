#include "src/cli/admin_page.h"

#include <utility>

#include "src/cli/http_client.h"

namespace baton::cli {

StatusOr<std::string> ReadAdminPage(const std::string& address, const std::string& path) {
  StatusOr<HttpClientResponse> response = CallAdmin("GET", address, path);
  // The page of a router is that of the address that the user gave, or did not give.
  const bool is_nobody = absl::IsUnavailable(response.status()) && path == "/v1/topology";
  if (is_nobody) {
    return Unavailable("{}; --admin HOST:PORT is the admin address that a server printed",
                       std::string(response.status().message()));
  }
  if (!response.ok()) return response.status();
  if (response->status == 200) return std::move(response->body);
  if (response->status == 404) {
    return NotFound("{} has no {}: it is not the admin port of a router", address, path);
  }
  return Unavailable("http://{}{} answers {}", address, path, response->status);
}

}  // namespace baton::cli
