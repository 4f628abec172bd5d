// The file of --api-keys: which keys may use the public API, for which tenants, and what each
// tenant may ask of it. A YAML list (so JSON too), one entry a key:
//
//   - tenant: team-a
//     sha256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b
//     requests_per_minute: 60
//
// A key itself is in no file: `printf %s "$KEY" | sha256sum` makes its digest. Pure but for
// ReadKeyFile; any thread.
#ifndef BATON_API_KEY_FILE_H_
#define BATON_API_KEY_FILE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace baton::api {

inline constexpr size_t kMaxKeyFileBytes = size_t{32} << 20;  // about 300 bytes a key
inline constexpr size_t kMaxApiKeys = 100'000;
inline constexpr size_t kMaxTenantNameBytes = 64;
inline constexpr uint64_t kMaxTenantLimit = 1'000'000'000;

using KeyDigest = std::array<uint8_t, 32>;

// The SHA-256 of a key.
KeyDigest DigestOfKey(std::string_view key);

// The most that a tenant may ask for; 0 = no limit.
struct TenantLimits {
  uint64_t requests_per_minute = 0;
  uint64_t tokens_per_minute = 0;  // of prompts and answers
  uint64_t concurrency = 0;        // answers that are being made at one time
  double kv_share = 0;             // (0, 1] of a model's KV that they hold at one time

  friend bool operator==(const TenantLimits&, const TenantLimits&) = default;
};

// A parsed file.
struct KeyFile {
  // A tenant; its keys share the limits.
  struct Tenant {
    std::string name;  // 1 to kMaxTenantNameBytes letters, digits and "._-"
    TenantLimits limits;
  };
  struct Key {
    KeyDigest digest{};
    size_t tenant_idx = 0;
  };

  std::vector<Tenant> tenants;  // in order of the file
  std::vector<Key> keys;        // ascending by digest, each once
};

// InvalidArgument names the line and what it must be, never a value that might be a key.
StatusOr<KeyFile> ParseKeyFile(const std::string& text);
// As above; the message begins with "--api-keys PATH".
StatusOr<KeyFile> ReadKeyFile(const std::string& path);

}  // namespace baton::api

#endif  // BATON_API_KEY_FILE_H_
