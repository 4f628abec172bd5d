// Models with gated delta nets on an accelerator, here the runner: the blocks of a sequence and of
// its state are what the sequence goes on from, whoever computed them and in which steps.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/model/on_device.h"
#include "tests/model/told_slices.h"
#include "tests/test_seed.h"

namespace baton::model {

using kernels::AttentionSpan;
using kernels::RowSampling;
using kv::KvDtype;
using kv::KvDtypeName;

namespace {

using ::testing::HasSubstr;

struct Case {
  const char* name;
  KvDtype kv_dtype = KvDtype::kBf16;
};

class DeviceDeltaTest : public ::testing::TestWithParam<Case> {
 protected:
  static OnDevice Load() { return OnDevice(Tiny(GetParam().name), 16, 96, GetParam().kv_dtype); }
};

TEST_P(DeviceDeltaTest, BlocksAloneAreWhatASequenceGoesOnFrom) {
  EXPECT_GT(Load().fixture.model().layout().state_blocks, 0u);
  ExpectToGoOnFromBlocksAlone([] { return Load(); });
}

TEST_P(DeviceDeltaTest, EachSliceIsAnnouncedOnceWhenItIsFinal) {
  OnDevice on = Load();
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  ToldSlices slices(on.fixture, 20);
  ASSERT_TRUE(on.fixture.Run({{0, 0, RandomTokens(20, 3)}}, false, &slices).ok());
  slices.ExpectAllFinal();
}

std::vector<std::byte> BytesOfBlocks(ModelFixture& fixture, std::span<const uint32_t> blocks) {
  std::vector<std::byte> out;
  for (const uint32_t block : blocks) {
    const std::byte* begin = fixture.view().Piece(block, 0, 0, 0);
    out.insert(out.end(), begin, begin + fixture.model().layout().BlockBytes());
  }
  return out;
}

// Two sequences with a copy each and one without between them, as one batch from position 0.
class CopyingBatch {
 public:
  CopyingBatch(ModelFixture& fixture, std::span<const TokenId> text) : fixture_(fixture) {
    for (uint32_t s = 0; s < 5; ++s) (void)fixture.StateBlocks(s);  // the last two for copies
    const uint32_t lengths[] = {20, 11, 33};
    for (uint32_t s = 0; s < 3; ++s) {
      const auto first = static_cast<uint32_t>(tokens.size());
      const std::span<const TokenId> own = text.subspan(s, lengths[s]);
      chunks.push_back({s, 0, own});
      tokens.insert(tokens.end(), own.begin(), own.end());
      (void)fixture.Blocks(s, 40);
      spans.push_back({{}, first, lengths[s], 0});
      logit_rows.push_back(first + lengths[s] - 1);
    }
    for (uint32_t s = 0; s < 3; ++s) {
      spans[s].kv = {fixture.Blocks(s, lengths[s]), fixture.StateBlocks(s)};
    }
    copies = {{.span = 0, .num_rows = 20, .blocks = fixture.StateBlocks(3)},
              {.span = 2, .num_rows = 16, .blocks = fixture.StateBlocks(4)}};
  }

  absl::StatusOr<std::vector<float>> Run() {
    std::vector<float> logits(logit_rows.size() * fixture_.vocab());
    const ModelBatch batch{
        .token_ids = tokens, .spans = spans, .logit_rows = logit_rows, .state_copies = copies};
    BATON_RETURN_IF_ERROR(fixture_.model().Forward(batch, fixture_.view(), nullptr, logits));
    return logits;
  }

  std::vector<Chunk> chunks;
  std::vector<TokenId> tokens;
  std::vector<AttentionSpan> spans;
  std::vector<uint32_t> logit_rows;
  std::vector<StateCopy> copies;

