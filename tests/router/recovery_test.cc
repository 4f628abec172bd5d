// A worker that is lost, hangs or fails costs a pause: the request goes on as its next attempt,
// from the tokens that are known, and its client gets each token once.
#include <string>
#include <string_view>

#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"
#include "tests/router/request_phase.h"

namespace baton::router {

using kv::RequestLimits;
using obs::ResumeReason;
using obs::ResumeSource;
using scheduler::FinishReason;

namespace {

constexpr int64_t kSecond = 1'000'000;

// The text of the answer that the router knows in a phase.
std::string KnownIn(Phase phase) {
  if (phase < Phase::kFirstToken) return "";
  return phase < Phase::kDecoding ? "a" : "abc";
}

uint64_t Resumes(const FakeCluster& cluster, ResumeReason reason, ResumeSource source) {
  return cluster.metrics.resumes_total[static_cast<size_t>(reason)][static_cast<size_t>(source)]
      ->value();
}

void Rejoin(FakeCluster& cluster, const std::string& id) {
  const WorkerRole role = id == "decode-0" ? WorkerRole::kDecode : WorkerRole::kPrefill;
  cluster.Join(FakeCluster::Describe(id, role));
  cluster.Report("prefill-0", {"decode-0"});
  cluster.Advance(100'000, {"decode-0", "prefill-0"});
}

// The text that the next placement starts from. A single token came from the prompt's end, which is
// repeated.
std::string_view ReplayedOf(std::string_view known) { return known.size() > 1 ? known : ""; }

// Both workers got the next attempt with what is known; plays it to the end of "abcd".
void ExpectGoesOn(FakeCluster& cluster, RequestUid uid, std::string_view known, uint32_t attempt) {
  const std::string_view replayed = ReplayedOf(known);
  const auto decodes = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  const auto prefills = cluster.Log("prefill-0").Of(Order::Kind::kPrefill);
  ASSERT_FALSE(decodes.empty());
  ASSERT_FALSE(prefills.empty());
  for (const Order& order : {decodes.back(), prefills.back()}) {
    EXPECT_EQ(order.attempt, attempt);
    EXPECT_EQ(order.prompt, BytesOf("prompt"));
    EXPECT_EQ(order.replayed, BytesOf(replayed));
  }
  const auto first = static_cast<uint32_t>(replayed.size());
  const std::string rest = std::string("abcd").substr(first);
  cluster.State("decode-0", uid, WorkerRequestState::kReserved, StatusCode::kOk, attempt);
  cluster.cached_tokens = 5;
  cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted, StatusCode::kOk, attempt);
  cluster.text_attempt = attempt;
  cluster.Text("prefill-0", uid, first, rest.substr(0, 1),
               rest.size() == 1 ? FinishReason::kLength : FinishReason::kNone);
  if (rest.size() > 1) {
    cluster.Text("decode-0", uid, first, rest, FinishReason::kLength);
  }
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->Text(), "abcd");
  EXPECT_EQ(cluster.sink->result->timings.resumes, attempt - 1);
  EXPECT_EQ(cluster.sink->result->num_prompt_tokens, 6u);
  EXPECT_EQ(cluster.sink->result->num_completion_tokens, 4u);
  ExpectClean(cluster);
}

TEST(RecoveryTest, DecodeWorkerDiesInEachState) {
  for (const Phase phase : kAllPhases) {
    if (phase == Phase::kQueued) continue;
    SCOPED_TRACE(PhaseName(phase));
    FakeCluster cluster;
    cluster.JoinPair();
    const RequestUid uid = PlayTo(cluster, phase);
    cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
    EXPECT_FALSE(cluster.sink->ended());
    EXPECT_TRUE(cluster.Log("decode-0").lease_closed);
    Rejoin(cluster, "decode-0");
    EXPECT_EQ(cluster.Log("prefill-0").Of(Order::Kind::kCancel).size(),
              phase == Phase::kVerified ? 1u : 0u)
        << "before, it may send what it has to the next decode worker";
    ExpectGoesOn(cluster, uid, KnownIn(phase), 2);
    EXPECT_EQ(Resumes(cluster, ResumeReason::kDecodeLost, ResumeSource::kPrefix), 1u);
  }
}

TEST(RecoveryTest, PrefillWorkerDiesInEachState) {
  for (const Phase phase : kAllPhases) {
    if (phase == Phase::kQueued) continue;
    SCOPED_TRACE(PhaseName(phase));
    FakeCluster cluster;
    cluster.JoinPair();
    const RequestUid uid = PlayTo(cluster, phase);
    cluster.core.OnLeaseClosed(cluster.leases["prefill-0"]);
    if (phase < Phase::kVerified) {
      EXPECT_FALSE(cluster.sink->ended());
      EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kCancel).size(), 1u);
      Rejoin(cluster, "prefill-0");
      ExpectGoesOn(cluster, uid, KnownIn(phase), 2);
      EXPECT_EQ(Resumes(cluster, ResumeReason::kPrefillLost, ResumeSource::kPrefix), 1u);
      continue;
    }
    // The decode worker has verified everything: no fault.
    const bool decoding = phase == Phase::kDecoding;
    cluster.Text("decode-0", uid, decoding ? 3 : 0, decoding ? "d" : "abcd", FinishReason::kLength);
    ASSERT_TRUE(cluster.sink->result.has_value());
    EXPECT_EQ(cluster.sink->Text(), "abcd");
    EXPECT_EQ(cluster.sink->result->timings.prefill_worker, "prefill-0");
    EXPECT_EQ(cluster.sink->result->timings.resumes, 0u);
    ExpectClean(cluster);
  }
}

