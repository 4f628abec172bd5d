// ShadowRuns: runs a share of the finished requests again, aggregated, and compares. The client got
// tokens whose KV crossed between two processes; the shadow is one decode worker alone, in a cache
// of its own (kShadowTenant), so both must be equal to the bit.
//
// The router's thread calls it, time is an argument.
//
// Invariants
//  1. Clients come first. A shadow starts only where a decode worker has nothing to do and nothing
//     is queued, and it never waits in the queue. It ends at once when a client's request is placed
//     on its worker or finds no room (RouterCore).
//  2. Every finished request that was chosen, took the disaggregated path and is exact counts once
//     in baton_shadow_total: equal, mismatch, dropped (no idle worker in time, no memory, a client
//     came, its own time was over) or failed.
//  3. At most kMaxRunning shadows run, each for as long as its client's request might; kMaxPending
//     wait, each for kWaitUs, and none for another that could start. The record for all,
//     requests and answers, has at most kMaxBytes.
//  4. A request that is not chosen costs one addition; its sink is the one that it came with.
#ifndef BATON_ROUTER_SHADOW_RUNS_H_
#define BATON_ROUTER_SHADOW_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/obs/baton_metrics.h"
#include "src/router/generate_request.h"
#include "src/router/router_core.h"
#include "src/router/submit.h"

namespace baton::router {

// See the file comment.
class ShadowRuns {
 public:
  // Each shadow takes an idle decode worker for itself; two keep up with a few percent.
  static constexpr size_t kMaxRunning = 2;
  static constexpr size_t kMaxPending = 16;
  static constexpr int64_t kWaitUs = 5'000'000;
  static constexpr size_t kMaxBytes = size_t{32} << 20;

  // `share` of requests, 0..1. Both outlive this; the core's requests end before it.
  ShadowRuns(double share, RouterCore* core, const obs::BatonMetrics* metrics);
  ~ShadowRuns();

  // The sink to submit `request` with: `sink`, or one that also writes down what it is told.
  std::shared_ptr<ResponseSink> Wrap(RequestUid uid, const GenerateRequest& request,
                                     std::shared_ptr<ResponseSink> sink);
  // Starts what can start and drops what has waited too long. Call as often as the core's.
  void Tick(int64_t now_us);

  size_t num_pending() const { return pending_.size(); }
  size_t num_running() const { return num_running_; }

 private:
  class Witness;  // the sink of a chosen client's request
  class Check;    // the sink of a shadow

  // A token as a client was told it.
  struct Told {
    TokenId token = 0;
    scheduler::FinishReason finish = scheduler::FinishReason::kNone;
    float logprob = 0.0f;  // 0 without log-probabilities
    std::vector<TokenLogprob> top_logprobs;

    explicit Told(const TokenOutput& output);
    size_t bytes() const;
    friend bool operator==(const Told&, const Told&) = default;
  };

  // Memory out of kMaxBytes, given back at its end.
  class Loan {
   public:
    explicit Loan(size_t* lent) : lent_(lent) {}
    Loan(Loan&& other) noexcept : lent_(other.lent_), bytes_(std::exchange(other.bytes_, 0)) {}
    Loan& operator=(Loan&& other) noexcept {
      std::swap(lent_, other.lent_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Loan() { GiveBack(); }
    // False: there is not so much left.
    bool Take(size_t bytes);
    void GiveBack() { *lent_ -= std::exchange(bytes_, 0); }

   private:
    size_t* lent_;  // of all loans
    size_t bytes_ = 0;
  };

  // A client's request and what the client was told.
  struct Case {
    RequestUid uid;
    GenerateRequest request;  // without a key
    Loan loan;
    bool complete = true;                 // false: there was no memory for it, and nothing is kept
    std::vector<std::vector<Told>> told;  // [choice][index]
    std::string prefill_worker;
    std::string decode_worker;
    int64_t waits_since_us = -1;  // first tick after it finished

    void TakeRequest(const GenerateRequest& from);
    void TakeToken(const TokenOutput& token);
    void GiveUp();
  };
  // Where a shadow differs: the first token that is not the client's.
  struct Difference {
    uint32_t choice = 0;
    size_t index = 0;
    const Told* client = nullptr;  // null: the client's answer had ended
    const Told* shadow = nullptr;  // null: the shadow's had
    std::string shadow_worker;
  };

  void OnWitnessed(Case seen, const GenerateResult& result);
  void Start(Case seen, int64_t now_us);
  void OnDifference(const Case& seen, const Difference& difference);
  std::string WorkerOf(RequestUid shadow) const;
  void Count(obs::ShadowResult result) const { metrics_->CountShadow(result); }

  const double share_;
  double due_ = 0;  // the sum of shares since the last chosen request
  RouterCore* const core_;
  const obs::BatonMetrics* const metrics_;
  size_t lent_bytes_ = 0;
  size_t num_running_ = 0;
  int64_t now_us_ = 0;        // of the last tick
  std::deque<Case> pending_;  // finished longest ago first
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SHADOW_RUNS_H_
