// One generation under one idempotency key: the test is the router that runs it, the clients that
// come, go and dawdle, and the clock.
#include "src/router/keyed_answers.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/router/router_core.h"
#include "tests/router/recording_sink.h"
#include "tests/router/test_model.h"

namespace baton::router {

using namespace obs;  // NOLINT(google-build-using-namespace)
using scheduler::FinishReason;

namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// A client that also writes down under which names its answer goes.
class NamedSink final : public ResponseSink {
 public:
  void OnAccepted(const AnswerName& name) override {
    EXPECT_THAT(names, IsEmpty());
    EXPECT_TRUE(seen.tokens.empty() && !seen.ended()) << "the name comes first";
    names.push_back(name.request_id);
  }
  void OnToken(const TokenOutput& token) override { seen.OnToken(token); }
  void OnFinished(const GenerateResult& result) override { seen.OnFinished(result); }
  void OnFailed(const RequestError& error) override { seen.OnFailed(error); }
  size_t buffered_bytes() const override { return seen.buffered; }
  const RequestError* own_failure() const override { return seen.own_failure(); }
  bool TriesAgain(const RequestError& error) override { return seen.TriesAgain(error); }

  std::string Text() const { return seen.Text(); }
  std::optional<ErrorCode> error() const {
    return seen.error ? std::optional<ErrorCode>(seen.error->code) : std::nullopt;
  }

  RecordingSink seen;
  std::vector<std::string> names;
};

// Runs nothing: keeps each generation's sink for the test to play into.
class HandPlayed final : public Generations {
 public:
  void StartGeneration(RequestUid uid, GenerateRequest request, std::shared_ptr<ResponseSink> sink,
                       int64_t /*now_us*/) override {
    started.push_back(uid);
    timeouts_us.push_back(request.timeout_us);
    if (refusal) return sink->OnFailed(PlainError(*refusal));
    live[uid] = std::move(sink);
  }
  void StopGeneration(RequestUid uid) override {
    stopped.push_back(uid);
    const auto node = live.extract(uid);
    ASSERT_FALSE(node.empty()) << "it had ended before";
    node.mapped()->OnFailed(PlainError(ErrorCode::kCancelled));
  }

  std::optional<ErrorCode> refusal;
  std::vector<RequestUid> started;
  std::vector<int64_t> timeouts_us;  // of those
  std::vector<RequestUid> stopped;
  std::map<RequestUid, std::shared_ptr<ResponseSink>> live;
};

class KeyedAnswersTest : public testing::Test {
 protected:
  explicit KeyedAnswersTest(const KeyedAnswersLimits& limits = {})
      : limits_(limits),
        metrics_(RegisterBatonMetrics(&registry_)),
        table_(limits, &router_, &metrics_) {}

  // Asks under `key` for `content`; the request's own name is "name-N".
  std::shared_ptr<NamedSink> Ask(const std::string& key, uint64_t content = 1,
                                 int64_t timeout_us = 600'000'000) {
    auto sink = std::make_shared<NamedSink>();
    GenerateRequest request;
    request.model = TestModel();
    request.received_us = now_us_;
    request.timeout_us = timeout_us;
    auto idempotency_key = std::make_shared<IdempotencyKey>();
    last_ = {3, ++num_asked_};
    idempotency_key->scope = key;
    idempotency_key->fingerprint = {content, content};
    idempotency_key->field = "Idempotency-Key";
    idempotency_key->name = {"id", "name-" + std::to_string(num_asked_) + name_suffix_, 7};
    request.key = idempotency_key;
    table_.Submit(last_, std::move(request), sink, now_us_);
    return sink;
  }
  void Advance(int64_t us) { table_.Tick(now_us_ += us); }