TEST(RecoveryTest, FailureAtAWorkerInEachState) {
  for (const Phase phase : kAllPhases) {
    if (phase == Phase::kQueued) continue;
    SCOPED_TRACE(PhaseName(phase));
    FakeCluster cluster;
    JoinOldPair(cluster);
    const RequestUid uid = PlayTo(cluster, phase);
    cluster.State("decode-0", uid, WorkerRequestState::kFailed, StatusCode::kDataLoss);
    EXPECT_FALSE(cluster.sink->ended());
    EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kCancel).empty())
        << "the worker has ended it itself";
    // Unless the KV had crossed the link rests for a second: meanwhile the decode worker computes
    // the prompt itself.
    cluster.Advance(100'000, {"decode-0", "prefill-0"});
    const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
    ASSERT_EQ(orders.size(), 2u);
    EXPECT_EQ(orders[1].peer, phase < Phase::kVerified ? "" : "prefill-0");
    EXPECT_EQ(orders[1].attempt, 2u);
    EXPECT_EQ(orders[1].replayed, BytesOf(ReplayedOf(KnownIn(phase))));
    EXPECT_EQ(cluster.Log("prefill-0").Of(Order::Kind::kCancel).size(),
              phase <= Phase::kVerified ? 1u : 0u);
    cluster.core.Cancel(uid);
    ExpectClean(cluster);
  }
}

TEST(RecoveryTest, WorkerThatEndsWithAGapIsAFault) {
  FakeCluster cluster;
  JoinOldPair(cluster);
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  cluster.State("decode-0", uid, WorkerRequestState::kFinished);
  EXPECT_FALSE(cluster.sink->ended()) << "an answer that looks whole and is not";
  cluster.Advance(100'000, {"decode-0", "prefill-0"});
  const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 2u);
  EXPECT_EQ(orders[1].replayed, BytesOf("abc"));
}

TEST(RecoveryTest, WorkerThatGaveTheRequestUpIsAFault) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  cluster.State("decode-0", uid, WorkerRequestState::kCancelled, StatusCode::kCancelled);
  cluster.Advance(100'000, {"decode-0", "prefill-0"});
  ExpectGoesOn(cluster, uid, "abc", 2);
  EXPECT_EQ(Resumes(cluster, ResumeReason::kTimeout, ResumeSource::kPrefix), 1u);
}

TEST(RecoveryTest, SilentReservationIsPlacedAgain) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kPlaced);
  cluster.Advance(1'900'000, {"decode-0", "prefill-0"});
  EXPECT_TRUE(cluster.Log("decode-0").Of(Order::Kind::kCancel).empty());
  cluster.Advance(300'000, {"decode-0", "prefill-0"});
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kCancel).size(), 1u);
  EXPECT_TRUE(cluster.Log("prefill-0").Of(Order::Kind::kCancel).empty());
  ExpectGoesOn(cluster, uid, "", 2);
}

