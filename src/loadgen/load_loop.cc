#include "src/loadgen/load_loop.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace baton::loadgen {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// Encoded requests made ahead of their time, so that a burst of long prompts is not late.
constexpr size_t kMaxPrepared = 256;
constexpr size_t kMaxPreparedBytes = size_t{128} << 20;
// Encoding the longest prompt of the traces (190,000 tokens) takes about this long.
constexpr int64_t kPrepareUs = 3000;
// So many refused connections in a row are a server that is gone, not one that is busy.
constexpr uint64_t kGoneAfter = 20;
constexpr int64_t kReportUs = 250'000;
constexpr int64_t kStopCheckUs = 200'000;
// Longer answers grow their list as they come: most requests of a long plan never get so far.
constexpr uint32_t kReservedTokens = 4096;
// Servers may send a token in parts, but not without end.
constexpr uint64_t MaxPieces(uint64_t num_tokens) { return 2 * num_tokens + 64; }
// The longest tokens in use have 256 bytes.
constexpr uint64_t MaxBytes(uint64_t num_tokens) { return 1024 * num_tokens + 65536; }
// As much of a server's error, or of a wrong answer, as tells what it is.
constexpr size_t kMaxErrorBytes = 4096;
// Runs this thread before all others as long as it lives, where the system allows it (root). With a
// server on the same two busy cores the p99 of starting late was 0.07 ms instead of 3 ms, and every
// run without it was void. The thread sleeps whenever nothing is due.
class UrgentThread {
 public:
  UrgentThread() {
    policy_ = sched_getscheduler(0);
    const sched_param first = {.sched_priority = 1};
    raised_ = policy_ == SCHED_OTHER &&
              sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first) == 0;
  }
  ~UrgentThread() {
    const sched_param none = {.sched_priority = 0};
    if (raised_) (void)sched_setscheduler(0, SCHED_OTHER, &none);
  }
  UrgentThread(const UrgentThread&) = delete;
  UrgentThread& operator=(const UrgentThread&) = delete;

 private:
  int policy_ = SCHED_OTHER;
  bool raised_ = false;
};

int64_t ThreadCpuUs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

}  // namespace

LoadLoop::LoadLoop(const Clock& clock, StreamBackend& backend, const Workload& workload,
                   LoadSpec spec)
    : clock_(clock),
      backend_(backend),
      workload_(workload),
      spec_(std::move(spec)),
      open_(spec_.num_users == 0) {}

RunResult LoadLoop::Run() {
  // The first requests are made before the clock starts.
  while (PrepareAhead(std::numeric_limits<int64_t>::min() / 2)) {
  }
  const UrgentThread urgent;
  const int64_t cpu_before_us = ThreadCpuUs();
  epoch_us_ = clock_.NowUs();
  result_.epoch_us = epoch_us_;
  for (uint32_t user = 0; user < spec_.num_users; ++user) free_users_.push(0);
  while (true) {
    const int64_t now_us = Now();
    if (spec_.stop != nullptr && spec_.stop->load(std::memory_order_relaxed)) {
      CancelRest("interrupted");
      break;
    }
    if (spec_.duration_us > 0 && now_us >= spec_.duration_us) StopStarting();
    StartDue(now_us);
    ExpireOld(now_us);
    // A stream on its way may still bring a next turn.
    if (!MoreSessions() && next_turns_.empty() && live_.empty()) StopStarting();
    if (live_.empty() && !starting_) break;
    if (!starting_ && now_us >= stopped_us_ + spec_.drain_us) {
      CancelRest(
          fmt::format("{} answers took longer than the wait after the last start", live_.size()));
      break;
    }
    Report(now_us);
    const bool prepared = PrepareAhead(Now());
    backend_.Poll(prepared ? 0 : epoch_us_ + WakeAt(), *this);
    EndOverlong();
  }
  result_.client_cpu_us = ThreadCpuUs() - cpu_before_us;
  result_.read_lag_us = read_lag_us_.Take();
  // A run that ends with refused connections lost its server, however few were left to be refused.
  if (connect_failures_ > 0 && result_.cut_short.empty()) {
    result_.cut_short = fmt::format("the server was gone at the end: {}", connect_error_);
  }
  for (const RequestRecord& record : result_.records) {
    result_.wall_us = std::max({result_.wall_us, record.end_us, record.intended_us});
  }
  return std::move(result_);
}

bool LoadLoop::MoreSessions() const {
  if (!starting_) return false;
  if (open_) return next_session_ < spec_.starts_us.size();
  return spec_.max_sessions == 0 || next_session_ < spec_.max_sessions;
}

int64_t LoadLoop::NextSessionDue() const {
  if (!MoreSessions()) return kNever;
  if (open_) return spec_.starts_us[next_session_];
  return free_users_.empty() ? kNever : free_users_.top();
}

int64_t LoadLoop::NextTurnDue() const {
  return next_turns_.empty() ? kNever : next_turns_.begin()->first;
}

