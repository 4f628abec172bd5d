// KeyedAnswers: one generation for all requests under one idempotency key, within the router's
// life. The first request starts it. A later one with the same key and content is told everything
// from the first token on, under the same names, and then goes on with it.
//
// The router's thread calls it, time is an argument. Requests without a key never come here.
//
// Invariants
//  1. Under one key at most one generation lives or is remembered. Another content under it is
//     refused (kKeyReused). A generation that failed is forgotten at once: a retry runs anew.
//  2. Each reader's sink gets exactly one end, and each token once and in order. Readers do not
//     wait for each other: one that is slow is paused alone, and cut like any other slow client. A
//     generation has a name of its own: no reader's name, told late or twice, can end it.
//  3. A generation whose last reader has left goes on for grace_us; then it is cancelled. At most
//     max_orphans do so: one more ends the oldest.
//  4. A finished answer is kept for keep_us after it was last asked for. All answers together have
//     at most max_entries and max_bytes: those asked for longest ago go first. A generation that
//     fits neither loses its key: it runs on for its readers alone, and ends with the last of them.
//  5. One key has at most max_readers_per_key readers. A whole answer is collected once for each.
//  6. One Tick replays at most kReplayPerTick, so that the router's thread stays free. Readers that
//     lag share it: first those of live generations, then those of finished ones, for which a
//     quarter is kept. Within each the reader that was fed longest ago is first.
#ifndef BATON_ROUTER_KEYED_ANSWERS_H_
#define BATON_ROUTER_KEYED_ANSWERS_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/limits.h"
#include "src/obs/baton_metrics.h"
#include "src/router/answer_log.h"
#include "src/router/client_pause.h"
#include "src/router/generate_request.h"
#include "src/router/submit.h"

namespace baton::router {

// The cost that one tick may replay. A token counts 1 and its alternatives a third each
// (AnswerLog::CostAt), as they are long to write. A token of an HTTP stream took 1.0 us, with 20
// alternatives 7.0 us (AMD EPYC, without the socket). So a tick of 20 ms spends some 0.5 ms on it,
// and 25,600 bare tokens pass in a second.
inline constexpr uint32_t kReplayPerTick = 512;
// The least that one reader gets in a tick. Where equal shares are smaller, readers take turns.
inline constexpr uint32_t kReplayMinShare = 16;

// How much is remembered, and for how long; constant. The router takes slow_client_us, max_entries
// and max_readers from its own limits.
struct KeyedAnswersLimits {
  // A client waits up to 8 s before it retries (OpenAI's own libraries); 2 s to connect again.
  int64_t grace_us = 10'000'000;
  int64_t keep_us = 600'000'000;  // a client that has waited for so long has given up
  int64_t slow_client_us = 30'000'000;
  size_t max_entries = limits::kMaxRouterRequests;  // what runs always fits
  size_t max_readers = 8192;
  size_t max_readers_per_key = 16;  // a client retries one after the other
  size_t max_orphans = 64;
  size_t max_bytes = size_t{64} << 20;  // some 500,000 tokens without log-probabilities
  size_t max_answer_bytes = size_t{8} << 20;
};

// Runs requests; the router, or a test.
class Generations {
 public:
  virtual ~Generations() = default;
  virtual void StartGeneration(RequestUid uid, GenerateRequest request,
                               std::shared_ptr<ResponseSink> sink, int64_t now_us) = 0;
  // The sink gets OnFailed(kCancelled) before this returns, unless it had its end.
  virtual void StopGeneration(RequestUid uid) = 0;
};

// See the file comment.
class KeyedAnswers {
 public:
  // Both outlive this.
  KeyedAnswers(const KeyedAnswersLimits& limits, Generations* generations,
               const obs::BatonMetrics* metrics);
  ~KeyedAnswers();

