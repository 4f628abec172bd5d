#include "src/api/key_file.h"

#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "yaml-cpp/yaml.h"

#include "src/base/ascii_text.h"
#include "src/base/check.h"
#include "src/base/hex.h"
#include "src/base/quoted_text.h"
#include "src/base/regular_file.h"

namespace baton::api {
namespace {

// One entry as it was written.
struct Entry {
  int line = 0;
  std::string tenant;
  KeyDigest digest{};
  TenantLimits limits;
  bool has_limits = false;
};

uint64_t* LimitOf(std::string_view name, TenantLimits* limits) {
  if (name == "requests_per_minute") return &limits->requests_per_minute;
  if (name == "tokens_per_minute") return &limits->tokens_per_minute;
  return name == "concurrency" ? &limits->concurrency : nullptr;
}

bool IsTenantName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxTenantNameBytes &&
         std::all_of(name.begin(), name.end(), IsNameByte);
}

int LineOf(const YAML::Node& node) { return node.Mark().line + 1; }

std::optional<KeyDigest> DigestFromHex(std::string_view text) {
  const std::optional<std::vector<uint8_t>> bytes = BytesFromHex(text);
  KeyDigest digest{};
  if (!bytes || bytes->size() != digest.size()) return std::nullopt;
  std::copy(bytes->begin(), bytes->end(), digest.begin());
  return digest;
}

Status ReadShare(int line, const std::string& text, Entry* entry) {
  const char* const end = text.data() + text.size();
  double share = 0;
  const auto [next, error] = std::from_chars(text.data(), end, share);
  // Not the other way round: what is no number is not above 0.
  const bool is_share = error == std::errc() && next == end && share > 0 && share <= 1;
  if (!is_share) {
    return InvalidArgument(
        "line {}: kv_share must be a number above 0 and at most 1; leave it out for none", line);
  }
  entry->limits.kv_share = share;
  entry->has_limits = true;
  return OkStatus();
}

// One `name: value` of an entry.
Status ReadMember(const std::string& name, const YAML::Node& value, Entry* entry) {
  const int line = LineOf(value);
  const std::string text = value.IsScalar() ? value.Scalar() : "";
  if (name == "tenant") {
    if (!IsTenantName(text)) {
      return InvalidArgument("line {}: tenant must be 1 to {} letters, digits, '.', '_' or '-'",
                             line, kMaxTenantNameBytes);
    }
    entry->tenant = text;
    return OkStatus();
  }
  if (name == "sha256") {
    const std::optional<KeyDigest> digest = DigestFromHex(text);
    if (!digest) {
      return InvalidArgument(
          "line {}: sha256 must be the 64 hexadecimal digits that `printf %s \"$KEY\" | sha256sum` "
          "prints, and not the key itself",
          line);
    }
    entry->digest = *digest;
    return OkStatus();
  }
  if (name == "kv_share") return ReadShare(line, text, entry);
  uint64_t* const limit = LimitOf(name, &entry->limits);
  if (limit == nullptr) {
    return InvalidArgument(
        "line {}: {} is not known; an entry has tenant, sha256, requests_per_minute, "
        "tokens_per_minute, concurrency and kv_share",
        line, QuotedForMessage(name));
  }
  const char* const end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, *limit);
  if (error != std::errc() || next != end || *limit < 1 || *limit > kMaxTenantLimit) {
    return InvalidArgument("line {}: {} must be a whole number from 1 to {}; leave it out for none",
                           line, name, kMaxTenantLimit);
  }
  entry->has_limits = true;
  return OkStatus();
}

