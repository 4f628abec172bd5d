#include "src/api/key_ring.h"

#include <openssl/crypto.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <utility>

#include "fmt/format.h"

#include "src/base/log.h"

namespace baton::api {

namespace {

constexpr std::string_view kFaultNames[] = {"missing", "unknown", "in_url"};
static_assert(std::size(kFaultNames) == kNumKeyFaults);
// Labels of every series here.
constexpr std::string_view kOwn = R"(role="router",worker="router-0",model="")";
// The tenants that have no series of their own; one of this name is then among them.
constexpr std::string_view kOthers = "other";

// The bytes of a digest by which it is looked for.
uint64_t PrefixOf(const KeyDigest& digest) {
  uint64_t prefix = 0;
  for (size_t i = 0; i < sizeof(prefix); ++i) prefix = prefix << 8 | digest[i];
  return prefix;
}

}  // namespace

StatusOr<std::unique_ptr<KeyRing>> KeyRing::Create(const std::string& path, const Clock& clock) {
  std::unique_ptr<KeyRing> ring(new KeyRing(path, clock));
  // Before reading: a change in between is then found by the next look.
  ring->stamp_ = StampOf(path);
  BATON_ASSIGN_OR_RETURN(KeyFile file, ReadKeyFile(path));
  ring->Take(std::move(file));
  return ring;
}

KeyRing::~KeyRing() {
  {
    MutexLock lock(mutex_);
    stops_ = true;
  }
  stop_changed_.NotifyAll();
  thread_.Join();
}

KeyRing::Stamp KeyRing::StampOf(const std::string& path) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return {};
  return {int64_t{info.st_mtim.tv_sec} * kSecondNs + info.st_mtim.tv_nsec,
          int64_t{info.st_ctim.tv_sec} * kSecondNs + info.st_ctim.tv_nsec, info.st_ino,
          info.st_size};
}

std::shared_ptr<const KeyRing::Table> KeyRing::Now() const {
  MutexLock lock(mutex_);
  return table_;
}

std::shared_ptr<TenantUse> KeyRing::Find(std::string_view key) const {
  const KeyDigest digest = DigestOfKey(key);
  const uint64_t prefix = PrefixOf(digest);
  const std::shared_ptr<const Table> table = Now();
  auto at = std::lower_bound(
      table->keys.begin(), table->keys.end(), prefix,
      [](const KeyFile::Key& held, uint64_t wanted) { return PrefixOf(held.digest) < wanted; });
  std::shared_ptr<TenantUse> found;
  for (; at != table->keys.end() && PrefixOf(at->digest) == prefix; ++at) {
    if (CRYPTO_memcmp(at->digest.data(), digest.data(), digest.size()) == 0) {
      found = table->tenants[at->tenant_idx];
    }
  }
  return found;
}

void KeyRing::Take(KeyFile file) {
  const int64_t now_us = clock_.NowUs();
  std::unordered_map<std::string_view, std::shared_ptr<TenantUse>> known;
  const std::shared_ptr<const Table> former = Now();
  if (former != nullptr) {
    for (const auto& tenant : former->tenants) known.emplace(tenant->name(), tenant);
  }
  auto table = std::make_shared<Table>();
  table->keys = std::move(file.keys);
  for (KeyFile::Tenant& tenant : file.tenants) {
    const auto at = known.find(tenant.name);
    if (at == known.end()) {
      table->tenants.push_back(
          std::make_shared<TenantUse>(std::move(tenant.name), tenant.limits, now_us));
      continue;
    }
    at->second->SetLimits(tenant.limits, now_us);
    table->tenants.push_back(at->second);
  }
  MutexLock lock(mutex_);
  table_ = std::move(table);
}

void KeyRing::Look() {
  const Stamp stamp = StampOf(path_);
  if (stamp == stamp_ && failure_.empty()) return;
  StatusOr<KeyFile> file = ReadKeyFile(path_);
  if (!file.ok()) {
    if (failure_ == file.status().message()) return;
    failure_ = std::string(file.status().message());
    BATON_LOG_WARN("the former API keys stay in use: {}", failure_);
    return;
  }
  stamp_ = stamp;
  failure_.clear();
  BATON_LOG_INFO("the changed --api-keys {} is in use: {} keys of {} tenants", path_,
                 file->keys.size(), file->tenants.size());
  Take(*std::move(file));
}

