#include "src/router/generate_request.h"

#include <algorithm>

#include "fmt/format.h"

namespace baton::router {

using kv::kDefaultTenant;

uint32_t GenerateRequest::LeastTokens() const {
  if (is_streamed) return 1;       // its client has what came before the deadline
  if (sampling.grammar) return 1;  // it may end an answer in spite of min_tokens
  const bool has_stops = stop.num_bytes() > 0 || !sampling.stop_token_ids.empty();
  if (sampling.ignore_eos && !has_stops) return sampling.max_tokens;
  return std::clamp(sampling.min_tokens, 1u, std::max(sampling.max_tokens, 1u));
}

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