 private:
  ModelFixture& fixture_;
};

TEST_P(DeviceDeltaTest, ACopyWithinAStepIsTheStateThatAStepOfItsOwnLeaves) {
  OnDevice on = Load();
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const std::vector<TokenId> text = RandomTokens(50, TestSeed());
  CopyingBatch batch(on.fixture, text);
  const auto expected = on.fixture.Run(batch.chunks);
  ASSERT_TRUE(expected.ok()) << expected.status();
  std::vector<std::vector<std::byte>> ends;
  for (uint32_t s = 0; s < 3; ++s) ends.push_back(on.fixture.KvBytes(s, 40));
  for (const bool wants_logits : {true, false}) {
    if (!wants_logits) batch.logit_rows.clear();
    const auto got = batch.Run();
    ASSERT_TRUE(got.ok()) << got.status();
    if (wants_logits) {
      EXPECT_EQ(*got, *expected);
    }
    for (uint32_t s = 0; s < 3; ++s) EXPECT_EQ(on.fixture.KvBytes(s, 40), ends[s]);
    EXPECT_TRUE(batch.copies[0].has_numbers && batch.copies[1].has_numbers);
    EXPECT_EQ(BytesOfBlocks(on.fixture, batch.copies[0].blocks),
              BytesOfBlocks(on.fixture, on.fixture.StateBlocks(0)));
  }
  const auto copied = BytesOfBlocks(on.fixture, batch.copies[1].blocks);
  ASSERT_TRUE(on.fixture.Run({{2, 0, batch.chunks[2].tokens.first(16)}}).ok());
  EXPECT_EQ(BytesOfBlocks(on.fixture, on.fixture.StateBlocks(2)), copied);
}

// An infinity in one sequence's state is told of that sequence and its copy, and harms nobody else.
TEST_P(DeviceDeltaTest, AStateThatIsNoNumberHarmsNobodyElse) {
  OnDevice on = Load();
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const std::vector<TokenId> text = RandomTokens(50, TestSeed());
  CopyingBatch batch(on.fixture, text);
  const auto expected = batch.Run();
  ASSERT_TRUE(expected.ok()) << expected.status();
  const DeviceModel& model = dynamic_cast<const DeviceModel&>(on.fixture.model());
  const auto broken = [&](uint32_t sequence) {
    return model.BrokenStateLayer(on.fixture.StateBlocks(sequence), on.fixture.view());
  };
  EXPECT_EQ(broken(0), std::nullopt);
  const float bad = std::numeric_limits<float>::infinity();
  std::memcpy(on.fixture.view().Piece(on.fixture.StateBlocks(0)[0], 0, 0, 0) + 8, &bad,
              sizeof(bad));
  EXPECT_EQ(broken(0), 0u);
  EXPECT_EQ(broken(1), std::nullopt);
  batch.spans[0].first_pos = 20;
  batch.spans[0].kv.blocks = on.fixture.Blocks(0, 40);
  batch.copies[0].num_rows = 7;
  const auto got = batch.Run();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_FALSE(batch.copies[0].has_numbers);
  EXPECT_TRUE(batch.copies[1].has_numbers);
  EXPECT_TRUE(std::isnan((*got)[0]));
  const auto vocab = static_cast<std::ptrdiff_t>(on.fixture.vocab());
  EXPECT_TRUE(std::equal(expected->begin() + vocab, expected->end(), got->begin() + vocab));
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceDeltaTest,
                         ::testing::Values(Case{"head64_qwen35"}, Case{"head64_qwen35_q4_0"},
                                           Case{"head64_qwen35", KvDtype::kFp8}),
                         [](const auto& info) {
                           return std::string(info.param.name) + "_" +
                                  std::string(KvDtypeName(info.param.kv_dtype));
                         });

// Rows of q and k are packed in the order of their pairs, as they are in bf16.
TEST(DeviceDeltaWeightsTest, PackedAndInBf16TheyGiveTheSameBits) {
  ExpectEqualPackedAndInBf16("head64_qwen35_q4_0");
}

// A recorded step clears nothing, so a sequence whose state begins is computed by a launched one.
TEST(DeviceDeltaRecordedTest, ASequenceThatBeginsClearsItsState) {
  OnDevice plain(Tiny("head64_qwen35"), 16, 8);
  OnDevice recorded(Tiny("head64_qwen35"), 16, 8);
  ASSERT_TRUE(plain.fixture.status().ok()) << plain.fixture.status();
  ASSERT_TRUE(recorded.fixture.model().Prepare(recorded.fixture.view()).ok());
  EXPECT_GT(dynamic_cast<const DeviceModel&>(recorded.fixture.model()).num_recorded_steps(), 0u);
  const std::vector<TokenId> tokens = RandomTokens(2, 5);
  const std::vector<RowSampling> sampling(2, {.seed = 7, .on_device = 1});
  const std::span<const TokenId> all(tokens);
  for (const std::vector<Chunk>& rows :
       {std::vector<Chunk>{{0, 0, all.first(1)}}, {{0, 1, all.first(1)}, {1, 0, all.last(1)}}}) {
    const std::vector<RowSampling> some(sampling.begin(), sampling.begin() + rows.size());
    const auto expected = plain.fixture.Choose(rows, some);
    const auto got = recorded.fixture.Choose(rows, some);
    ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
    EXPECT_EQ(got->tokens, expected->tokens);
  }
  for (const uint32_t s : {0u, 1u}) {
    EXPECT_EQ(recorded.fixture.KvBytes(s, 2 - s), plain.fixture.KvBytes(s, 2 - s)) << s;
  }
}

// Copies come with their answers: a step that copies is not begun.
TEST(DeviceDeltaBegunTest, AStepThatCopiesAStateIsRefused) {
  OnDevice on(Tiny("head64_qwen35"), 16, 8);
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  (void)on.fixture.StateBlocks(1);
  const TokenId token = 5;
  const AttentionSpan span = {{on.fixture.Blocks(0, 1), on.fixture.StateBlocks(0)}, 0, 1, 0};
  const uint32_t row = 0;
  const RowSampling sampling = {.seed = 7, .on_device = 1};
  TokenId chosen = 0;
  StateCopy copy = {.span = 0, .num_rows = 1, .blocks = on.fixture.StateBlocks(1)};
  const ModelBatch batch{.token_ids = {&token, 1},
                         .spans = {&span, 1},
                         .logit_rows = {&row, 1},
                         .sampling = {&sampling, 1},
                         .tokens = {&chosen, 1},
                         .state_copies = {&copy, 1}};
  const absl::Status status = on.fixture.model().Begin(batch, on.fixture.view());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 copies of states"));
}

TEST(DeviceDeltaLoadTest, WhatADeviceDoesNotServeIsNamed) {
  const auto refusal = [](const std::string& name, uint32_t num_ranks) {
    OnDevice on(Tiny(name), 64, 96, KvDtype::kBf16, num_ranks);
    EXPECT_EQ(on.fixture.status().code(), absl::StatusCode::kUnimplemented);
    return std::string(on.fixture.status().message());
  };
  EXPECT_THAT(refusal("head64_qwen35", 2),
              HasSubstr("--tensor-parallel 2: architecture qwen35: its fixed states are not "
                        "divided among 2 ranks"));
  EXPECT_THAT(refusal("qwen35", 1),
              HasSubstr("heads of 16 x 32 of gated delta nets: the kernels of device simt take 64 "
                        "and 128, of up to 1024 values; use --device cpu"));
  EXPECT_THAT(refusal("qwen35moe", 1),
              HasSubstr("architecture qwen35moe: device simt has no kernel for its gated shared "
                        "expert; use --device cpu"));
  EXPECT_THAT(refusal("nemotron_h", 1), HasSubstr("no kernel for its layers of Mamba-2"));
}

}  // namespace
}  // namespace baton::model
