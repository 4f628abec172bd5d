#include "src/cli/admin_page.h"

#include <utility>

#include "src/cli/http_client.h"

namespace baton {

StatusOr<std::string> ReadAdminPage(const std::string& address, const std::string& path) {
  BATON_ASSIGN_OR_RETURN(HttpClientResponse response, CallAdmin("GET", address, path));
  if (response.status == 200) return std::move(response.body);
  if (response.status == 404) {
    return NotFound("{} has no {}: it is not the admin port of a router", address, path);
  }
  return Unavailable("http://{}{} answers {}", address, path, response.status);
}

}  // namespace baton
