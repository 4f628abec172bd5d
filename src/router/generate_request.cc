#include "src/router/generate_request.h"

#include "fmt/format.h"

namespace baton::router {

using kv::kDefaultTenant;

std::string TenantOfSalt(std::string_view salt) {
  if (salt.empty()) return std::string(kDefaultTenant);
  return fmt::format("{} salted {}", kDefaultTenant, salt);
}

}  // namespace baton::router