TEST(RecoveryTest, AfterASilentReservationAnotherWorkerIsAsked) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  const auto report = [&] {
    cluster.Report("prefill-0", {"decode-0", "decode-1"});
    cluster.Report("decode-0");
    cluster.Report("decode-1", {}, 32);
  };
  report();
  cluster.Submit(cluster.Request("prompt"));
  ASSERT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u);
  for (int i = 0; i < 22; ++i) {
    cluster.now_us += 100'000;
    report();
    cluster.core.Tick(cluster.now_us);
  }
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(), 1u)
      << "it has more room, and says nothing";
  EXPECT_EQ(cluster.Log("decode-1").Of(Order::Kind::kDecode).size(), 1u);
  EXPECT_TRUE(cluster.core.Ready(cluster.now_us));
  EXPECT_FALSE(cluster.sink->ended());
}

TEST(RecoveryTest, EngineThatHangsBehindHeartbeatsIsLeftAlone) {
  FakeCluster cluster;
  cluster.JoinPair();
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  cluster.Report("prefill-0", {"decode-0", "decode-1"});
  const std::vector<std::string> all = {"decode-0", "decode-1", "prefill-0"};
  cluster.Submit(cluster.Request("prompt"));
  const bool at_first = !cluster.Log("decode-0").Of(Order::Kind::kDecode).empty();
  const std::string hung = at_first ? "decode-0" : "decode-1";
  const std::string other = at_first ? "decode-1" : "decode-0";
  const RequestUid uid = cluster.Log(hung).Of(Order::Kind::kDecode).front().uid;
  cluster.State(hung, uid, WorkerRequestState::kReserved);
  cluster.State(hung, uid, WorkerRequestState::kVerified);
  cluster.Text(hung, uid, 0, "abc");
  cluster.Advance(9 * kSecond, all);
  EXPECT_TRUE(cluster.Log(other).Of(Order::Kind::kDecode).empty());
  cluster.Advance(2 * kSecond, all);
  const auto orders = cluster.Log(other).Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].replayed, BytesOf("abc"));
  EXPECT_EQ(cluster.Log(hung).Of(Order::Kind::kCancel).size(), 1u);
  const RegisteredWorker* worker = cluster.core.registry().Find(cluster.leases[hung]);
  EXPECT_FALSE(worker->Usable(cluster.now_us));
  EXPECT_GT(worker->avoided_until_us, cluster.now_us);
}

// A prefill worker that lost its decode worker says so, and its blocks go to the next one.
TEST(RecoveryTest, StrandedPromptIsSentToAnotherDecodeWorker) {
  FakeCluster cluster;
  JoinOldPair(cluster);
  const RequestUid uid = PlayTo(cluster, Phase::kGranted);
  cluster.Join(FakeCluster::Describe("decode-1", WorkerRole::kDecode));
  cluster.Report("prefill-0", {"decode-0", "decode-1"});
  cluster.State("prefill-0", uid, WorkerRequestState::kStranded, StatusCode::kUnavailable);
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kCancel).size(), 1u);
  cluster.Advance(100'000, {"decode-0", "decode-1", "prefill-0"});
  const auto decodes = cluster.Log("decode-1").Of(Order::Kind::kDecode);
  ASSERT_EQ(decodes.size(), 1u) << "the link to decode-0 rests";
  EXPECT_EQ(decodes[0].peer, "prefill-0");
  const auto prefills = cluster.Log("prefill-0").Of(Order::Kind::kPrefill);
  ASSERT_EQ(prefills.size(), 2u);
  EXPECT_EQ(prefills[1].peer, "decode-1");
  EXPECT_EQ(prefills[1].attempt, 2u);
  EXPECT_TRUE(prefills[1].replayed.empty()) << "the same tokens as before";
  EXPECT_TRUE(cluster.Log("prefill-0").Of(Order::Kind::kCancel).empty());
  WorkerRequestStatus status;
  status.uid = uid;
  status.attempt = 2;
  status.state = WorkerRequestState::kPrefillStarted;
  status.retargeted = true;
  cluster.core.OnSessionStatus(cluster.Session("prefill-0"), status, cluster.now_us);
  EXPECT_EQ(Resumes(cluster, ResumeReason::kTransfer, ResumeSource::kRetarget), 1u);
  cluster.core.Cancel(uid);
  ExpectClean(cluster);
}