  // `request.key` is set; `uid` names the reader.
  void Submit(RequestUid uid, GenerateRequest request, std::shared_ptr<ResponseSink> sink,
              int64_t now_us);
  // The client has gone; its sink gets OnFailed(kCancelled). False: no reader of that name.
  bool Leave(RequestUid uid, int64_t now_us);
  // Replays, timers. Call as often as RouterCore::Tick.
  void Tick(int64_t now_us);
  // RouterCore::ForgiveSilence.
  void ForgiveSilence(int64_t late_us);
  // Ends every reader that still has no end with kDraining. Generations have ended before.
  void Shutdown();

  // Requests without an end.
  size_t num_readers() const { return readers_.size(); }

 private:
  struct Entry;
  // One client of a generation.
  struct Reader {
    RequestUid uid;
    Entry* entry = nullptr;
    std::shared_ptr<ResponseSink> sink;
    uint64_t next = 0;        // position in the log
    uint64_t fed = 0;         // the tick that fed it last, or the one before it came
    int64_t deadline_us = 0;  // INT64_MAX = none
    RequestError past_deadline;
    ClientPause pause;
  };
  // A reader that lags, in the order in which they are fed.
  struct Turn {
    uint64_t fed;
    RequestUid reader;
    friend auto operator<=>(const Turn&, const Turn&) = default;
  };
  // One generation and what it said so far.
  struct Entry {
    RequestUid uid;
    std::shared_ptr<const IdempotencyKey> key;
    bool remembered = true;  // under its key
    obs::KeyedState state = obs::KeyedState::kLive;
    bool is_taken = false;                  // by a worker: readers were told, and will be
    int64_t since_us = 0;                   // orphaned; finished or last asked for
    std::list<RequestUid>::iterator place;  // in orphans_ or finished_, by state
    AnswerLog log;
    std::vector<Reader*> readers;
    std::optional<RequestError> refused;  // orphaned: why the last reader's sink gave it up
  };
  // The sink of a generation: tells the table.
  class Recorder;

  void OnTaken(RequestUid generation);
  void OnToken(RequestUid generation, const TokenOutput& token);
  void OnFinished(RequestUid generation, const GenerateResult& result);
  void OnFailed(RequestUid generation, const RequestError& error);
  // ResponseSink::own_failure of a generation that only one client reads or read last.
  const RequestError* OwnFailure(RequestUid generation);
  // ResponseSink::TriesAgain of all clients that read the generation.
  bool TriesAgain(RequestUid generation, const RequestError& error);

  void Start(Reader reader, GenerateRequest request, int64_t now_us);
  void Join(Entry& entry, Reader reader, int64_t now_us);
  void AddReader(Entry& entry, Reader reader);
  void Refuse(ResponseSink& sink, const RequestError& error);
  bool DeliverNext(Reader& reader);
  void CheckReaders();
  std::optional<RequestError> EndOf(Reader& reader);
  void FeedReaders();
  uint32_t Feed(std::vector<Turn> turns, uint32_t budget);
  uint32_t Replay(Reader& reader, uint32_t limit);
  void EndReader(Reader& reader, const RequestError& error);
  void RemoveReader(Reader& reader);
  void SetState(Entry& entry, obs::KeyedState state, int64_t now_us);
  void LetGo(Entry& entry);
  void Trim(Entry& entry);
  void Erase(RequestUid generation);
  void MakeRoom(size_t num_entries);
  Entry* Find(RequestUid generation);
  static size_t BaseBytes(const Entry& entry);
  void Report();

  const KeyedAnswersLimits limits_;
  Generations* const generations_;
  const obs::BatonMetrics* const metrics_;

  std::unordered_map<RequestUid, std::unique_ptr<Entry>> entries_;  // by generation
  std::unordered_map<std::string_view, RequestUid> by_scope_;       // views of the entries' keys
  std::unordered_map<RequestUid, Reader> readers_;                  // by their own names
  std::list<RequestUid> orphans_;                                   // longest first
  std::list<RequestUid> finished_;                                  // asked for longest ago first
  size_t bytes_ = 0;                                                // of all entries
  uint64_t num_ticks_ = 0;
  int64_t now_us_ = 0;  // the latest time told
};

}  // namespace baton::router

#endif  // BATON_ROUTER_KEYED_ANSWERS_H_
