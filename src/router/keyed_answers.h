// KeyedAnswers: one generation for all requests under one idempotency key, within the router's
// life. The first request starts it; a later one with the same key and the same content is told
// everything from the first token on, under the same names, and then goes on with it.
//
// The router's thread calls it, time is an argument. Requests without a key never come here.
//
// Invariants
//  1. Under one key at most one generation lives or is remembered. Another content under it is
//     refused (kKeyReused). A generation that failed is forgotten at once: a retry runs anew.
//  2. Each reader's sink gets exactly one end, and each token once and in order. Readers do not
//  wait
//     for each other: one that is slow is paused alone, and cut like any other slow client.
//  3. A generation whose last reader has left goes on for grace_us; then it is cancelled. At most
//     max_orphans do so: one more ends the oldest.
//  4. A finished answer is kept for keep_us after it was last asked for. All answers together have
//     at most max_entries and max_bytes: those asked for longest ago go first. A generation that
//     fits neither loses its key: it runs on for its readers alone, and ends with the last of them.
//  5. One Tick replays at most kReplayTokensPerTick tokens, so that the router's thread stays free.
#ifndef BATON_ROUTER_KEYED_ANSWERS_H_
#define BATON_ROUTER_KEYED_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/obs/baton_metrics.h"
#include "src/router/answer_log.h"
#include "src/router/generate_request.h"
#include "src/router/submit.h"

namespace baton {

inline constexpr uint32_t kReplayTokensPerTick = 4096;  // some 20 ms of writing JSON
inline constexpr uint32_t kReplayTokensPerReader = 512;

// How much is remembered, and for how long; constant.
struct KeyedAnswersLimits {
  // A client waits up to 8 s before it retries (OpenAI's own libraries); 2 s to connect again.
  int64_t grace_us = 10'000'000;
  int64_t keep_us = 600'000'000;  // the request deadline: after it no client still waits
  int64_t slow_client_us = 30'000'000;
  size_t max_entries = 8192;  // RouterCoreConfig::max_live: what runs always fits
  size_t max_readers = 8192;
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
               const BatonMetrics* metrics);
  ~KeyedAnswers();

  // `request.key` is set; `uid` names the reader, and the generation when it is the first.
  void Submit(RequestUid uid, GenerateRequest request, std::shared_ptr<ResponseSink> sink,
              int64_t now_us);
  // The client has gone; its sink gets OnFailed(kCancelled). False: no reader of that name.
  bool Leave(RequestUid uid, int64_t now_us);
  // Replays, timers. Call as often as RouterCore::Tick.
  void Tick(int64_t now_us);
  // Ends every reader that still has no end with kDraining. Generations have ended before.
  void Shutdown();

  // Requests without an end.
  size_t num_readers() const { return reader_generation_.size(); }

 private:
  // One client of a generation.
  struct Reader {
    RequestUid uid;
    std::shared_ptr<ResponseSink> sink;
    uint64_t next = 0;  // position in the log
    int64_t deadline_us = 0;
    bool paused = false;
    size_t paused_bytes = 0;  // buffered when progress was last seen
    int64_t paused_progress_us = 0;
  };
  // One generation and what it said so far.
  struct Entry {
    RequestUid uid;
    std::shared_ptr<const IdempotencyKey> key;
    bool remembered = true;  // under its key
    KeyedState state = KeyedState::kLive;
    int64_t since_us = 0;                   // orphaned; finished or last asked for
    std::list<RequestUid>::iterator place;  // in orphans_ or finished_, by state
    AnswerLog log;
    std::vector<Reader> readers;
  };
  // The sink of a generation: tells the table.
  class Recorder;

  void OnToken(RequestUid generation, const TokenOutput& token);
  void OnFinished(RequestUid generation, const GenerateResult& result);
  void OnFailed(RequestUid generation, const RequestError& error);

  void Start(RequestUid uid, GenerateRequest request, std::shared_ptr<ResponseSink> sink,
             int64_t now_us);
  void Join(Entry& entry, Reader reader, int64_t now_us);
  void Refuse(ResponseSink& sink, const RequestError& error);
  bool DeliverNext(Entry& entry, Reader& reader);
  uint32_t Replay(Entry& entry, Reader& reader, uint32_t limit);
  bool CheckReader(Entry& entry, Reader& reader, int64_t now_us, RequestError* error);
  void TickReader(RequestUid uid, int64_t now_us, uint32_t* budget);
  void RemoveReader(Entry& entry, RequestUid uid, int64_t now_us);
  void SetState(Entry& entry, KeyedState state, int64_t now_us);
  void LetGo(Entry& entry);
  void Trim(Entry& entry);
  void Erase(RequestUid generation);
  void MakeRoom(size_t num_entries);
  Entry* Find(RequestUid generation);
  static Reader* FindReader(Entry& entry, RequestUid uid);
  static size_t BaseBytes(const Entry& entry);
  void Report();

  const KeyedAnswersLimits limits_;
  Generations* const generations_;
  const BatonMetrics* const metrics_;

  std::unordered_map<RequestUid, std::unique_ptr<Entry>> entries_;  // by generation
  std::unordered_map<std::string_view, RequestUid> by_scope_;       // views of the entries' keys
  std::unordered_map<RequestUid, RequestUid> reader_generation_;
  std::list<RequestUid> orphans_;   // longest first
  std::list<RequestUid> finished_;  // asked for longest ago first
  size_t bytes_ = 0;                // of all entries
  int64_t now_us_ = 0;              // the latest time told
};

}  // namespace baton

#endif  // BATON_ROUTER_KEYED_ANSWERS_H_
