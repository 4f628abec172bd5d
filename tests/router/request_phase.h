// Brings a request into a phase of its life, for tests that do something in each.
#ifndef BATON_TESTS_ROUTER_REQUEST_PHASE_H_
#define BATON_TESTS_ROUTER_REQUEST_PHASE_H_

#include <string>

#include "tests/router/fake_cluster.h"

namespace baton::router {

// How far a disaggregated request has come. In kQueued there is no room for it yet.
enum class Phase {
  kQueued,
  kPlaced,
  kReserved,
  kPrefilling,
  kFirstToken,
  kGranted,
  kVerified,
  kHandedOff,
  kDecoding,
};
inline constexpr Phase kAllPhases[] = {Phase::kQueued,     Phase::kPlaced,     Phase::kReserved,
                                       Phase::kPrefilling, Phase::kFirstToken, Phase::kGranted,
                                       Phase::kVerified,   Phase::kHandedOff,  Phase::kDecoding};

inline std::string PhaseName(Phase phase) {
  constexpr const char* kNames[] = {"queued",     "placed",      "reserved",
                                    "prefilling", "first token", "granted",
                                    "verified",   "handed off",  "decoding"};
  return kNames[static_cast<int>(phase)];
}

// Submits a request to a cluster of prefill-0 and decode-0 and plays it to `phase`. With kQueued
// the decode worker reports a full pool first.
inline RequestUid PlayTo(FakeCluster& cluster, Phase phase, uint32_t max_tokens = 16) {
  if (phase == Phase::kQueued) cluster.Report("decode-0", {}, 0);
  const RequestUid uid = cluster.Submit(cluster.Request("prompt", max_tokens));
  const auto reached = [phase](Phase step) { return phase >= step; };
  if (reached(Phase::kReserved)) cluster.State("decode-0", uid, WorkerRequestState::kReserved);
  if (reached(Phase::kPrefilling)) {
    cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted);
  }
  if (reached(Phase::kFirstToken)) {
    cluster.Text("prefill-0", uid, 0, "a");
    cluster.State("prefill-0", uid, WorkerRequestState::kPrefillDone);
  }
  if (reached(Phase::kGranted)) cluster.State("prefill-0", uid, WorkerRequestState::kGranted);
  if (reached(Phase::kVerified)) cluster.State("decode-0", uid, WorkerRequestState::kVerified);
  if (reached(Phase::kHandedOff)) cluster.State("prefill-0", uid, WorkerRequestState::kHandedOff);
  if (reached(Phase::kDecoding)) {
    cluster.Text("decode-0", uid, 0, "a");
    cluster.State("decode-0", uid, WorkerRequestState::kDecodeStarted);
    cluster.Text("decode-0", uid, 1, "bc");
    cluster.State("decode-0", uid, WorkerRequestState::kFirstStepDone);
  }
  return uid;
}

// A pair that has stood for long: no placement waits for links that may yet come up.
inline void JoinOldPair(FakeCluster& cluster) {
  cluster.JoinPair();
  cluster.Advance(4'000'000, {"decode-0", "prefill-0"});
}

// Nothing of any request is counted anywhere.
inline void ExpectClean(FakeCluster& cluster) {
  EXPECT_EQ(cluster.core.num_live(), 0u);
  for (const auto& [lease, worker] : cluster.core.registry().workers()) {
    const std::string& id = worker.description.name.worker_id;
    EXPECT_EQ(worker.placed.num_blocks, 0u) << id;
    EXPECT_EQ(worker.placed.num_tokens, 0u) << id;
    EXPECT_EQ(worker.placed.num_sequences, 0u) << id;
    EXPECT_EQ(worker.num_requests, 0u) << id;
  }
}

}  // namespace baton::router

#endif  // BATON_TESTS_ROUTER_REQUEST_PHASE_H_