  // The generation that began last.
  RequestUid Generation() const { return router_.started.back(); }
  // Makes the generation say `text`.
  void Say(RequestUid uid, std::string_view text, bool is_last = false) {
    for (size_t i = 0; i < text.size(); ++i) {
      TokenOutput token;
      token.index = said_[uid]++;
      token.token = static_cast<unsigned char>(text[i]);
      token.text = text.substr(i, 1);
      token.has_logprob = true;
      token.logprob = -0.5f;
      token.top_logprobs = &top_;
      token.is_last = is_last && i + 1 == text.size();
      token.finish = token.is_last ? FinishReason::kLength : FinishReason::kNone;
      router_.live.at(uid)->OnToken(token);
    }
  }
  void Finish(RequestUid uid) {
    GenerateResult result;
    result.num_completion_tokens = said_[uid];
    result.timings.decode_worker = decode_worker_;
    const auto node = router_.live.extract(uid);
    node.mapped()->OnFinished(result);
  }
  double Answers(KeyedState state) const {
    return metrics_.idempotency_answers[static_cast<size_t>(state)]->value();
  }
  uint64_t Counted(KeyedResult result) const {
    return metrics_.idempotency_requests_total[static_cast<size_t>(result)]->value();
  }
  uint64_t Lost(KeyedLoss why) const {
    return metrics_.idempotency_dropped_total[static_cast<size_t>(why)]->value();
  }