LoadLoop::Ready LoadLoop::Prepare(Session session) const {
  Ready ready;
  ready.turn = workload_.Build(session.session_idx, session.turn_idx, session.history);
  const std::string name = fmt::format("bench-{}-{}", session.session_idx, session.turn_idx);
  ready.encoded = backend_.Encode(name, ready.turn.request);
  ready.turn.request = StreamRequest();
  ready.session = std::move(session);
  return ready;
}

// Makes one more session's request when there is time for it; false when there is nothing to make.
bool LoadLoop::PrepareAhead(int64_t now_us) {
  const uint64_t session_idx = next_session_ + prepared_.size();
  const uint64_t limit = open_ ? spec_.starts_us.size() : spec_.max_sessions;
  const size_t wanted = open_ ? kMaxPrepared : std::min<size_t>(kMaxPrepared, spec_.num_users);
  if (!starting_ || prepared_.size() >= wanted || prepared_bytes_ >= kMaxPreparedBytes ||
      ((open_ || limit > 0) && session_idx >= limit)) {
    return false;
  }
  if (now_us + kPrepareUs > std::min(NextSessionDue(), NextTurnDue())) return false;
  prepared_.push_back(Prepare({.session_idx = session_idx, .turn_idx = 0, .history = {}}));
  prepared_bytes_ += prepared_.back().encoded.size();
  return true;
}

void LoadLoop::StartDue(int64_t now_us) {
  while (starting_ && std::min(NextSessionDue(), NextTurnDue()) <= now_us) {
    if (NextTurnDue() <= NextSessionDue()) {
      auto node = next_turns_.extract(next_turns_.begin());
      Start(std::move(node.mapped()), node.key());
      continue;
    }
    const int64_t due_us = NextSessionDue();
    if (!open_) free_users_.pop();
    if (prepared_.empty()) {
      Ready ready = Prepare({.session_idx = next_session_, .turn_idx = 0, .history = {}});
      ++next_session_;
      Start(std::move(ready), due_us);
      continue;
    }
    Ready ready = std::move(prepared_.front());
    prepared_.pop_front();
    prepared_bytes_ -= ready.encoded.size();
    ++next_session_;
    Start(std::move(ready), due_us);
  }
}

void LoadLoop::Start(Ready ready, int64_t due_us) {
  const uint64_t id = result_.records.size();
  RequestRecord record;
  record.session_idx = ready.session.session_idx;
  record.turn_idx = ready.session.turn_idx;
  record.golden_idx = ready.turn.golden_idx;
  record.want_input = ready.turn.want_input;
  record.want_output = ready.turn.want_output;
  record.intended_us = due_us;
  record.token_us.reserve(std::min(kReservedTokens, ready.turn.want_output));
  const int64_t now_us = Now();
  result_.start_lag_us.push_back(static_cast<double>(now_us - due_us));
  result_.records.push_back(std::move(record));
  Live live;
  live.keep_text = ready.turn.golden_idx.has_value() ||
                   ready.session.turn_idx + 1 < workload_.NumTurns(ready.session.session_idx);
  const uint64_t num_tokens = ready.turn.golden_idx
                                  ? workload_.spec().golden[*ready.turn.golden_idx].max_tokens
                                  : ready.turn.want_output;
  live.max_pieces = MaxPieces(num_tokens);
  live.max_bytes = MaxBytes(num_tokens);
  live.session = std::move(ready.session);
  live.turn = std::move(ready.turn);
  live_.emplace(id, std::move(live));
  deadlines_.emplace_back(now_us + spec_.timeout_us, id);
  ++progress_.started;
  backend_.Start(id, std::move(ready.encoded), *this);
}

void LoadLoop::StopStarting() {
  if (!starting_) return;
  starting_ = false;
  stopped_us_ = Now();
  next_turns_.clear();
}

void LoadLoop::ExpireOld(int64_t now_us) {
  while (!deadlines_.empty() && deadlines_.front().first <= now_us) {
    const uint64_t id = deadlines_.front().second;
    deadlines_.pop_front();
    if (!live_.contains(id)) continue;
    backend_.Cancel(id);
    StreamEnd end;
    end.at_us = epoch_us_ + now_us;
    end.outcome = RequestOutcome::kTimedOut;
    end.error = fmt::format("no whole answer within {} ms", spec_.timeout_us / 1000);
    OnEnd(id, std::move(end));
  }
}

void LoadLoop::EndOverlong() {
  for (const uint64_t id : std::exchange(overlong_, {})) {
    const auto found = live_.find(id);
    if (found == live_.end()) continue;
    backend_.Cancel(id);
    StreamEnd end;
    end.at_us = clock_.NowUs();
    OnEnd(id, std::move(end));
  }
}

void LoadLoop::CancelRest(const std::string& why) {
  result_.cut_short = result_.cut_short.empty() ? why : result_.cut_short;
  for (const auto& [id, live] : live_) {
    backend_.Cancel(id);
    result_.records[id].end_us = Now();
    result_.records[id].error = why;
  }
  live_.clear();
}

void LoadLoop::OnSent(uint64_t id, int64_t at_us) {
  result_.records[id].sent_us = at_us - epoch_us_;
}