TEST(RecoveryTest, StrandedAfterTheKvCrossedIsNoFault) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kVerified);
  cluster.State("prefill-0", uid, WorkerRequestState::kStranded, StatusCode::kUnavailable);
  cluster.Text("decode-0", uid, 0, "abcd", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->result->timings.resumes, 0u);
}

TEST(RecoveryTest, KeptPromptIsCancelledWhenItsRequestEndsInTheQueue) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kGranted);
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  EXPECT_TRUE(cluster.Log("prefill-0").Of(Order::Kind::kCancel).empty());
  cluster.core.Cancel(uid);
  EXPECT_EQ(cluster.Log("prefill-0").Of(Order::Kind::kCancel).size(), 1u);
  ExpectClean(cluster);
}

TEST(RecoveryTest, ThreeFaultsWithoutATokenAreTheLimit) {
  FakeCluster cluster;
  JoinOldPair(cluster);
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  for (uint32_t attempt = 1; attempt <= RequestLimits().max_faults; ++attempt) {
    ASSERT_FALSE(cluster.sink->ended()) << "attempt " << attempt;
    // Later the links would be to blame.
    cluster.State("decode-0", uid, WorkerRequestState::kVerified, StatusCode::kOk, attempt);
    cluster.State("decode-0", uid, WorkerRequestState::kFailed, StatusCode::kDataLoss, attempt);
    cluster.Advance(100'000, {"decode-0", "prefill-0"});
  }
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kWorkerFailed);
  EXPECT_EQ(cluster.Log("decode-0").Of(Order::Kind::kDecode).size(),
            size_t{RequestLimits().max_faults});
  ExpectClean(cluster);
}

TEST(RecoveryTest, FaultsWithTokensBetweenThemHaveNoLimit) {
  FakeCluster cluster;
  JoinOldPair(cluster);
  const RequestUid uid = PlayTo(cluster, Phase::kVerified, 100);
  std::string text = "a";
  for (uint32_t attempt = 1; attempt <= 20; ++attempt) {
    const auto index = static_cast<uint32_t>(text.size());
    cluster.State("decode-0", uid, WorkerRequestState::kReserved, StatusCode::kOk, attempt);
    cluster.text_attempt = attempt;
    cluster.Text("decode-0", uid, index, "x");
    text += 'x';
    cluster.State("decode-0", uid, WorkerRequestState::kFailed, StatusCode::kDataLoss, attempt);
    cluster.Advance(100'000, {"decode-0", "prefill-0"});
  }
  EXPECT_FALSE(cluster.sink->ended());
  EXPECT_EQ(cluster.sink->Text(), text);
}

// Workers that die under a request that gives one token before each death, until it is given up.
uint32_t DeathsUnderAPoison(size_t num_tokens_before) {
  FakeCluster cluster;
  JoinOldPair(cluster);
  const RequestUid uid = PlayTo(cluster, Phase::kVerified, 400);
  cluster.Text("decode-0", uid, 1, std::string(num_tokens_before - 1, 'x'));
  auto num_tokens = static_cast<uint32_t>(num_tokens_before);
  for (uint32_t attempt = 1; attempt <= 100; ++attempt) {
    cluster.State("decode-0", uid, WorkerRequestState::kReserved, StatusCode::kOk, attempt);
    cluster.State("decode-0", uid, WorkerRequestState::kVerified, StatusCode::kOk, attempt);
    cluster.text_attempt = attempt;
    cluster.Text("decode-0", uid, num_tokens++, "x");
    cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
    if (cluster.sink->ended()) {
      EXPECT_EQ(cluster.sink->error->code, ErrorCode::kWorkerLost);
      EXPECT_EQ(cluster.sink->Text().size(), num_tokens) << "what was given stays given";
      ExpectClean(cluster);
      return attempt;
    }
    Rejoin(cluster, "decode-0");
  }
  return 0;
}

// Each token begins the limits of faults anew; without a limit of its own such a request would end
// a worker for each of its tokens.
TEST(RecoveryTest, ARequestThatKillsItsWorkerAfterEachTokenIsGivenUp) {
  EXPECT_EQ(DeathsUnderAPoison(2), 17u);
  EXPECT_EQ(DeathsUnderAPoison(70), 18u) << "64 tokens allow one more";
}

TEST(RecoveryTest, RequestThatTwoWorkersDiedOnIsNotGivenToAThird) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kDecoding);
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  Rejoin(cluster, "decode-0");
  EXPECT_FALSE(cluster.sink->ended());
  cluster.State("decode-0", uid, WorkerRequestState::kReserved, StatusCode::kOk, 2);
  cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted, StatusCode::kOk, 2);
  cluster.State("prefill-0", uid, WorkerRequestState::kGranted, StatusCode::kOk, 2);
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kWorkerLost);
  ExpectClean(cluster);
}