void KeyRing::Watch() {
  thread_ = Thread("api-keys", [this] {
    MutexLock lock(mutex_);
    while (!stops_) {
      const auto next =
          std::chrono::steady_clock::now() + std::chrono::milliseconds(kLookIntervalMs);
      while (!stops_ && stop_changed_.WaitUntil(mutex_, next)) {
      }
      if (stops_) return;
      lock.Unlock();
      Look();
      lock.Lock();
    }
  });
}

void KeyRing::Refused(KeyFault fault, std::string_view what, std::string_view peer) {
  num_faults_[static_cast<size_t>(fault)].fetch_add(1, std::memory_order_relaxed);
  const int64_t second = clock_.NowUs() / 1'000'000;
  uint64_t num_unlogged = 0;
  {
    MutexLock lock(mutex_);
    if (second != audit_second_) {
      audit_second_ = second;
      num_audited_ = 0;
    }
    if (num_audited_ >= kMaxAuditLinesPerS) {
      ++num_unlogged_;
      return;
    }
    ++num_audited_;
    num_unlogged = std::exchange(num_unlogged_, 0);
  }
  const std::string more =
      num_unlogged > 0 ? fmt::format(" ({} refusals before it were not logged)", num_unlogged) : "";
  BATON_LOG_WARN("API key refused ({}): {} from {}{}", kFaultNames[static_cast<size_t>(fault)],
                 what, peer, more);
}

void KeyRing::AddRequests(const Table& table, std::string* text) {
  *text +=
      "# HELP baton_tenant_requests_total Requests with a key, by tenant and the HTTP status of "
      "their answer.\n"
      "# TYPE baton_tenant_requests_total counter\n";
  const auto add = [text](std::string_view tenant, const std::map<int, uint64_t>& counts) {
    for (const auto& [code, count] : counts) {
      fmt::format_to(std::back_inserter(*text),
                     "baton_tenant_requests_total{{{},tenant=\"{}\",code=\"{}\"}} {}\n", kOwn,
                     tenant, code, count);
    }
  };
  const bool has_others = table.tenants.size() > kMaxTenantSeries;
  std::map<int, uint64_t> others;
  for (size_t idx = 0; idx < table.tenants.size(); ++idx) {
    const TenantUse& tenant = *table.tenants[idx];
    if (has_others && (idx >= kMaxTenantSeries || tenant.name() == kOthers)) {
      for (const auto& [code, count] : tenant.num_answered()) others[code] += count;
    } else {
      add(tenant.name(), tenant.num_answered());
    }
  }
  if (has_others) add(kOthers, others);
}

std::string KeyRing::MetricsText() const {
  std::string text =
      "# HELP baton_api_keys_refused_total Requests refused with 401, by what was wrong with their "
      "key.\n"
      "# TYPE baton_api_keys_refused_total counter\n";
  for (int i = 0; i < kNumKeyFaults; ++i) {
    fmt::format_to(std::back_inserter(text),
                   "baton_api_keys_refused_total{{{},reason=\"{}\"}} {}\n", kOwn, kFaultNames[i],
                   num_faults_[i].load(std::memory_order_relaxed));
  }
  text +=
      "# HELP baton_tenant_refusals_total Requests refused with 429, by tenant and the limit that "
      "they met.\n"
      "# TYPE baton_tenant_refusals_total counter\n";
  const auto add = [&text](std::string_view tenant, TenantLimit limit, uint64_t count) {
    fmt::format_to(std::back_inserter(text),
                   "baton_tenant_refusals_total{{{},tenant=\"{}\",limit=\"{}\"}} {}\n", kOwn,
                   tenant, NameOf(limit), count);
  };
  const std::shared_ptr<const Table> table = Now();
  for (int i = 0; i < kNumTenantLimits; ++i) {
    const auto limit = static_cast<TenantLimit>(i);
    uint64_t others = 0;
    for (size_t idx = 0; idx < table->tenants.size(); ++idx) {
      const uint64_t count = table->tenants[idx]->num_refused(limit);
      if (idx >= kMaxTenantSeries) {
        others += count;
      } else {
        add(table->tenants[idx]->name(), limit, count);
      }
    }
    // No tenant can be called so: brackets are in no name.
    if (table->tenants.size() > kMaxTenantSeries) add("(other)", limit, others);
  }
  AddRequests(*table, &text);
  return text;
}

}  // namespace baton::api
