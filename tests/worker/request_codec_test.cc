// Orders of a router become requests of the engine, or a refusal that names the field.
#include "src/worker/request_codec.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "src/worker/session_service.h"
#include "tests/test_seed.h"

namespace baton::worker {

using kv::TransportKind;
using limits::kMaxGrammarBytes;
using limits::kMaxLogitBiases;
using limits::kMaxStopTokens;
using wire::AnswerGrammar;
using wire::GrammarKind;
using wire::GrammarStart;
using wire::LogitBias;
using wire::SamplingParams;
using namespace engine;  // NOLINT(google-build-using-namespace)
using scheduler::FinishReason;

namespace {

constexpr uint32_t kVocab = 100;
constexpr uint32_t kContext = 32;

SessionLimits Limits(bool prefill) {
  return {.incarnation = Incarnation(7),
          .prefill = prefill,
          .vocab_size = kVocab,
          .max_context = kContext};
}

void FillSpec(v1::RequestSpec* spec) {
  spec->mutable_uid()->set_hi(3);
  spec->mutable_uid()->set_lo(4);
  spec->set_attempt(2);
  for (uint32_t i = 0; i < 5; ++i) spec->add_tokens(10 + i);
  spec->set_num_prompt_tokens(4);
  spec->set_n(1);
  spec->set_deadline_ms(2500);
  spec->set_tenant("default");
  spec->set_priority(-1000);
  v1::SamplingParams* sampling = spec->mutable_sampling();
  sampling->set_temperature(0.5f);
  sampling->set_top_k(7);
  sampling->set_top_p(0.25f);
  sampling->set_min_p(0.125f);
  sampling->set_repetition_penalty(1.5f);
  sampling->set_presence_penalty(-0.5f);
  sampling->set_frequency_penalty(0.75f);
  sampling->set_seed(99);
  sampling->set_max_tokens(20);
  sampling->set_min_tokens(3);
  sampling->set_logprobs(true);
  sampling->set_top_logprobs(4);
  sampling->set_ignore_eos(true);
  sampling->add_stop_token_ids(42);
  (*sampling->mutable_logit_bias())[9] = 1.5f;
  (*sampling->mutable_logit_bias())[3] = -2.0f;
  sampling->mutable_grammar()->set_kind(v1::AnswerGrammar::KIND_REGEX);
  sampling->mutable_grammar()->set_start(v1::AnswerGrammar::START_AFTER_THOUGHTS);
  sampling->mutable_grammar()->set_text("a+");
}

v1::RouterMessage Prefill() {
  v1::RouterMessage message;
  FillSpec(message.mutable_start_prefill()->mutable_spec());
  message.mutable_start_prefill()->mutable_decode()->set_incarnation(11);
  return message;
}
v1::RouterMessage Decode(bool local) {
  v1::RouterMessage message;
  FillSpec(message.mutable_start_decode()->mutable_spec());
  message.mutable_start_decode()->set_local(local);
  if (!local) message.mutable_start_decode()->mutable_prefill()->set_incarnation(12);
  return message;
}

TEST(RequestCodecTest, EveryFieldArrives) {
  RequestSpec spec;
  ASSERT_TRUE(RequestSpecFromProto(Prefill(), Limits(true), &spec).ok());
  EXPECT_EQ(spec.key, (RequestKey{{3, 4}, 2}));
  EXPECT_EQ(spec.kind, RequestKind::kSource);
  EXPECT_EQ(spec.peer, Incarnation(11));
  EXPECT_EQ(spec.tokens, (std::vector<TokenId>{10, 11, 12, 13, 14}));
  EXPECT_EQ(spec.num_prompt_tokens, 4u);
  EXPECT_EQ(spec.num_choices, 1u);
  EXPECT_EQ(spec.sampling.max_tokens, 20u);
  EXPECT_EQ(spec.deadline_us, 2'500'000);
  EXPECT_EQ(spec.tenant, "default");
  EXPECT_EQ(spec.priority, -1000);
  EXPECT_TRUE(spec.sampling.ignore_eos);
  EXPECT_EQ(spec.sampling.stop_token_ids, std::vector<TokenId>{42});
  const SamplingParams& p = spec.sampling;
  EXPECT_EQ(p.temperature, 0.5f);
  EXPECT_EQ(p.top_k, 7u);
  EXPECT_EQ(p.top_p, 0.25f);
  EXPECT_EQ(p.min_p, 0.125f);
  EXPECT_EQ(p.repetition_penalty, 1.5f);
  EXPECT_EQ(p.presence_penalty, -0.5f);
  EXPECT_EQ(p.frequency_penalty, 0.75f);
  EXPECT_EQ(p.seed, 99u);
  EXPECT_EQ(p.min_tokens, 3u);
  EXPECT_TRUE(p.logprobs);
  EXPECT_EQ(p.top_logprobs, 4u);
  ASSERT_EQ(p.logit_bias.size(), 2u);
  EXPECT_EQ(p.logit_bias[0].token, 3) << "in ascending order, whatever a map's order is";
  EXPECT_EQ(p.logit_bias[1].bias, 1.5f);
  ASSERT_FALSE(p.grammar == nullptr);
  EXPECT_EQ(*p.grammar,
            (AnswerGrammar{
                .kind = GrammarKind::kRegex, .start = GrammarStart::kAfterThoughts, .text = "a+"}));
}

TEST(RequestCodecTest, APriorityOutsideItsRangeIsRefused) {
  for (const int32_t priority : {-1001, 1001, INT32_MIN, INT32_MAX}) {
    v1::RouterMessage message = Decode(true);
    message.mutable_start_decode()->mutable_spec()->set_priority(priority);
    RequestSpec spec;
    EXPECT_EQ(RequestSpecFromProto(message, Limits(false), &spec).message(),
              "priority " + std::to_string(priority) + " is outside [-1000, 1000]");
  }
}

TEST(RequestCodecTest, AGrammarOutsideItsRangesIsRefusedByName) {
  const auto refusal = [](auto&& change) {
    v1::RouterMessage message = Prefill();
    change(message.mutable_start_prefill()->mutable_spec()->mutable_sampling()->mutable_grammar());
    RequestSpec spec;
    return std::string(RequestSpecFromProto(message, Limits(true), &spec).message());
  };
  EXPECT_EQ(refusal([](v1::AnswerGrammar* m) { m->set_kind(v1::AnswerGrammar::Kind(8)); }),
            "sampling.grammar.kind 8 is outside [1, 7]");
  EXPECT_EQ(refusal([](v1::AnswerGrammar* m) { m->set_start(v1::AnswerGrammar::Start(-1)); }),
            "sampling.grammar.start 4294967295 is outside [1, 3]");
  EXPECT_EQ(
      refusal([](v1::AnswerGrammar* m) { m->set_text(std::string(kMaxGrammarBytes + 1, 'a')); }),
      "sampling.grammar.text has 1048577 bytes, at most 1048576");
  v1::RouterMessage free = Prefill();
  free.mutable_start_prefill()->mutable_spec()->mutable_sampling()->clear_grammar();
  RequestSpec spec;
  ASSERT_TRUE(RequestSpecFromProto(free, Limits(true), &spec).ok());
  EXPECT_TRUE(spec.sampling.grammar == nullptr);
}

TEST(RequestCodecTest, KindAndPeerFollowTheOrder) {
  RequestSpec dest;
  ASSERT_TRUE(RequestSpecFromProto(Decode(false), Limits(false), &dest).ok());
  EXPECT_EQ(dest.kind, RequestKind::kDest);
  EXPECT_EQ(dest.peer, Incarnation(12));
  RequestSpec local;
  ASSERT_TRUE(RequestSpecFromProto(Decode(true), Limits(false), &local).ok());
  EXPECT_EQ(local.kind, RequestKind::kLocal);
  EXPECT_EQ(local.peer, Incarnation());
  v1::RouterMessage no_replay = Decode(true);
  no_replay.mutable_start_decode()->mutable_spec()->clear_num_prompt_tokens();
  RequestSpec whole;
  ASSERT_TRUE(RequestSpecFromProto(no_replay, Limits(false), &whole).ok());
  EXPECT_EQ(whole.num_prompt_tokens, 5u);
}

TEST(RequestCodecTest, OrdersForTheOtherRoleAreRefused) {
  RequestSpec spec;
  EXPECT_TRUE(RequestSpecFromProto(Prefill(), Limits(false), &spec).ok())
      << "a decode worker that drains is asked for the KV that it holds";
  RequestSpec other;
  EXPECT_EQ(RequestSpecFromProto(Decode(true), Limits(true), &other).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(other.key, (RequestKey{{3, 4}, 2})) << "the refusal can name the request";
}

TEST(RequestCodecTest, AnOrderForAVectorGoesToEitherRole) {
  v1::RouterMessage message;
  FillSpec(message.mutable_start_embedding()->mutable_spec());
  for (const bool is_prefill : {false, true}) {
    RequestSpec spec;
    ASSERT_TRUE(RequestSpecFromProto(message, Limits(is_prefill), &spec).ok());
    EXPECT_EQ(spec.kind, RequestKind::kEmbed);
    EXPECT_EQ(spec.peer, Incarnation());
    EXPECT_EQ(spec.tokens, (std::vector<TokenId>{10, 11, 12, 13, 14}));
  }
  const std::vector<float> vector = {0.6f, -0.0f, 0.8f};
  engine::TokenEvent event;
  event.key = RequestKey{{3, 4}, 2};
  event.embedding = vector;
  v1::TokenEvent out;
  ToProto(event, &out);
  EXPECT_EQ(std::vector<float>(out.embedding().begin(), out.embedding().end()), vector);
}

// A change that makes an order wrong, and the word that its refusal must have.
struct BadOrder {
  const char* word;
  void (*change)(v1::RequestSpec* spec);
};

TEST(RequestCodecTest, WrongFieldsAreNamed) {
  const BadOrder cases[] = {
      {"uid", [](v1::RequestSpec* s) { s->clear_uid(); }},
      {"attempt", [](v1::RequestSpec* s) { s->set_attempt(0); }},
      {"tokens", [](v1::RequestSpec* s) { s->clear_tokens(); }},
      {"tokens", [](v1::RequestSpec* s) { s->mutable_tokens()->Resize(kContext + 1, 1); }},
      {"token 100", [](v1::RequestSpec* s) { s->set_tokens(2, kVocab); }},
      {"token 4294967295", [](v1::RequestSpec* s) { s->set_tokens(2, UINT32_MAX); }},
      {"temperature", [](v1::RequestSpec* s) { s->mutable_sampling()->set_temperature(-1); }},
      {"temperature", [](v1::RequestSpec* s) { s->mutable_sampling()->set_temperature(NAN); }},
      {"top_p", [](v1::RequestSpec* s) { s->mutable_sampling()->set_top_p(1.5f); }},
      {"min_p", [](v1::RequestSpec* s) { s->mutable_sampling()->set_min_p(-0.5f); }},
      {"repetition_penalty",
       [](v1::RequestSpec* s) { s->mutable_sampling()->set_repetition_penalty(0); }},
      {"top_logprobs", [](v1::RequestSpec* s) { s->mutable_sampling()->set_top_logprobs(99); }},
      {"logit_bias",
       [](v1::RequestSpec* s) { (*s->mutable_sampling()->mutable_logit_bias())[kVocab] = 1; }},
      {"logit_bias",
       [](v1::RequestSpec* s) {
         for (uint32_t i = 0; i <= kMaxLogitBiases; ++i) {
           (*s->mutable_sampling()->mutable_logit_bias())[i] = 1;
         }
       }},
      {"stop_token_ids",
       [](v1::RequestSpec* s) {
         s->mutable_sampling()->mutable_stop_token_ids()->Resize(kMaxStopTokens + 1, 1);
       }},
  };
  for (const BadOrder& c : cases) {
    v1::RouterMessage message = Decode(true);
    c.change(message.mutable_start_decode()->mutable_spec());
    RequestSpec spec;
    const Status status = RequestSpecFromProto(message, Limits(false), &spec);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.word;
    EXPECT_NE(status.ToString().find(c.word), std::string::npos) << status << " without " << c.word;
  }
  v1::RouterMessage alone = Decode(false);
  alone.mutable_start_decode()->clear_prefill();
  RequestSpec spec;
  EXPECT_EQ(RequestSpecFromProto(alone, Limits(false), &spec).code(), StatusCode::kInvalidArgument);
  v1::RouterMessage nowhere = Prefill();
  nowhere.mutable_start_prefill()->clear_decode();
  EXPECT_EQ(RequestSpecFromProto(nowhere, Limits(true), &spec).code(),
            StatusCode::kInvalidArgument);
}

// Whatever bytes parse as an order: refused, or every number is in the range that the engine's
// tables are made for.
TEST(RequestCodecTest, HostileOrdersNeverLeaveTheRanges) {
  uint32_t num_taken = 0;
  for (const uint64_t seed : TestSeeds(20)) {
    TestRandom random(seed);
    for (int i = 0; i < 500; ++i) {
      std::string bytes = Decode(random.OneIn(2)).SerializeAsString();
      for (uint32_t hit = random.Between(1, 3); hit > 0; --hit) {
        bytes[random.Below(static_cast<uint32_t>(bytes.size()))] = static_cast<char>(random.Next());
      }
      v1::RouterMessage message;
      if (!message.ParseFromString(bytes) || !message.has_start_decode()) continue;
      RequestSpec spec;
      if (!RequestSpecFromProto(message, Limits(false), &spec).ok()) continue;
      ++num_taken;
      ASSERT_LE(spec.tokens.size(), kContext) << "seed " << seed;
      for (const TokenId token : spec.tokens) ASSERT_LT(static_cast<uint32_t>(token), kVocab);
      for (const TokenId token : spec.sampling.stop_token_ids)
        ASSERT_LT(static_cast<uint32_t>(token), kVocab);
      for (const LogitBias& b : spec.sampling.logit_bias) {
        ASSERT_LT(static_cast<uint32_t>(b.token), kVocab);
      }
      ASSERT_GE(spec.key.attempt, 1u);
    }
  }
  EXPECT_GT(num_taken, 500u);
}

TEST(RequestCodecTest, EventsAndStatesGoOutWhole) {
  const std::vector<TokenLogprob> top = {{5, -0.25f}, {6, -1.5f}};
  TokenEvent event{
      .session = SessionId(1), .key = {{3, 4}, 2}, .choice = 1, .index = 8, .token = 5};
  event.has_logprob = true;
  event.logprob = -0.25f;
  event.top_logprobs = top;
  event.finish = FinishReason::kLength;
  event.step_us = 5'100;
  event.num_proposed = 7;
  event.step_row = 3;
  event.guess_state = wire::GuessState::kNoGain;
  v1::TokenEvent wire_event;
  ToProto(event, &wire_event);
  EXPECT_EQ(wire_event.uid().hi(), 3u);
  EXPECT_EQ(wire_event.uid().lo(), 4u);
  EXPECT_EQ(wire_event.attempt(), 2u);
  EXPECT_EQ(wire_event.choice(), 1u);
  EXPECT_EQ(wire_event.index(), 8u);
  EXPECT_EQ(wire_event.token(), 5u);
  EXPECT_EQ(wire_event.logprob(), -0.25f);
  ASSERT_EQ(wire_event.top_logprobs_size(), 2);
  EXPECT_EQ(wire_event.top_logprobs(1).token(), 6u);
  EXPECT_EQ(wire_event.top_logprobs(1).logprob(), -1.5f);
  EXPECT_EQ(wire_event.finish(), v1::WORKER_FINISH_LENGTH);
  EXPECT_EQ(wire_event.step_us(), 5'100u);
  EXPECT_EQ(wire_event.proposed(), 7u);
  EXPECT_EQ(wire_event.step_row(), 3u);
  EXPECT_EQ(wire_event.guess_state(), v1::GUESS_STATE_NO_GAIN);

  RequestStatus status{.key = {{3, 4}, 2}, .state = RequestState::kFailed};
  status.status = Unavailable("peer \xff is gone");
  status.failed_part = FailedPart::kHandOff;
  status.kv_bytes = 77;
  status.kv_total_bytes = 88;
  status.transport = TransportKind::kTcp;
  status.transfer_us = 2'000'000;
  v1::RequestStatus wire_status;
  ToProto(status, &wire_status);
  EXPECT_EQ(wire_status.state(), v1::REQUEST_STATE_FAILED);
  EXPECT_EQ(wire_status.code(), 14u);
  EXPECT_EQ(wire_status.message(), "peer ? is gone") << "anything else could not be parsed";
  EXPECT_EQ(wire_status.kv_bytes(), 77u);
  EXPECT_EQ(wire_status.kv_total_bytes(), 88u);
  EXPECT_EQ(wire_status.transport(), v1::TRANSPORT_KIND_TCP);
  EXPECT_EQ(wire_status.transfer_seconds(), 2.0f);
  EXPECT_EQ(wire_status.failed_part(), v1::FAILED_PART_HAND_OFF);
}

TEST(RequestCodecTest, EveryStateHasItsOwnNumber) {
  std::set<int> numbers;
  for (size_t i = 1; i <= static_cast<size_t>(RequestState::kCancelled); ++i) {
    v1::RequestStatus out;
    ToProto(RequestStatus{.key = {{1, 1}, 1}, .state = static_cast<RequestState>(i)}, &out);
    EXPECT_NE(out.state(), v1::REQUEST_STATE_UNSPECIFIED) << i;
    EXPECT_TRUE(numbers.insert(out.state()).second) << i;
  }
}

}  // namespace
}  // namespace baton::worker