  const KeyedAnswersLimits limits_;
  MetricsRegistry registry_;
  const BatonMetrics metrics_;
  HandPlayed router_;
  KeyedAnswers table_;
  int64_t now_us_ = 1'000'000;
  uint64_t num_asked_ = 0;
  RequestUid last_;  // the reader of the last Ask
  std::string name_suffix_;
  std::string decode_worker_;
  std::vector<TokenLogprob> top_ = {{1, -0.5f}, {2, -1.0f}};
  std::map<RequestUid, uint32_t> said_;
};

TEST_F(KeyedAnswersTest, ASecondReaderJoinsFromTheFirstTokenAndGoesOnLive) {
  const auto first = Ask("k");
  const RequestUid uid = Generation();
  Say(uid, "abc");
  const auto second = Ask("k");
  EXPECT_EQ(first->Text(), "abc") << "the first one is not disturbed";
  Advance(20'000);
  EXPECT_EQ(second->Text(), "abc");
  Say(uid, "de", true);
  EXPECT_EQ(second->Text(), "abcde") << "live, without a tick";
  Finish(uid);
  for (const auto& sink : {first, second}) {
    EXPECT_EQ(sink->Text(), "abcde");
    EXPECT_THAT(sink->names, ElementsAre("name-1"));
    ASSERT_TRUE(sink->seen.result.has_value());
    EXPECT_EQ(sink->seen.result->num_completion_tokens, 5u);
    EXPECT_TRUE(sink->seen.tokens.back().is_last);
    EXPECT_EQ(sink->seen.tokens[2].logprob, -0.5f);
  }
  EXPECT_THAT(router_.started, ElementsAre(uid));
  EXPECT_EQ(Counted(KeyedResult::kNew), 1u);
  EXPECT_EQ(Counted(KeyedResult::kJoined), 1u);
  EXPECT_EQ(table_.num_readers(), 0u);
}

TEST_F(KeyedAnswersTest, AFinishedAnswerIsToldAgainUntilItsTimeIsOver) {
  Ask("k");
  const RequestUid uid = Generation();
  Say(uid, "abc", true);
  Finish(uid);
  EXPECT_EQ(Answers(KeyedState::kFinished), 1);
  EXPECT_GT(metrics_.idempotency_bytes->value(), 3 * sizeof(TokenOutput));
  Advance(limits_.keep_us - 1);
  const auto late = Ask("k");
  EXPECT_THAT(late->seen.tokens, IsEmpty());
  Advance(1);
  EXPECT_EQ(late->Text(), "abc");
  EXPECT_TRUE(late->seen.result.has_value());
  Advance(limits_.keep_us - 1);
  EXPECT_EQ(Answers(KeyedState::kFinished), 0) << "its time counts from when it was asked for";
  EXPECT_EQ(metrics_.idempotency_bytes->value(), 0);
  Ask("k");
  EXPECT_THAT(router_.started, SizeIs(2)) << "forgotten";
}

TEST_F(KeyedAnswersTest, OtherContentUnderAKnownKeyIsRefused) {
  Ask("k", 1);
  const RequestUid uid = Generation();
  const auto other = Ask("k", 2);
  EXPECT_EQ(other->error(), ErrorCode::kKeyReused);
  EXPECT_EQ(other->seen.error->param, "Idempotency-Key");
  EXPECT_THAT(other->names, IsEmpty());
  Say(uid, "a", true);
  Finish(uid);
  EXPECT_EQ(Ask("k", 2)->error(), ErrorCode::kKeyReused) << "also of a finished one";
  EXPECT_EQ(Ask("other", 2)->error(), std::nullopt);
  EXPECT_EQ(Counted(KeyedResult::kConflict), 2u);
  EXPECT_THAT(router_.started, SizeIs(2));
}

// The router counts the generation by it. A retry may find room.
TEST_F(KeyedAnswersTest, AnAnswerThatItsOnlyClientGaveUpEndsAsThatClientSawIt) {
  const auto sink = Ask("k");
  const ResponseSink& generation = *router_.live.at(Generation());
  EXPECT_EQ(generation.own_failure(), nullptr);
  sink->seen.own = PlainError(ErrorCode::kQueueFull);
  ASSERT_NE(generation.own_failure(), nullptr);
  EXPECT_TRUE(table_.Leave(last_, now_us_));
  ASSERT_NE(generation.own_failure(), nullptr);
  EXPECT_EQ(generation.own_failure()->code, ErrorCode::kQueueFull);
  const auto retry = Ask("k");
  EXPECT_EQ(generation.own_failure(), nullptr);
  const auto other = Ask("k");
  retry->seen.own = PlainError(ErrorCode::kQueueFull);
  EXPECT_EQ(generation.own_failure(), nullptr) << "the other has the answer";
}

// The router counts the failure unless all clients try again.
TEST_F(KeyedAnswersTest, AGenerationIsTriedAgainWhereAllItsReadersDoSo) {
  struct Case {
    const char* key;
    std::vector<bool> readers;
    bool expected;
  };
  const RequestError error = PlainError(ErrorCode::kQueueTimeout);
  for (const Case& c :
       {Case{"nobody", {}, false}, Case{"no", {false}, false}, Case{"yes", {true}, true},
        Case{"both", {true, true}, true}, Case{"neither", {false, false}, false},
        Case{"only the first", {true, false}, false},
        Case{"only the second", {false, true}, false}}) {
    std::vector<std::shared_ptr<NamedSink>> sinks;
    for (const bool tries_again : c.readers) {
      sinks.push_back(Ask(c.key));
      sinks.back()->seen.tries_again = tries_again;
    }
    if (sinks.empty()) {
      Ask(c.key);
      table_.Leave(last_, now_us_);
    }
    const auto node = router_.live.extract(Generation());
    EXPECT_EQ(node.mapped()->TriesAgain(error), c.expected) << c.key;
    node.mapped()->OnFailed(error);
    for (const auto& sink : sinks) EXPECT_EQ(sink->error(), ErrorCode::kQueueTimeout) << c.key;
  }
}

TEST_F(KeyedAnswersTest, ARetryWithinTheGraceFindsTheGenerationOfAClientThatLeft) {
  const auto first = Ask("k");
  const RequestUid uid = Generation();
  const RequestUid reader = last_;
  Say(uid, "ab");
  EXPECT_TRUE(table_.Leave(reader, now_us_));
  EXPECT_EQ(first->error(), ErrorCode::kCancelled);
  EXPECT_EQ(Answers(KeyedState::kOrphaned), 1);
  Say(uid, "cd");
  Advance(limits_.grace_us - 1);
  EXPECT_THAT(router_.stopped, IsEmpty());
  const auto retry = Ask("k");
  Advance(limits_.grace_us);
  EXPECT_THAT(router_.stopped, IsEmpty()) << "somebody came";
  EXPECT_EQ(retry->Text(), "abcd");
  Say(uid, "e", true);
  Finish(uid);
  EXPECT_EQ(retry->Text(), "abcde");
  EXPECT_TRUE(retry->seen.result.has_value());
  EXPECT_THAT(router_.started, SizeIs(1));
}

TEST_F(KeyedAnswersTest, AGenerationThatNobodyComesForIsCancelledAfterTheGrace) {
  Ask("k");
  const RequestUid uid = Generation();
  const RequestUid reader = last_;
  Say(uid, "ab");
  table_.Leave(reader, now_us_);
  Advance(limits_.grace_us);
  EXPECT_THAT(router_.stopped, ElementsAre(uid));
  EXPECT_EQ(Lost(KeyedLoss::kAbandoned), 1u);
  EXPECT_EQ(Answers(KeyedState::kOrphaned), 0);
  EXPECT_EQ(metrics_.idempotency_bytes->value(), 0);
  Ask("k");
  EXPECT_THAT(router_.started, SizeIs(2));
}

TEST_F(KeyedAnswersTest, AnOrphanThatFinishesIsKept) {
  Ask("k");
  const RequestUid uid = Generation();
  const RequestUid reader = last_;
  table_.Leave(reader, now_us_);
  Say(uid, "ab", true);
  Finish(uid);
  Advance(limits_.grace_us);
  const auto retry = Ask("k");
  Advance(1);
  EXPECT_EQ(retry->Text(), "ab");
  EXPECT_THAT(router_.stopped, IsEmpty());
}

TEST_F(KeyedAnswersTest, TheGenerationGoesOnWhileAnyReaderStays) {
  Ask("k");
  const RequestUid uid = Generation();
  const RequestUid reader = last_;
  const auto second = Ask("k");
  table_.Leave(reader, now_us_);
  EXPECT_EQ(Answers(KeyedState::kOrphaned), 0);
  Advance(2 * limits_.grace_us);
  Say(uid, "a", true);
  Finish(uid);
  EXPECT_EQ(second->Text(), "a");
  EXPECT_FALSE(table_.Leave(reader, now_us_)) << "it left before";
}

TEST_F(KeyedAnswersTest, AFailureReachesAllReadersAndIsForgotten) {
  const auto first = Ask("k");
  const RequestUid uid = Generation();
  Say(uid, "a");
  const auto second = Ask("k");
  const auto node = router_.live.extract(uid);
  node.mapped()->OnFailed(PlainError(ErrorCode::kWorkerLost));
  EXPECT_EQ(first->error(), ErrorCode::kWorkerLost);
  EXPECT_EQ(second->error(), ErrorCode::kWorkerLost);
  router_.refusal = ErrorCode::kQueueFull;
  EXPECT_EQ(Ask("k")->error(), ErrorCode::kQueueFull) << "refused within Submit";
  router_.refusal.reset();
  const auto retry = Ask("k", 2);
  EXPECT_EQ(retry->error(), std::nullopt) << "also another content: nothing is known";
  EXPECT_THAT(router_.started, SizeIs(3));
}

TEST_F(KeyedAnswersTest, ASlowReaderIsCutAloneAndHoldsNobodyBack) {
  const auto quick = Ask("k");
  const RequestUid uid = Generation();
  const auto slow = Ask("k");
  const RequestUid slow_uid = last_;
  Advance(20'000);
  slow->seen.buffered = kPauseBytes + 1;
  Say(uid, "abcd");
  EXPECT_EQ(quick->Text(), "abcd");
  EXPECT_EQ(slow->Text(), "");
  Advance(limits_.slow_client_us - 1);
  slow->seen.buffered = kPauseBytes;  // some progress
  Advance(1);
  Advance(limits_.slow_client_us - 1);
  EXPECT_EQ(slow->error(), std::nullopt);
  slow->seen.buffered = kResumeBytes;
  Advance(1);
  EXPECT_EQ(slow->Text(), "abcd") << "it caught up";
  slow->seen.buffered = kPauseBytes + 1;
  Say(uid, "e");
  Advance(limits_.slow_client_us);
  EXPECT_EQ(slow->error(), ErrorCode::kSlowClient);
  EXPECT_FALSE(table_.Leave(slow_uid, now_us_));
  Say(uid, "f", true);
  Finish(uid);
  EXPECT_EQ(quick->Text(), "abcdef");
  EXPECT_TRUE(quick->seen.result.has_value());
}

TEST_F(KeyedAnswersTest, EachReaderHasItsOwnDeadline) {
  const auto first = Ask("k");
  const RequestUid uid = Generation();
  const auto hasty = Ask("k", 1, 1'000'000);
  Advance(1'000'000);
  EXPECT_EQ(hasty->error(), ErrorCode::kDeadlineExceeded);
  Say(uid, "a", true);
  Finish(uid);
  EXPECT_TRUE(first->seen.result.has_value());
}

// Its name is known to its client alone: what comes late under it must not reach the others.
TEST_F(KeyedAnswersTest, NoReaderNamesTheGeneration) {
  Ask("k");
  EXPECT_NE(Generation(), last_);
  EXPECT_FALSE(table_.Leave(Generation(), now_us_));
  Ask("k");
  EXPECT_NE(Generation(), last_);
}

// The first one's transport ends its call after a second; what it asked for is the generation's.
TEST_F(KeyedAnswersTest, ADeadlineOfTheTransportEndsTheReaderAndNotTheGeneration) {
  const auto hasty = Ask("k", 1, 1'000'000);
  EXPECT_THAT(router_.timeouts_us, ElementsAre(IdempotencyKey{}.timeout_us));
  Say(Generation(), "ab");
  Advance(1'000'000);
  EXPECT_EQ(hasty->error(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(Answers(KeyedState::kOrphaned), 1);
  const auto retry = Ask("k");
  Advance(1);
  EXPECT_EQ(retry->Text(), "ab");
  EXPECT_THAT(router_.stopped, IsEmpty());
}

class ReplayTest : public KeyedAnswersTest {
 protected:
  void AnswerOf(const std::string& key, size_t num_tokens) {
    Ask(key);
    Say(Generation(), std::string(num_tokens, 'x'), true);
    Finish(Generation());
  }
  static uint32_t NumTold(const std::vector<std::shared_ptr<NamedSink>>& sinks) {
    size_t num_told = 0;
    for (const auto& sink : sinks) num_told += sink->seen.tokens.size();
    return static_cast<uint32_t>(num_told);
  }
};

TEST_F(ReplayTest, ALongOneIsCutIntoTicks) {
  AnswerOf("k", 2 * kReplayPerTick + 1);
  const auto reader = Ask("k");
  Advance(1);
  EXPECT_THAT(reader->seen.tokens, SizeIs(kReplayPerTick));
  Advance(1);
  EXPECT_FALSE(reader->seen.ended());
  Advance(1);
  EXPECT_TRUE(reader->seen.result.has_value());
}

// Two readers more than take turns within a tick: each of the keys has as many as it may have.
TEST_F(ReplayTest, ManyTakeTurnsAndAllGetTheirPart) {
  constexpr uint32_t kNumTurns = kReplayPerTick / kReplayMinShare;
  std::vector<std::shared_ptr<NamedSink>> readers;
  for (const char* key : {"a", "b", "c"}) {
    AnswerOf(key, 400);
    for (size_t i = 0; i < limits_.max_readers_per_key; ++i) readers.push_back(Ask(key));
  }
  ASSERT_GT(readers.size(), kNumTurns);
  Advance(1);
  EXPECT_EQ(NumTold(readers), kReplayPerTick);
  Advance(1);
  EXPECT_EQ(NumTold(readers), 2 * kReplayPerTick);
  for (const auto& reader : readers) EXPECT_GE(reader->seen.tokens.size(), kReplayMinShare);
  for (uint32_t told = 2 * kReplayPerTick; told < 400 * readers.size();
       told += kReplayPerTick / 2) {
    Advance(1);
  }
  for (const auto& reader : readers) EXPECT_TRUE(reader->seen.result.has_value());
}

TEST_F(ReplayTest, WhoLagsBehindALiveGenerationComesFirst) {
  const auto live = Ask("live");
  const RequestUid uid = Generation();
  live->seen.buffered = kPauseBytes + 1;
  constexpr uint32_t kLag = kReplayPerTick / 2;
  Say(uid, std::string(kLag, 'x'));
  std::vector<std::shared_ptr<NamedSink>> replays;
  for (const char* key : {"a", "b", "c"}) {
    AnswerOf(key, 400);
    for (size_t i = 0; i < limits_.max_readers_per_key; ++i) replays.push_back(Ask(key));
  }
  Advance(1);
  EXPECT_THAT(live->seen.tokens, IsEmpty()) << "it is paused";
  live->seen.buffered = 0;
  Advance(1);
  EXPECT_THAT(live->seen.tokens, SizeIs(kLag)) << "all it lacked, in one tick";
  EXPECT_EQ(NumTold(replays), kReplayPerTick + kReplayPerTick - kLag);
  Say(uid, "y");
  EXPECT_THAT(live->seen.tokens, SizeIs(kLag + 1)) << "live again";
}

TEST_F(ReplayTest, TokensWithManyAlternativesCountMore) {
  top_.resize(20);
  AnswerOf("k", kReplayPerTick);
  const auto reader = Ask("k");
  Advance(1);
  EXPECT_THAT(reader->seen.tokens, SizeIs(kReplayPerTick / 7 + 1));
}

// As they are kept: a client chooses the request's name, an operator those of workers.
TEST_F(KeyedAnswersTest, NamesCountAmongTheBytes) {
  Ask("k");
  const double short_names = metrics_.idempotency_bytes->value();
  Finish(Generation());
  const double short_result = metrics_.idempotency_bytes->value();
  name_suffix_ = std::string(120, 'n');
  Ask("l");
  EXPECT_GE(metrics_.idempotency_bytes->value() - short_result, short_names + 100);
  const double before = metrics_.idempotency_bytes->value();
  decode_worker_ = std::string(200, 'w');
  Finish(Generation());
  EXPECT_GE(metrics_.idempotency_bytes->value() - before, 200);
  Advance(limits_.keep_us);
  EXPECT_EQ(metrics_.idempotency_bytes->value(), 0);
}

TEST_F(KeyedAnswersTest, OneKeyHasSoManyReadersAndOthersHaveTheirOwn) {
  std::vector<std::shared_ptr<NamedSink>> readers;
  for (size_t i = 0; i < limits_.max_readers_per_key; ++i) readers.push_back(Ask("k"));
  const RequestUid uid = Generation();
  const RequestUid last_of_k = last_;
  const auto refused = Ask("k");
  EXPECT_EQ(refused->error(), ErrorCode::kQueueFull);
  EXPECT_GT(refused->seen.error->retry_after_s, 0u);
  EXPECT_EQ(Ask("other")->error(), std::nullopt);
  EXPECT_TRUE(table_.Leave(last_of_k, now_us_));
  EXPECT_EQ(Ask("k")->error(), std::nullopt) << "a place is free";
  readers.pop_back();
  Say(uid, "ab", true);
  Finish(uid);
  for (const auto& reader : readers) EXPECT_EQ(reader->Text(), "ab");
}

TEST_F(KeyedAnswersTest, ShutdownEndsWhoeverStillReads) {
  Ask("k");
  Say(Generation(), "ab", true);
  Finish(Generation());
  const auto reader = Ask("k");
  table_.Shutdown();
  EXPECT_EQ(reader->error(), ErrorCode::kDraining);
  EXPECT_EQ(table_.num_readers(), 0u);
}

class SmallKeyedAnswersTest : public KeyedAnswersTest {
 protected:
  static KeyedAnswersLimits Small() {
    KeyedAnswersLimits limits;
    limits.max_entries = 3;
    limits.max_readers = 4;
    limits.max_orphans = 2;
    limits.max_bytes = 64 << 10;
    limits.max_answer_bytes = 32 << 10;
    return limits;
  }
  SmallKeyedAnswersTest() : KeyedAnswersTest(Small()) {}
  void Answer(const std::string& key, size_t num_tokens) {
    Ask(key);
    Say(Generation(), std::string(num_tokens, 'x'), true);
    Finish(Generation());
  }
};

TEST_F(SmallKeyedAnswersTest, WhatWasAskedForLongestAgoMakesRoom) {
  for (const char* key : {"a", "b", "c"}) Answer(key, 2);
  const auto again = Ask("a");
  Advance(1);
  ASSERT_TRUE(again->seen.result.has_value());
  Answer("d", 2);
  EXPECT_EQ(Lost(KeyedLoss::kEvicted), 1u);
  EXPECT_EQ(Answers(KeyedState::kFinished), 3);
  EXPECT_THAT(router_.started, SizeIs(4));
  Ask("a");
  Ask("d");
  EXPECT_THAT(router_.started, SizeIs(4)) << "both are known";
  Ask("b");
  EXPECT_THAT(router_.started, SizeIs(5)) << "it was given up";
}

TEST_F(SmallKeyedAnswersTest, BytesAreBoundedToo) {
  Answer("a", 150);
  Answer("b", 150);
  const double each = metrics_.idempotency_bytes->value() / 2;
  ASSERT_LT(each, limits_.max_answer_bytes);
  ASSERT_GT(3 * each, limits_.max_bytes);
  Answer("c", 150);
  EXPECT_EQ(Lost(KeyedLoss::kEvicted), 1u);
  EXPECT_LE(metrics_.idempotency_bytes->value(), limits_.max_bytes);
}

// It runs on for those who read it, and its memory is what they have not read yet.
TEST_F(SmallKeyedAnswersTest, AnAnswerThatIsTooLargeLosesItsKey) {
  const auto first = Ask("k");
  const RequestUid uid = Generation();
  const RequestUid reader = last_;
  const auto second = Ask("k");
  const RequestUid second_uid = last_;
  Say(uid, std::string(1000, 'x'));
  EXPECT_EQ(Lost(KeyedLoss::kTooLarge), 1u);
  const auto anew = Ask("k", 2);
  EXPECT_EQ(anew->error(), std::nullopt);
  EXPECT_THAT(router_.started, SizeIs(2));
  Advance(1);
  Advance(1);
  EXPECT_THAT(second->seen.tokens, SizeIs(1000)) << "who reads it gets all of it";
  EXPECT_LT(metrics_.idempotency_bytes->value(), 4096) << "all of it has been read";
  table_.Leave(reader, now_us_);
  Say(uid, "yz");
  EXPECT_EQ(second->Text().substr(1000), "yz");
  table_.Leave(second_uid, now_us_);
  EXPECT_THAT(router_.stopped, ElementsAre(uid)) << "no retry can find it: no grace";
  EXPECT_EQ(first->error(), ErrorCode::kCancelled);
}

TEST_F(SmallKeyedAnswersTest, AnOrphanThatIsTooLargeEndsWithItsGrace) {
  Ask("k");
  const RequestUid uid = Generation();
  const RequestUid reader = last_;
  table_.Leave(reader, now_us_);
  Say(uid, std::string(1000, 'x'));
  EXPECT_EQ(Lost(KeyedLoss::kTooLarge), 1u);
  EXPECT_LT(metrics_.idempotency_bytes->value(), 4096 + limits_.max_answer_bytes);
  Advance(limits_.grace_us);
  EXPECT_THAT(router_.stopped, ElementsAre(uid));
  Ask("k");
  const RequestUid other = Generation();
  table_.Leave(last_, now_us_);
  Say(other, std::string(1000, 'x'), true);
  Finish(other);
  Advance(1);
  EXPECT_EQ(metrics_.idempotency_bytes->value(), 0) << "nobody can ask for it";
}

TEST_F(SmallKeyedAnswersTest, OneOrphanTooManyEndsTheOldest) {
  std::vector<RequestUid> uids;
  for (const char* key : {"a", "b", "c"}) {
    Ask(key);
    uids.push_back(Generation());
    table_.Leave(last_, now_us_);
    Advance(1);
  }
  EXPECT_THAT(router_.stopped, ElementsAre(uids[0]));
  EXPECT_EQ(Lost(KeyedLoss::kAbandoned), 1u);
  EXPECT_EQ(Answers(KeyedState::kOrphaned), 2);
}

TEST_F(SmallKeyedAnswersTest, OneReaderTooManyIsRefused) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Ask("k")->error(), std::nullopt);
  const auto fifth = Ask("k");
  EXPECT_EQ(fifth->error(), ErrorCode::kQueueFull);
  EXPECT_GT(fifth->seen.error->retry_after_s, 0u);
  EXPECT_THAT(fifth->names, IsEmpty());
}

}  // namespace
}  // namespace baton::router
