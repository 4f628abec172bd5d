#include "src/router/generate_request.h"

#include "fmt/format.h"

namespace baton::router {

using kv::kDefaultTenant;

std::string TenantOfSalt(std::string_view salt) {
  if (salt.empty()) return std::string(kDefaultTenant);
  return fmt::format("{} salted {}", kDefaultTenant, salt);
}

std::string TenantOfKey(std::string_view name, std::string_view salt) {
  if (name.empty()) return TenantOfSalt(salt);
  if (salt.empty()) return fmt::format("tenant {}", name);
  return fmt::format("tenant {} salted {}", name, salt);
}

}  // namespace baton::router
