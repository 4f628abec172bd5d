// KeyRing: the keys that the public API takes now, from a file that may be replaced while the
// process runs.
//
// Invariants
//  1. A key is looked for by the first bytes of its digest; the whole digest is then compared in
//     constant time. Keys themselves are not kept, logged or counted.
//  2. A changed file that cannot be read or parsed changes nothing: the former keys stay, and one
//     warning says so. The next look tries again.
//  3. A tenant that has used up a limit has used it up after a reload too.
//
// Any thread; Look one at a time.
#ifndef BATON_API_KEY_RING_H_
#define BATON_API_KEY_RING_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/api/key_file.h"
#include "src/api/tenant_use.h"
#include "src/base/clock.h"
#include "src/base/mutex.h"
#include "src/base/thread.h"

namespace baton::api {

// Why a request is refused for its key.
enum class KeyFault : uint8_t { kMissing, kUnknown, kInUrl };
inline constexpr int kNumKeyFaults = 3;

// See the file comment.
class KeyRing {
 public:
  // How often the file is looked at.
  static constexpr int64_t kLookIntervalMs = 1'000;
  // Refused keys that are logged a second; further ones are counted, and the next line says so.
  static constexpr int kMaxAuditLinesPerS = 10;
  // Tenants that have series of their own; the rest are "other".
  static constexpr size_t kMaxTenantSeries = 1000;

  // InvalidArgument, NotFound or Unavailable, naming the flag, the file and the line.
  static StatusOr<std::unique_ptr<KeyRing>> Create(const std::string& path,
                                                   const Clock& clock = SystemClock());
  ~KeyRing();

  // The tenant of a key; null = it has none. Costs a SHA-256 and a binary search.
  std::shared_ptr<TenantUse> Find(std::string_view key) const;
  const Clock& clock() const { return clock_; }

  // Counts a refused key and writes a line about it. `what` and `peer` are the server's own words,
  // not a client's: "POST /v1/models", "192.0.2.1:4711".
  void Refused(KeyFault fault, std::string_view what, std::string_view peer);

  // Looks whether the file has changed, and takes its keys if it has.
  void Look();
  // Looks every kLookIntervalMs on a thread "api-keys", until the destructor.
  void Watch();

  // Series in Prometheus's text format.
  std::string MetricsText() const;

 private:
  // The data that tell one state of the file from another.
  struct Stamp {
    int64_t modified_ns = 0;
    int64_t changed_ns = 0;
    uint64_t inode = 0;
    int64_t size_bytes = 0;
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  // Find reads this table; Take replaces it as a whole.
  struct Table {
    std::vector<KeyFile::Key> keys;                   // ascending by digest
    std::vector<std::shared_ptr<TenantUse>> tenants;  // by KeyFile::Key::tenant_idx
  };

  KeyRing(std::string path, const Clock& clock) : path_(std::move(path)), clock_(clock) {}
  static Stamp StampOf(const std::string& path);
  std::shared_ptr<const Table> Now() const;
  void Take(KeyFile file);
  static void AddRequests(const Table& table, std::string* text);

  const std::string path_;
  const Clock& clock_;
  // Used by Look alone.
  Stamp stamp_;          // of what was read last
  std::string failure_;  // of the last try; "" = none

  std::array<std::atomic<uint64_t>, kNumKeyFaults> num_faults_{};
  mutable Mutex mutex_;  // guards what follows
  std::shared_ptr<const Table> table_ BATON_GUARDED_BY(mutex_);
  int64_t audit_second_ BATON_GUARDED_BY(mutex_) = -1;
  int num_audited_ BATON_GUARDED_BY(mutex_) = 0;  // in that second
  uint64_t num_unlogged_ BATON_GUARDED_BY(mutex_) = 0;
  bool stops_ BATON_GUARDED_BY(mutex_) = false;
  CondVar stop_changed_;
  Thread thread_;  // last: uses the rest
};

}  // namespace baton::api

#endif  // BATON_API_KEY_RING_H_