// A request that waits is not what kills a worker.
TEST(RecoveryTest, ADeathBeforeTheWorkBeganIsNotTheRequestsFault) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kReserved);
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  ASSERT_FALSE(cluster.sink->ended());
  Rejoin(cluster, "decode-0");
  cluster.State("decode-0", uid, WorkerRequestState::kReserved, StatusCode::kOk, 2);
  EXPECT_EQ(Resumes(cluster, ResumeReason::kPrefillLost, ResumeSource::kRecompute), 0u)
      << "nothing was computed yet";
  // One that dies in its first moment with it may not have said so: not for ever. Fewer in all than
  // what makes `serve` give a worker up.
  for (uint32_t attempt = 2; attempt <= 3; ++attempt) {
    ASSERT_FALSE(cluster.sink->ended()) << attempt;
    cluster.core.OnLeaseClosed(cluster.leases["prefill-0"]);
    Rejoin(cluster, "prefill-0");
  }
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kWorkerLost);
  ExpectClean(cluster);
}

// A drain whose time is over stops what a worker still computes: planned, as often as it comes.
TEST(RecoveryTest, WorkersThatDrainAreNoFault) {
  for (const std::string leaving : {"prefill-0", "decode-0"}) {
    for (const bool by_lease : {false, true}) {
      SCOPED_TRACE(leaving + (by_lease ? " closes its lease" : " stops"));
      FakeCluster cluster;
      JoinOldPair(cluster);
      const RequestUid uid = PlayTo(cluster, Phase::kPrefilling);
      for (uint32_t attempt = 1; attempt <= 5; ++attempt) {
        ASSERT_FALSE(cluster.sink->ended()) << attempt;
        cluster.Report(leaving, cluster.last_links[leaving], std::nullopt, /*draining=*/true);
        if (!by_lease) {
          cluster.State(leaving, uid, WorkerRequestState::kFailed, StatusCode::kUnavailable,
                        attempt);
        }
        cluster.core.OnLeaseClosed(cluster.leases[leaving]);
        Rejoin(cluster, leaving);
        const uint32_t next = attempt + 1;
        cluster.State("decode-0", uid, WorkerRequestState::kReserved, StatusCode::kOk, next);
        cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted, StatusCode::kOk, next);
      }
      EXPECT_FALSE(cluster.sink->ended());
      EXPECT_EQ(Resumes(cluster, ResumeReason::kMoved, ResumeSource::kRecompute), 5u);
      cluster.core.Cancel(uid);
      ExpectClean(cluster);
    }
  }
}

TEST(RecoveryTest, BothWorkersOfARequestMayDieAtOnce) {
  FakeCluster cluster;
  cluster.JoinPair();
  const RequestUid uid = PlayTo(cluster, Phase::kGranted);
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  cluster.core.OnLeaseClosed(cluster.leases["prefill-0"]);
  EXPECT_FALSE(cluster.sink->ended());
  cluster.Join(FakeCluster::Describe("decode-0", WorkerRole::kDecode));
  Rejoin(cluster, "prefill-0");
  ExpectGoesOn(cluster, uid, "a", 2);
}

TEST(RecoveryTest, RequestWithoutAnyWorkerWaitsForARestartAndNoLonger) {
  FakeCluster cluster;
  cluster.JoinPair();
  PlayTo(cluster, Phase::kDecoding);
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  cluster.Advance(29 * kSecond, {"prefill-0"});
  EXPECT_FALSE(cluster.sink->ended());
  cluster.Advance(2 * kSecond, {"prefill-0"});
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kWorkerLost);
  ExpectClean(cluster);
}

