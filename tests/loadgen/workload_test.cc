#include "src/loadgen/workload.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/loadgen/stream_answer.h"
#include "tests/test_seed.h"

namespace baton::loadgen {
namespace {

using testing::HasSubstr;

TraceRow Row(uint32_t input, std::vector<uint32_t> ids) {
  TraceRow row;
  row.num_input = input;
  row.num_output = 9;
  row.block_ids = std::move(ids);
  return row;
}

TEST(WorkloadTest, TokenIdsHaveExactlyTheDeclaredLength) {
  for (const uint64_t seed : TestSeeds(3)) {
    SCOPED_TRACE(seed);
    WorkloadSpec spec;
    spec.api = StreamApi::kCompletions;
    spec.seed = seed;
    spec.input = *ParseLength("--input", "uniform:1:300");
    spec.shared_prefix = 40;
    spec.token_ids = {1000, 1999};
    const Workload workload(spec);
    for (uint64_t s = 0; s < 50; ++s) {
      const PlannedTurn turn = workload.Build(s, 0, {});
      ASSERT_EQ(turn.request.token_ids.size(), turn.want_input);
      ASSERT_GT(turn.want_input, 40u);
      for (const uint32_t id : turn.request.token_ids) ASSERT_TRUE(id >= 1000 && id <= 1999);
      ASSERT_EQ(workload.Build(s, 0, {}).request.token_ids, turn.request.token_ids);
      const auto first = workload.Build(0, 0, {}).request.token_ids;
      ASSERT_TRUE(std::equal(first.begin(), first.begin() + 40, turn.request.token_ids.begin()));
    }
  }
}

TEST(WorkloadTest, OtherTextSeedsAskOtherWordsOfTheSameLengths) {
  WorkloadSpec spec;
  spec.input = {.kind = LengthKind::kUniform, .low = 5, .max = 500};
  spec.output = {.kind = LengthKind::kUniform, .low = 5, .max = 500};
  spec.shared_prefix = 64;
  const Workload one(spec);
  spec.text_seed = 2;
  const Workload other(spec);
  for (uint64_t session = 0; session < 20; ++session) {
    const PlannedTurn a = one.Build(session, 0, {}), b = other.Build(session, 0, {});
    EXPECT_EQ(a.want_output, b.want_output);
    ASSERT_EQ(a.request.messages.size(), 2u);
    for (size_t m = 0; m < 2; ++m) {
      const std::string& text_a = a.request.messages[m].content;
      const std::string& text_b = b.request.messages[m].content;
      EXPECT_NE(text_a.substr(0, 60), text_b.substr(0, 60));
      EXPECT_EQ(std::count(text_a.begin(), text_a.end(), ' '),
                std::count(text_b.begin(), text_b.end(), ' '));
    }
  }
}

TEST(WorkloadTest, TraceRowsShareExactlyTheBlocksTheirIdsShare) {
  for (const double scale : {1.0, 0.1}) {
    SCOPED_TRACE(scale);
    std::vector<TraceRow> rows = {Row(1300, {0, 7, 8}), Row(1200, {0, 7, 9}), Row(1200, {5, 7, 9})};
    RandomDraws draws(1);
    ScaleTrace({.length = scale}, draws, rows);
    WorkloadSpec spec;
    spec.api = StreamApi::kCompletions;
    spec.token_ids = {0, 40000};
    spec.trace = rows;
    spec.trace_length = scale;
    const Workload workload(spec);
    const auto a = workload.Build(0, 0, {}).request.token_ids;
    const auto b = workload.Build(1, 0, {}).request.token_ids;
    const auto c = workload.Build(2, 0, {}).request.token_ids;
    ASSERT_EQ(a.size(), rows[0].num_input);
    ASSERT_EQ(b.size(), rows[1].num_input);
    const auto shared = [](const auto& x, const auto& y) {
      return std::mismatch(x.begin(),
                           x.begin() + static_cast<ptrdiff_t>(std::min(x.size(), y.size())),
                           y.begin())
                 .first -
             x.begin();
    };
    EXPECT_EQ(shared(a, b), static_cast<ptrdiff_t>(1024 * scale));
    EXPECT_EQ(shared(a, c), 0);
    EXPECT_EQ(workload.Build(0, 0, {}).want_output, rows[0].num_output);
  }
}

TEST(WorkloadTest, PrefixGroupsShareAmongThemselvesOnly) {
  WorkloadSpec spec;
  spec.shared_prefix = 20;
  spec.prefix_groups = 2;
  const Workload workload(spec);
  const auto system = [&](uint64_t session) {
    return workload.Build(session, 0, {}).request.messages.at(0).content;
  };
  EXPECT_EQ(system(0), system(2));
  EXPECT_NE(system(0), system(1));
  const auto user = [&](uint64_t session, uint32_t turn) {
    return workload.Build(session, turn, {}).request.messages.back().content;
  };
  EXPECT_NE(user(0, 0), user(2, 0));
  EXPECT_NE(user(0, 0), user(0, 1));
}

TEST(WorkloadTest, GoldenPromptsTakeEveryNthSession) {
  WorkloadSpec spec;
  spec.num_turns = 4;
  spec.golden = {{"a", "x", 3}, {"b", "y", 4}};
  spec.golden_every = 5;
  const Workload workload(spec);
  EXPECT_EQ(workload.Build(4, 0, {}).golden_idx, 0u);
  EXPECT_EQ(workload.Build(9, 0, {}).golden_idx, 1u);
  EXPECT_EQ(workload.Build(14, 0, {}).golden_idx, 0u);
  EXPECT_EQ(workload.Build(5, 0, {}).golden_idx, std::nullopt);
  EXPECT_EQ(workload.NumTurns(4), 1u);
  EXPECT_EQ(workload.NumTurns(5), 4u);
  EXPECT_FALSE(workload.Build(4, 0, {}).request.ignore_eos);
}

TEST(GoldenFileTest, ABadLineIsNamedByItsNumber) {
  const std::string good = "{\"prompt\":\"p\",\"max_tokens\":2,\"text\":\"t\"}\n";
  EXPECT_EQ(ParseGolden(good + good, "g")->size(), 2u);
  for (const std::string bad : {"x", "{}", "{\"prompt\":\"p\",\"max_tokens\":0,\"text\":\"t\"}",
                                "{\"prompt\":\"p\",\"max_tokens\":-1,\"text\":\"t\"}", "[]",
                                "{\"prompt\":\"p\",\"max_tokens\":4294967296,\"text\":\"t\"}"}) {
    EXPECT_THAT(std::string(ParseGolden(good + bad + "\n" + good, "g").status().message()),
                HasSubstr("g line 2"))
        << bad;
  }
  EXPECT_THAT(std::string(ParseGolden("", "g").status().message()), HasSubstr("no golden prompt"));
}

TEST(ChunkEventTest, ReadsWhatMattersWhereverItStands) {
  ChunkEvent event;
  AnswerFacts facts;
  ASSERT_TRUE(ReadChunkEvent(
      R"({"id":{"text":"no"},"choices":[{"delta":{"content":"a","reasoning_content":"b"},
          "logprobs":{"content":[{"token":"no"}]},"finish_reason":"stop"}],"content":"no",
          "usage":{"completion_tokens":5,"prompt_tokens":3,
          "prompt_tokens_details":{"cached_tokens":2}}})",
      event, facts));
  EXPECT_EQ(event.text, "ab");
  EXPECT_EQ(facts.completion_tokens, 5u);
  EXPECT_EQ(facts.prompt_tokens, 3u);
  EXPECT_EQ(facts.cached_tokens, 2u);
  EXPECT_FALSE(facts.stages.has_value());
  // Thoughts under vLLM's name, and under both.
  for (const char* delta : {R"("reasoning":"b")", R"("reasoning_content":"b","reasoning":"b")"}) {
    ChunkEvent thought;
    const std::string chunk = std::string(R"({"choices":[{"delta":{)") + delta + "}}]}";
    ASSERT_TRUE(ReadChunkEvent(chunk, thought, facts));
    EXPECT_EQ(thought.text, "b") << delta;
  }
  ChunkEvent completion;
  ASSERT_TRUE(ReadChunkEvent(R"({"choices":[{"text":" x","index":0}],"timings":{"queue_ms":2}})",
                             completion, facts));
  EXPECT_EQ(completion.text, " x");
  EXPECT_EQ(facts.stages->queue_ms, 2.0);
}