StatusOr<Entry> ReadEntry(const YAML::Node& node) {
  Entry entry;
  entry.line = LineOf(node);
  if (!node.IsMap()) {
    return InvalidArgument("line {}: an entry must be `tenant: NAME` and `sha256: DIGEST`",
                           entry.line);
  }
  std::set<std::string> names;
  for (const auto& member : node) {
    const std::string name = member.first.IsScalar() ? member.first.Scalar() : "";
    if (!names.insert(name).second) {
      return InvalidArgument("line {}: {} stands twice in one entry", LineOf(member.first),
                             QuotedForMessage(name));
    }
    BATON_RETURN_IF_ERROR(ReadMember(name, member.second, &entry));
  }
  for (const char* const needed : {"tenant", "sha256"}) {
    if (!names.contains(needed)) {
      return InvalidArgument("line {}: the entry has no {}", entry.line, needed);
    }
  }
  return entry;
}

// Joins entries to tenants and keys.
class FileBuilder {
 public:
  Status Add(const Entry& entry) {
    const auto [at, is_new] = tenant_idx_.emplace(entry.tenant, file_.tenants.size());
    if (is_new) {
      file_.tenants.push_back({entry.tenant, {}});
      limit_lines_.push_back(0);
    }
    KeyFile::Tenant& tenant = file_.tenants[at->second];
    int& limit_line = limit_lines_[at->second];
    if (entry.has_limits && limit_line > 0 && entry.limits != tenant.limits) {
      return InvalidArgument(
          "line {}: tenant {} has other limits in line {}; its keys share them, so give them once",
          entry.line, entry.tenant, limit_line);
    }
    if (entry.has_limits && limit_line == 0) {
      tenant.limits = entry.limits;
      limit_line = entry.line;
    }
    file_.keys.push_back({entry.digest, at->second});
    lines_.emplace(std::string(entry.digest.begin(), entry.digest.end()), entry.line);
    if (lines_.size() < file_.keys.size()) {
      const int first = lines_.at(std::string(entry.digest.begin(), entry.digest.end()));
      return InvalidArgument("line {}: the key of line {} again; a key has one tenant", entry.line,
                             first);
    }
    return OkStatus();
  }

  KeyFile Take() {
    std::sort(file_.keys.begin(), file_.keys.end(),
              [](const KeyFile::Key& a, const KeyFile::Key& b) { return a.digest < b.digest; });
    return std::move(file_);
  }

 private:
  KeyFile file_;
  std::unordered_map<std::string, size_t> tenant_idx_;
  std::unordered_map<std::string, int> lines_;  // by digest
  std::vector<int> limit_lines_;                // by tenant; 0 = it has none
};

StatusOr<KeyFile> FromYaml(const YAML::Node& root) {
  if (!root.IsSequence() || root.size() == 0) {
    return InvalidArgument("it must be a list of keys: `- tenant: NAME`, `  sha256: DIGEST`");
  }
  if (root.size() > kMaxApiKeys) {
    return InvalidArgument("it has {} keys; at most {} are read", root.size(), kMaxApiKeys);
  }
  FileBuilder builder;
  for (const YAML::Node& node : root) {
    BATON_ASSIGN_OR_RETURN(const Entry entry, ReadEntry(node));
    BATON_RETURN_IF_ERROR(builder.Add(entry));
  }
  return builder.Take();
}

}  // namespace

KeyDigest DigestOfKey(std::string_view key) {
  KeyDigest digest{};
  const int done =
      EVP_Digest(key.data(), key.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  BATON_CHECK(done == 1, "no SHA-256");
  return digest;
}

StatusOr<KeyFile> ParseKeyFile(const std::string& text) {
  try {
    return FromYaml(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    // Its own message may quote the file.
    return InvalidArgument("line {}: this is no YAML", error.mark.line + 1);
  }
}

StatusOr<KeyFile> ReadKeyFile(const std::string& path) {
  const std::string prefix = "--api-keys " + path;
  const StatusOr<std::string> text = ReadRegularFile(path, kMaxKeyFileBytes);
  if (!text.ok()) return WithPrefix(text.status(), prefix);
  StatusOr<KeyFile> file = ParseKeyFile(*text);
  if (!file.ok()) return WithPrefix(file.status(), prefix);
  return file;
}

}  // namespace baton::api