// With several choices each is computed again from its first token; the client gets only what is
// new.
TEST(RecoveryTest, ChoicesAreRepeatedAndMerged) {
  FakeCluster cluster;
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("prompt");
  request.num_choices = 2;
  const RequestUid uid = cluster.Submit(std::move(request));
  const auto say = [&](uint32_t attempt, uint32_t choice, std::string_view text,
                       FinishReason finish) {
    for (uint32_t i = 0; i < text.size(); ++i) {
      const bool last = i + 1 == text.size();
      cluster.Tokens(
          "decode-0",
          {FakeCluster::OfAttempt(
              attempt,
              FakeCluster::Token(uid, i, text[i], last ? finish : FinishReason::kNone, choice))});
    }
  };
  cluster.State("decode-0", uid, WorkerRequestState::kVerified);
  say(1, 0, "abc", FinishReason::kNone);
  say(1, 1, "xy", FinishReason::kLength);
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  Rejoin(cluster, "decode-0");
  const auto orders = cluster.Log("decode-0").Of(Order::Kind::kDecode);
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_TRUE(orders[0].replayed.empty());
  EXPECT_EQ(orders[0].num_choices, 2u);
  cluster.State("decode-0", uid, WorkerRequestState::kVerified, StatusCode::kOk, 2);
  say(2, 1, "xy", FinishReason::kLength);
  say(2, 0, "abcd", FinishReason::kLength);
  ASSERT_TRUE(cluster.sink->result.has_value());
  EXPECT_EQ(cluster.sink->result->num_completion_tokens, 6u);
  EXPECT_EQ(cluster.sink->tokens.size(), 6u) << "each token once";
  ExpectClean(cluster);
}

TEST(RecoveryTest, UnequalRepetitionIsNeverShown) {
  FakeCluster cluster;
  cluster.JoinPair();
  GenerateRequest request = cluster.Request("prompt");
  request.num_choices = 2;
  const RequestUid uid = cluster.Submit(std::move(request));
  cluster.State("decode-0", uid, WorkerRequestState::kVerified);
  cluster.Tokens("decode-0", {FakeCluster::Token(uid, 0, 'a')});
  cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
  Rejoin(cluster, "decode-0");
  cluster.State("decode-0", uid, WorkerRequestState::kVerified, StatusCode::kOk, 2);
  cluster.Tokens("decode-0", {FakeCluster::OfAttempt(2, FakeCluster::Token(uid, 0, 'b'))});
  ASSERT_TRUE(cluster.sink->error.has_value());
  EXPECT_EQ(cluster.sink->error->code, ErrorCode::kChainMismatch);
}

// One token is asked for and the prompt's end gave it: whoever was to go on from it is not missed.
TEST(RecoveryTest, AnAnswerWhoseTokensAreAllKnownNeedsNoPlace) {
  const std::string kFaults[] = {"lost", "silent", "refused", "failed", "prefill lost"};
  for (const std::string& fault : kFaults) {
    SCOPED_TRACE(fault);
    FakeCluster cluster;
    cluster.JoinPair();
    const RequestUid uid = cluster.Submit(cluster.Request("prompt", 1));
    cluster.State("prefill-0", uid, WorkerRequestState::kPrefillStarted);
    cluster.Text("prefill-0", uid, 0, "a", FinishReason::kLength);
    EXPECT_TRUE(cluster.sink->tokens.empty()) << "the decode worker has not reserved";
    if (fault == "lost") cluster.core.OnLeaseClosed(cluster.leases["decode-0"]);
    if (fault == "silent") cluster.Advance(2'100'000, {"decode-0", "prefill-0"});
    if (fault == "refused") {
      cluster.State("decode-0", uid, WorkerRequestState::kRejected, StatusCode::kResourceExhausted);
    }
    if (fault == "failed") {
      cluster.State("prefill-0", uid, WorkerRequestState::kFailed, StatusCode::kInternal);
    }
    if (fault == "prefill lost") cluster.core.OnLeaseClosed(cluster.leases["prefill-0"]);
    ASSERT_TRUE(cluster.sink->result.has_value());
    EXPECT_EQ(cluster.sink->Text(), "a");
    EXPECT_EQ(cluster.sink->result->timings.resumes, 0u);
    ExpectClean(cluster);
  }
}

}  // namespace
}  // namespace baton::router