TEST(ChunkEventTest, ErrorsInEitherShapeAndNoJsonAreTold) {
  ChunkEvent text, object, null;
  AnswerFacts facts;
  ASSERT_TRUE(ReadChunkEvent(R"({"error":"late"})", text, facts));
  EXPECT_TRUE(text.failed && text.error == "late");
  ASSERT_TRUE(ReadChunkEvent(R"({"error":{"code":5,"message":"gone"}})", object, facts));
  EXPECT_TRUE(object.failed && object.error == "gone");
  ASSERT_TRUE(ReadChunkEvent(R"({"error":null,"choices":[]})", null, facts));
  EXPECT_FALSE(null.failed);
  for (const char* bad : {"", "[]", "3", "{\"a\":", "{} x", "\"text\""}) {
    ChunkEvent event;
    EXPECT_FALSE(ReadChunkEvent(bad, event, facts)) << bad;
  }
}

TEST(ChunkEventTest, DeepNestingIsReadWithoutHarm) {
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "{\"choices\":";
  deep += "\"x\"" + std::string(200, '}');
  ChunkEvent event;
  AnswerFacts facts;
  EXPECT_TRUE(ReadChunkEvent(deep, event, facts));
  EXPECT_EQ(event.text, "");
}

}  // namespace
}  // namespace baton::loadgen
