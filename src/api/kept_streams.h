// KeptStreams: the resumable streams of one router, by name. A thread ("streams") ends those that
// nobody reads and drops those that are old, while there are any.
//
// Any thread, also with a stream's own calls under way; Stop not from a server's thread.
//
// Invariants
//  1. A name is 32 hexadecimal digits of 128 random bits. Whoever has it and is of the stream's
//     tenant may read the stream.
//  2. The text of all kept streams is at most max_bytes. Finished streams that nobody reads make
//     room: those of the tenant that keeps most, the oldest first. Where there is none, the stream
//     that grows is not kept any more.
//  3. A running stream without a reader goes on for unread_us. At most max_unread do so: one more
//     ends the oldest of the tenant that has most of them.
//  4. A finished stream is kept for keep_us.
//  5. No stream is called with the mutex held.
#ifndef BATON_API_KEPT_STREAMS_H_
#define BATON_API_KEPT_STREAMS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/api/resumable_stream.h"
#include "src/base/clock.h"
#include "src/base/limits.h"
#include "src/base/mutex.h"
#include "src/base/thread.h"
#include "src/http/http_responder.h"
#include "src/obs/metrics.h"

namespace baton::api {

// How much is kept, and for how long; constant.
struct KeptStreamsLimits {
  // A page reconnects after 3 s, OpenAI's own libraries after up to 8 s, and a phone that changes
  // its network is back within 20 s. The row of a decode worker is held meanwhile.
  int64_t unread_us = 30'000'000;
  int64_t keep_us = 600'000'000;  // a client that has waited for so long has given up
  size_t max_unread = 64;         // answers that are computed for nobody: a quarter of a worker
  size_t max_bytes = size_t{64} << 20;        // some 250,000 chunks of a chat
  size_t max_stream_bytes = size_t{8} << 20;  // some 30,000 chunks of a chat
};
static_assert(KeptStreamsLimits{}.max_unread * 4 <= limits::kMaxRunning);
static_assert(KeptStreamsLimits{}.max_stream_bytes * 8 <= KeptStreamsLimits{}.max_bytes);

// Why a stream is not kept any more.
enum class EvictionReason : uint8_t {
  kAge,   // it finished long ago
  kRoom,  // other streams needed its room, or it found none
  kSize,  // it is longer than max_stream_bytes
};
inline constexpr std::array<std::string_view, 3> kEvictionReasonNames = {"age", "room", "size"};

// See the file comment.
class KeptStreams {
 public:
  // Memory of a stream besides its text: the object, its headers, its name in the table.
  static constexpr size_t kStreamOverhead = 2048;
  static constexpr int64_t kSweepIntervalMs = 250;

  // `registry` outlives this.
  explicit KeptStreams(obs::MetricsRegistry* registry, const Clock& clock = SystemClock(),
                       const KeptStreamsLimits& limits = {});
  ~KeptStreams();
  KeptStreams(const KeptStreams&) = delete;
  KeptStreams& operator=(const KeptStreams&) = delete;

  // A new stream whose first reader is `reader`. It can be found once it has begun.
  std::shared_ptr<ResumableStream> Make(std::string tenant,
                                        std::shared_ptr<http::HttpResponder> reader);
  // Null = there is none of that name, or not any more.
  std::shared_ptr<ResumableStream> Find(const std::string& name);
  // Counts a reader that resumed a stream.
  void CountResumed() { num_resumed_->Add(); }

  // Sweeps on a thread of its own, until Stop.
  void Watch();
  // Gives up and drops what is due.
  void Sweep();
  // From now on no stream goes on without a reader: nobody could connect.
  void BeginDrain();
  // Joins the thread; idempotent.
  void Stop();

  const KeptStreamsLimits& limits() const { return limits_; }

 private:
  friend class ResumableStream;

  // A running stream that has lost its reader.
  struct Unread {
    std::shared_ptr<ResumableStream> stream;
    uint64_t reader = 0;  // the one that it has lost
    int64_t since_us = 0;
  };
  // The sums over the streams of one tenant.
  struct Share {
    size_t num_bytes = 0;
    size_t num_unread = 0;
    size_t num_finished = 0;
  };
  struct Finished {
    std::string name;
    int64_t at_us = 0;
    Share* share = nullptr;  // in shares_
  };
  using Table = std::unordered_map<std::string, std::shared_ptr<ResumableStream>>;

  // For streams.
  void Add(std::shared_ptr<ResumableStream> stream);
  void Remove(const std::string& name);
  void OnLost(std::shared_ptr<ResumableStream> stream, uint64_t reader);
  void OnFound(const std::string& name, uint64_t reader);
  void OnFinished(const std::string& name);
  // Takes room for `num_bytes` of a tenant's text; false: there is none.
  bool TryGrow(const std::string& tenant, size_t num_bytes);
  void Shrink(const std::string& tenant, size_t num_bytes);
  void CountEviction(EvictionReason reason) { num_evicted_[static_cast<size_t>(reason)]->Add(); }

  void Run();
  std::shared_ptr<ResumableStream> TakeLocked(const std::string& name) BATON_REQUIRES(mutex_);
  void DropUnreadLocked(const std::string& name, uint64_t before) BATON_REQUIRES(mutex_);
  Unread TakeUnreadLocked(std::deque<Unread>::iterator entry) BATON_REQUIRES(mutex_);
  Unread TakeUnreadOfLargestLocked() BATON_REQUIRES(mutex_);
  std::shared_ptr<ResumableStream> TakeFinishedLocked(std::deque<Finished>::iterator entry)
      BATON_REQUIRES(mutex_);
  // Null: no finished stream can go.
  std::shared_ptr<ResumableStream> TakeFinishedOfLargestLocked() BATON_REQUIRES(mutex_);
  void DropEmptySharesLocked() BATON_REQUIRES(mutex_);
  void ShowLocked() BATON_REQUIRES(mutex_);

  const Clock& clock_;
  const KeptStreamsLimits limits_;
  obs::Gauge* const num_kept_;
  obs::Gauge* const num_unread_;
  obs::Gauge* const num_kept_bytes_;
  obs::Counter* const num_resumed_;
  obs::Counter* const num_given_up_;
  std::array<obs::Counter*, kEvictionReasonNames.size()> num_evicted_{};

  Mutex mutex_;  // guards what follows
  CondVar changed_;
  Table table_ BATON_GUARDED_BY(mutex_);
  std::deque<Unread> unread_ BATON_GUARDED_BY(mutex_);      // longest without a reader first
  std::deque<Finished> finished_ BATON_GUARDED_BY(mutex_);  // oldest first; each is in table_
  std::unordered_map<std::string, Share> shares_ BATON_GUARDED_BY(mutex_);  // by tenant
  size_t num_bytes_ BATON_GUARDED_BY(mutex_) = 0;
  bool is_draining_ BATON_GUARDED_BY(mutex_) = false;
  bool is_stopped_ BATON_GUARDED_BY(mutex_) = false;
  Thread thread_;  // last: uses the rest
};

}  // namespace baton::api

#endif  // BATON_API_KEPT_STREAMS_H_