void LoadLoop::OnText(uint64_t id, int64_t at_us, std::string_view text) {
  const auto found = live_.find(id);
  if (found == live_.end() || !found->second.excess.empty()) return;
  Live& live = found->second;
  std::vector<int64_t>& token_us = result_.records[id].token_us;
  live.num_bytes += text.size();
  if (token_us.size() >= live.max_pieces) {
    live.excess = fmt::format("{} pieces", live.max_pieces);
  } else if (live.num_bytes > live.max_bytes) {
    live.excess = fmt::format("{} bytes", live.max_bytes);
  }
  if (!live.excess.empty()) {
    overlong_.push_back(id);
    return;
  }
  // A stamp of the kernel may be a little before the previous one when the wall clock is slewed.
  const int64_t last_us = token_us.empty() ? 0 : token_us.back();
  token_us.push_back(std::max(at_us - epoch_us_, last_us));
  ++progress_.pieces;
  if (live.keep_text) live.text += text;
}

void LoadLoop::OnLag(int64_t lag_us) { read_lag_us_.Add(static_cast<double>(lag_us)); }

void LoadLoop::OnEnd(uint64_t id, StreamEnd end) {
  auto node = live_.extract(id);
  if (node.empty()) return;
  Live& live = node.mapped();
  RequestRecord& record = result_.records[id];
  record.end_us = std::max(end.at_us - epoch_us_, record.intended_us);
  if (!record.token_us.empty()) record.end_us = std::max(record.end_us, record.token_us.back());
  record.outcome = end.outcome;
  record.error = std::move(end.error);
  record.facts = std::move(end.facts);
  // Also when it ended by itself before it could be ended.
  if (!live.excess.empty()) {
    record.outcome = RequestOutcome::kMalformed;
    record.error =
        fmt::format("more than {} of text, which is more than was asked for", live.excess);
  }
  if (record.ok() && live.turn.golden_idx) {
    const GoldenPrompt& golden = workload_.spec().golden[*live.turn.golden_idx];
    record.golden_wrong = live.text != golden.text;
    if (record.golden_wrong) record.error = DescribeWrongAnswer(golden, live.text);
  }
  if (record.error.size() > kMaxErrorBytes) {
    record.error.resize(kMaxErrorBytes);
    record.error.shrink_to_fit();
  }
  ++progress_.ended;
  if (!record.ok()) ++progress_.failed;
  CheckServer(record);
  PlanNext(std::move(live), record);
}

// The next turn of the session, or the user's next session.
void LoadLoop::PlanNext(Live live, const RequestRecord& record) {
  Session session = std::move(live.session);
  const bool more = record.ok() && session.turn_idx + 1 < workload_.NumTurns(session.session_idx);
  if (!more) {
    if (!open_) free_users_.push(record.end_us);
    return;
  }
  if (!starting_) return;
  session.history.push_back({"user", std::move(live.turn.new_text)});
  session.history.push_back({"assistant", std::move(live.text)});
  ++session.turn_idx;
  const int64_t due_us = record.end_us + spec_.think_us;
  next_turns_.emplace(due_us, Prepare(std::move(session)));
}

void LoadLoop::CheckServer(const RequestRecord& record) {
  if (record.outcome == RequestOutcome::kLocalError) return;  // nobody asked the server
  connect_failures_ = record.outcome == RequestOutcome::kConnectFailed ? connect_failures_ + 1 : 0;
  if (connect_failures_ > 0) connect_error_ = record.error;
  if (connect_failures_ < kGoneAfter || !starting_) return;
  result_.cut_short = fmt::format("the server was gone {:.1f} s into the run: {}",
                                  static_cast<double>(record.end_us) / 1e6, record.error);
  StopStarting();
}

void LoadLoop::Report(int64_t now_us) {
  if (!spec_.on_progress || now_us < next_report_us_) return;
  next_report_us_ = now_us + kReportUs;
  progress_.elapsed_us = now_us;
  progress_.running = live_.size();
  const uint64_t sessions = open_ ? spec_.starts_us.size() : spec_.max_sessions;
  progress_.share = 0.0;
  if (sessions > 0) {
    progress_.share = static_cast<double>(next_session_) / static_cast<double>(sessions);
  }
  if (spec_.duration_us > 0) {
    const double of_time = static_cast<double>(now_us) / static_cast<double>(spec_.duration_us);
    progress_.share = std::max(progress_.share, std::min(1.0, of_time));
  }
  spec_.on_progress(progress_);
}

int64_t LoadLoop::WakeAt() const {
  int64_t at_us = Now() + kStopCheckUs;
  if (starting_) {
    at_us = std::min({at_us, NextSessionDue(), NextTurnDue()});
    if (spec_.duration_us > 0) at_us = std::min(at_us, spec_.duration_us);
  } else {
    at_us = std::min(at_us, stopped_us_ + spec_.drain_us);
  }
  if (!deadlines_.empty()) at_us = std::min(at_us, deadlines_.front().first);
  return at_us;
}

}  // namespace baton::loadgen
