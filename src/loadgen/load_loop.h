// One timed run: starts sessions when they are due, whatever the server does, and writes down what
// comes back.
//
// Invariants:
//  1. A request's latency counts from when it was due: the planned start (open loop), the end of
//     the user's last session (closed loop), the end of the answer before it plus the think time
//     (next turn).
//  2. Nothing is dropped: each started request has one record, and an answer that the run did not
//     wait for is `unfinished`.
//  3. Memory is bounded by the tokens that were asked for, whatever a server sends: a stream of
//     more pieces or bytes than that, with a margin, ends as `malformed`, and an error is cut.
//  4. One thread; the only waiting is in StreamBackend::Poll.
#ifndef BATON_LOADGEN_LOAD_LOOP_H_
#define BATON_LOADGEN_LOAD_LOOP_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/clock.h"
#include "src/loadgen/request_record.h"
#include "src/loadgen/statistics.h"
#include "src/loadgen/stream_backend.h"
#include "src/loadgen/workload.h"

namespace baton::loadgen {

// How much of the run has happened, for a live line.
struct LoadProgress {
  int64_t elapsed_us = 0;
  double share = 0;  // of the planned sessions or of the duration, whichever is further
  uint64_t started = 0;
  uint64_t running = 0;
  uint64_t ended = 0;
  uint64_t failed = 0;
  uint64_t pieces = 0;  // of text
};

// When sessions start and when the run ends.
struct LoadSpec {
  std::vector<int64_t> starts_us;  // open loop: intended starts from the beginning of the run
  uint32_t num_users = 0;     // closed loop when > 0: each starts a session when its last ended
  uint64_t max_sessions = 0;  // closed loop; 0 = until the duration
  int64_t duration_us = 0;    // no start after it; 0 = none
  int64_t think_us = 0;       // between the end of a turn and the start of the next
  int64_t timeout_us = 600'000'000;
  int64_t drain_us = 120'000'000;  // how long answers are waited for after the last start
  std::function<void(const LoadProgress&)> on_progress;  // may be empty; every 250 ms
  const std::atomic<bool>* stop = nullptr;               // true: ends the run soon
};

// More lags than these say nothing more about their p99.
inline constexpr size_t kMaxLagSamples = size_t{1} << 20;

// The results of one run.
struct RunResult {
  std::vector<RequestRecord> records;  // in the order of their start
  // The client's own lag: how late it started a request that was due, and how long arrived bytes
  // waited until it read them (a sample of kMaxLagSamples when there were more reads).
  std::vector<double> start_lag_us;
  std::vector<double> read_lag_us;
  int64_t epoch_us = 0;       // the beginning, on SystemClock
  int64_t wall_us = 0;        // from the beginning to the last end
  int64_t client_cpu_us = 0;  // processor time of the client's thread
  std::string cut_short;      // why the run ended early; "" = it did not
};

// Runs one load. Use once.
class LoadLoop final : private StreamSink {
 public:
  // All three outlive the loop.
  LoadLoop(const Clock& clock, StreamBackend& backend, const Workload& workload, LoadSpec spec);
  RunResult Run();

 private:
  // A conversation; `history` is what was asked and answered so far.
  struct Session {
    uint64_t session_idx = 0;
    uint32_t turn_idx = 0;
    std::vector<TurnText> history;
  };
  // A request that can be sent as soon as it is due.
  struct Ready {
    Session session;
    PlannedTurn turn;  // its request is empty: it is in `encoded`
    std::string encoded;
  };
  // A request on its way.
  struct Live {
    Session session;
    PlannedTurn turn;
    bool keep_text = false;  // a later turn or a golden check needs the answer
    std::string text;
    // More are no answer to this request.
    uint64_t max_pieces = 0;
    uint64_t max_bytes = 0;
    uint64_t num_bytes = 0;
    std::string excess;  // what there was too much of; "" = nothing
  };

  void OnSent(uint64_t id, int64_t at_us) override;
  void OnText(uint64_t id, int64_t at_us, std::string_view text) override;
  void OnLag(int64_t lag_us) override;
  void OnEnd(uint64_t id, StreamEnd end) override;

  int64_t Now() const { return clock_.NowUs() - epoch_us_; }
  // True while more sessions will be started.
  bool MoreSessions() const;
  // When the next session is due; kNever when none is or nobody is free to start it.
  int64_t NextSessionDue() const;
  int64_t NextTurnDue() const;
  Ready Prepare(Session session) const;
  bool PrepareAhead(int64_t now_us);
  void StartDue(int64_t now_us);
  void Start(Ready ready, int64_t due_us);
  void StopStarting();
  void ExpireOld(int64_t now_us);
  void EndOverlong();
  void CancelRest(const std::string& why);
  void PlanNext(Live live, const RequestRecord& record);
  void CheckServer(const RequestRecord& record);
  void Report(int64_t now_us);
  int64_t WakeAt() const;

  const Clock& clock_;
  StreamBackend& backend_;
  const Workload& workload_;
  const LoadSpec spec_;
  const bool open_;

  int64_t epoch_us_ = 0;
  uint64_t next_session_ = 0;  // the next one to be started
  bool starting_ = true;       // false once the duration is over or the server is gone
  int64_t stopped_us_ = 0;     // when starting ended
  // Due times of users who wait for their next session (closed loop), smallest first.
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> free_users_;
  std::multimap<int64_t, Ready> next_turns_;  // by due time
  std::deque<Ready> prepared_;                // sessions next_session_, next_session_ + 1, ...
  size_t prepared_bytes_ = 0;
  std::unordered_map<uint64_t, Live> live_;
  std::deque<std::pair<int64_t, uint64_t>> deadlines_;  // in the order of the starts
  std::vector<uint64_t> overlong_;  // streams with an excess, to be ended after Poll
  uint64_t connect_failures_ = 0;   // in a row
  std::string connect_error_;       // of the last of them
  int64_t next_report_us_ = 0;
  LoadProgress progress_;
  Reservoir read_lag_us_{kMaxLagSamples};
  RunResult result_;
};

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_LOAD_LOOP_H_
