// Models whose sequences have a fixed state, in the prefix cache: a prompt goes on from a
// checkpoint with the bits of one that is computed whole, and a state that holds no number ends its
// own request alone.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/model/state_map.h"
#include "tests/engine/live_requests.h"

namespace baton::engine {

using kv::LocalHub;
using kv::TransportKind;
using model::GgufFile;
using model::GoldenPath;

namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::MatchesRegex;

constexpr uint32_t kContext = 512;
constexpr uint32_t kBlock = 16;
constexpr uint32_t kBlocks = 4096;  // half of them have room for all checkpoints of a test
constexpr TokenId kPoison = 99;     // in no prompt of MakeRequest

// The model, but a state becomes no number behind the step that computed the token kPoison.
class PoisonedModel final : public model::ForwardModel {
 public:
  PoisonedModel(model::Model* inner, const std::atomic<bool>* is_on)
      : inner_(inner), is_on_(is_on) {}

  uint32_t vocab_size() const override { return inner_->vocab_size(); }
  uint32_t max_rows() const override { return inner_->max_rows(); }
  uint32_t max_context() const override { return inner_->max_context(); }
  uint32_t hidden_size() const override { return inner_->hidden_size(); }
  std::optional<uint32_t> BrokenStateLayer(std::span<const uint32_t> state,
                                           const kv::KvView& kv) const override {
    return inner_->BrokenStateLayer(state, kv);
  }
  Status Forward(const model::ModelBatch& batch, const kv::KvView& kv, model::LayerHook* hook,
                 std::span<float> logits) override {
    BATON_RETURN_IF_ERROR(inner_->Forward(batch, kv, hook, logits));
    for (const kernels::AttentionSpan& span : batch.spans) {
      const auto tokens = batch.token_ids.subspan(span.first_row, span.num_rows);
      const bool is_poisoned = std::find(tokens.begin(), tokens.end(), kPoison) != tokens.end();
      if (!is_poisoned || !is_on_->load()) continue;
      const float bad = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(kv.Piece(span.kv.state.front(), 0, 0, 0), &bad, sizeof(bad));
    }
    return OkStatus();
  }

 private:
  model::Model* const inner_;
  const std::atomic<bool>* const is_on_;
};

// How the inputs of a convolution that two ranks divide are put together again. Each rank has its
// part of q, of k and of v.
enum class Joining { kByGroup, kAsOne };

// The model, but before the first step behind a prompt of so many tokens the inputs of the
// convolutions in the state are cut into the parts of two ranks and joined. As one, rank after
// rank, is wrong: q, k and v are groups of their own.
class RejoiningModel final : public model::ForwardModel {
 public:
  RejoiningModel(model::Model* inner, Joining joining, uint32_t num_prompt_tokens)
      : inner_(inner), joining_(joining), num_prompt_tokens_(num_prompt_tokens) {}

  uint32_t vocab_size() const override { return inner_->vocab_size(); }
  uint32_t max_rows() const override { return inner_->max_rows(); }
  uint32_t max_context() const override { return inner_->max_context(); }
  uint32_t hidden_size() const override { return inner_->hidden_size(); }
  Status Forward(const model::ModelBatch& batch, const kv::KvView& kv, model::LayerHook* hook,
                 std::span<float> logits) override {
    for (const kernels::AttentionSpan& span : batch.spans) {
      if (span.first_pos == num_prompt_tokens_) Rejoin(span.kv.state, kv);
    }
    return inner_->Forward(batch, kv, hook, logits);
  }

 private:
  void Rejoin(std::span<const uint32_t> blocks, const kv::KvView& kv) const {
    const model::ModelConfig& config = inner_->config();
    const kernels::DeltaShape& shape = config.delta;
    const model::StateMap map = model::StateMapOf(config);
    const size_t slice_bytes = kv.layout->SliceBytes();
    for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
      if (!config.IsDelta(layer)) continue;
      const model::StatePlace place = map.places[layer];
      const auto input_at = [&](uint32_t token, uint32_t channel) {
        const size_t at = place.offset + shape.matrix_bytes() +
                          (size_t{token} * shape.num_channels() + channel) * sizeof(float);
        return kv.Piece(blocks[at / slice_bytes], place.slice, 0, 0) + at % slice_bytes;
      };
      for (uint32_t token = 0; token + 1 < shape.num_taps; ++token) {
        std::vector<float> joined;
        for (const uint32_t channel : ChannelsInOrder(shape)) {
          std::memcpy(&joined.emplace_back(), input_at(token, channel), sizeof(float));
        }
        for (uint32_t c = 0; c < joined.size(); ++c) {
          std::memcpy(input_at(token, c), &joined[c], sizeof(float));
        }
      }
    }
  }
  std::vector<uint32_t> ChannelsInOrder(const kernels::DeltaShape& shape) const {
    const uint32_t sizes[] = {shape.key_size(), shape.key_size(), shape.value_size()};
    std::vector<uint32_t> order;
    const auto add_part = [&](uint32_t group, uint32_t rank) {
      const uint32_t size = sizes[group] / 2;
      const uint32_t first = std::accumulate(sizes, sizes + group, 0u) + rank * size;
      for (uint32_t i = 0; i < size; ++i) order.push_back(first + i);
    };
    for (uint32_t i = 0; i < 6; ++i) {
      if (joining_ == Joining::kByGroup) add_part(i / 2, i % 2);
      if (joining_ == Joining::kAsOne) add_part(i % 3, i / 3);
    }
    return order;
  }

  model::Model* const inner_;
  const Joining joining_;
  const uint32_t num_prompt_tokens_;
};

class EngineStatesTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto opened = GgufFile::Open(GoldenPath(GetParam()));
    ASSERT_TRUE(opened.ok()) << opened.status();
    file_ = *std::move(opened);
    plain_ = std::make_unique<LiveWorker>(
        *file_, LiveOptions{.max_context = kContext, .incarnation = 1}, &hub_, &wire_);
    vocab_size_ = plain_->model().config().vocab_size;
  }

  // A request that begins with these tokens, `num_new` after them.
  RequestSpec Longer(const std::vector<TokenId>& front, uint32_t num_new, uint32_t max_tokens) {
    RequestSpec spec = MakeRequest(++number_, num_new, max_tokens, vocab_size_);
    spec.tokens.insert(spec.tokens.begin(), front.begin(), front.end());
    spec.num_prompt_tokens = static_cast<uint32_t>(spec.tokens.size());
    return spec;
  }
  static std::vector<TokenId> WithAnswer(const RequestSpec& spec, const Record& record) {
    std::vector<TokenId> tokens = spec.tokens;
    for (const SeenToken& seen : record.Tokens(0)) tokens.push_back(seen.token);
    return tokens;
  }
  Record Plain(const RequestSpec& spec) { return RunAggregated(plain_.get(), {spec})[0]; }
  // One of two workers that hand over by the hub.
  static LiveOptions PairOptions(WorkerRole role, bool prefix_cache = false) {
    return {.role = role,
            .num_blocks = kBlocks,
            .kind = TransportKind::kLocal,
            .max_context = kContext,
            .incarnation = role == WorkerRole::kPrefill ? 2u : 3u,
            .prefix_cache = prefix_cache};
  }

  std::unique_ptr<GgufFile> file_;
  LocalHub hub_{true};
  TableWire wire_;
  std::unique_ptr<LiveWorker> plain_;
  uint32_t vocab_size_ = 0;
  uint64_t number_ = 0;
};

// Tokens up to the last border before its last token: the same prompt finds that checkpoint, and a
// longer one does too.
uint32_t CheckpointOf(const RequestSpec& spec) {
  return (spec.num_prompt_tokens - 1) / kBlock * kBlock;
}

TEST_P(EngineStatesTest, EachTurnOfAChatGoesOnFromTheEndOfThePromptBeforeIt) {
  LiveWorker worker(
      *file_,
      {.num_blocks = kBlocks, .max_context = kContext, .incarnation = 2, .prefix_cache = true},
      &hub_, &wire_);
  std::vector<TokenId> chat;
  uint32_t expected_hit = 0;
  for (int turn = 0; turn < 10; ++turn) {
    SCOPED_TRACE(testing::Message() << "turn " << turn);
    const RequestSpec spec = Longer(chat, 27, 9);
    const Record record = RunAggregated(&worker, {spec})[0];
    ExpectSameBits(record, Plain(spec), spec);
    EXPECT_EQ(record.cached_tokens, expected_hit);
    expected_hit = CheckpointOf(spec);
    chat = WithAnswer(spec, record);
  }
  EXPECT_GT(expected_hit, 300u);
  EXPECT_GT(worker.engine().Snapshot().prefix.checkpoints_kept, 5u);
}

TEST_P(EngineStatesTest, ABranchGoesOnFromACheckpointWithinAPrompt) {
  LiveWorker worker(*file_,
                    {.num_blocks = kBlocks,
                     .max_context = kContext,
                     .incarnation = 2,
                     .prefix_cache = true,
                     .checkpoint_tokens = 4 * kBlock},
                    &hub_, &wire_);
  const RequestSpec first = Longer({}, 300, 3);
  ExpectSameBits(RunAggregated(&worker, {first})[0], Plain(first), first);
  for (const uint32_t cut : {40u, 64u, 127u, 128u, 200u, 299u}) {
    SCOPED_TRACE(testing::Message() << "cut at " << cut);
    const std::vector<TokenId> front(first.tokens.begin(), first.tokens.begin() + cut);
    const RequestSpec spec = Longer(front, 21, 7);
    const Record record = RunAggregated(&worker, {spec})[0];
    ExpectSameBits(record, Plain(spec), spec);
    EXPECT_EQ(record.cached_tokens, cut == 299 ? CheckpointOf(first) : cut / 64 * 64);
  }
  // In a batch, too, and of answers: their tokens pass multiples as they are decoded.
  std::vector<RequestSpec> batch;
  for (const uint32_t cut : {70u, 150u, 280u}) {
    const std::vector<TokenId> front(first.tokens.begin(), first.tokens.begin() + cut);
    batch.push_back(Longer(front, 30, 70));
  }
  const std::vector<Record> records = RunAggregated(&worker, batch);
  for (size_t i = 0; i < batch.size(); ++i) {
    ExpectSameBits(records[i], Plain(batch[i]), batch[i]);
    EXPECT_GT(records[i].cached_tokens, 0u);
  }
}

// Two turns of each session, the second one after the first ones of others.
TEST_P(EngineStatesTest, CheckpointsOfAThousandSessionsStayWithinTheirBudget) {
  constexpr uint32_t kSessions = 1000;
  constexpr uint32_t kAtOnce = 8;
  constexpr uint32_t kPool = 2048;
  LiveWorker worker(
      *file_,
      {.num_blocks = kPool, .max_context = kContext, .incarnation = 2, .prefix_cache = true}, &hub_,
      &wire_);
  const uint32_t state_blocks = worker.model().layout().state_blocks;
  const uint64_t budget = kPool / 2 / state_blocks;  // limits::kCheckpointShare
  uint64_t most = 0, num_found = 0;
  std::vector<RequestSpec> begun;
  for (uint32_t first = 0; first <= kSessions; first += kAtOnce) {
    std::vector<RequestSpec> specs = std::exchange(begun, {});
    const size_t num_second = specs.size();
    for (uint32_t i = 0; first < kSessions && i < kAtOnce; ++i) specs.push_back(Longer({}, 37, 3));
    const std::vector<Record> records = RunAggregated(&worker, specs);
    for (size_t i = 0; i < num_second; ++i) num_found += records[i].cached_tokens > 0 ? 1 : 0;
    for (size_t i = num_second; i < specs.size(); ++i) {
      begun.push_back(Longer(WithAnswer(specs[i], records[i]), 19, 3));
    }
    ExpectSameBits(records[0], Plain(specs[0]), specs[0]);
    const kv::PrefixStats stats = worker.engine().Snapshot().prefix;
    most = std::max(most, stats.checkpoints_kept - stats.checkpoints_dropped);
    ASSERT_LE(most, budget) << "after " << first << " sessions";
  }
  EXPECT_EQ(most, budget) << "it was needed";
  EXPECT_GT(worker.engine().Snapshot().prefix.checkpoints_dropped, kSessions);
  EXPECT_GT(num_found, kSessions * 9 / 10) << "second turns that went on from a state";
  std::printf("%u sessions: %llu checkpoints of %u blocks at most, %llu second turns found one\n",
              kSessions, static_cast<unsigned long long>(most), state_blocks,
              static_cast<unsigned long long>(num_found));
}

TEST_P(EngineStatesTest, APrefillWorkerKeepsStatesAndSendsThemOn) {
  LiveWorker p(*file_, PairOptions(WorkerRole::kPrefill, true), &hub_, &wire_);
  LiveWorker d(*file_, PairOptions(WorkerRole::kDecode, true), &hub_, &wire_);
  p.Connect(d);
  std::vector<TokenId> chat;
  uint32_t expected_hit = 0;
  const size_t block_bytes = p.model().layout().BlockBytes();
  for (int turn = 0; turn < 6; ++turn) {
    SCOPED_TRACE(testing::Message() << "turn " << turn);
    const RequestSpec spec = Longer(chat, 37, 20);
    const Record record = RunPair(&p, &d, {spec})[0];
    ExpectSameBits(record, Plain(spec), spec);
    EXPECT_EQ(p.recorder().Of(spec.key).cached_tokens, expected_hit);
    // The decode worker has the KV of the turns before; the state crosses each time.
    const size_t num_held = turn == 0 ? 0 : (chat.size() - 1) / kBlock;
    const size_t num_all = p.model().layout().BlocksOfSequence(spec.num_prompt_tokens);
    EXPECT_EQ(record.kv_bytes, (num_all - num_held) * block_bytes);
    expected_hit = CheckpointOf(spec);
    chat = WithAnswer(spec, record);
  }
  EXPECT_EQ(d.engine().Snapshot().computed_tokens, 0u);
  EXPECT_EQ(d.engine().Snapshot().chain_mismatches, 0u);
}

// A fault that other servers have shipped. The decode worker plants it in what it received.
TEST_P(EngineStatesTest, ConvolutionsWhoseGroupsAreJoinedAsOneGiveOtherBits) {
  const RequestSpec spec = [&] {
    RequestSpec made = Longer({}, 75, 12);
    made.num_choices = 1;
    return made;
  }();
  const Record plain = Plain(spec);
  for (const Joining joining : {Joining::kByGroup, Joining::kAsOne}) {
    LiveWorker p(*file_, PairOptions(WorkerRole::kPrefill), &hub_, &wire_);
    LiveOptions decode = PairOptions(WorkerRole::kDecode);
    decode.wrap = [&](model::Model* inner) {
      return std::make_unique<RejoiningModel>(inner, joining, spec.num_prompt_tokens);
    };
    LiveWorker d(*file_, decode, &hub_, &wire_);
    p.Connect(d);
    const Record record = RunPair(&p, &d, {spec})[0];
    ASSERT_EQ(record.Tokens(0).size(), plain.Tokens(0).size());
    EXPECT_EQ(record.Tokens(0)[0], plain.Tokens(0)[0]) << "the prefill worker's";
    if (joining == Joining::kByGroup) {
      ExpectSameBits(record, plain, spec);
    } else {
      EXPECT_NE(record.Tokens(0)[1], plain.Tokens(0)[1]) << "the first one after the state";
    }
  }
}

TEST_P(EngineStatesTest, ADecodeWorkerGoesOnFromTheFirstBorderAfterAPromptThatItWasGiven) {
  LiveWorker p(*file_, PairOptions(WorkerRole::kPrefill), &hub_, &wire_);
  LiveWorker d(*file_, PairOptions(WorkerRole::kDecode, true), &hub_, &wire_);
  p.Connect(d);
  for (const uint32_t num_tokens : {75u, 80u}) {
    SCOPED_TRACE(testing::Message() << num_tokens << " tokens");
    const uint32_t border = (num_tokens / kBlock + 1) * kBlock;
    const RequestSpec first = Longer({}, num_tokens, 40);
    const Record record = RunPair(&p, &d, {first})[0];
    ExpectSameBits(record, Plain(first), first);

    // A turn after the answer, and the answer itself from its middle on.
    const RequestSpec next = Longer(WithAnswer(first, record), 21, 15);
    const Record own = RunAggregated(&d, {next})[0];
    ExpectSameBits(own, Plain(next), next);
    EXPECT_EQ(own.cached_tokens, border);
    const std::vector<SeenToken> answer = record.Tokens(0);
    RequestSpec resumed = first;
    resumed.key.uid.hi += 1'000;
    for (size_t i = 0; i < 20; ++i) resumed.tokens.push_back(answer[i].token);
    const Record rest = RunAggregated(&d, {resumed})[0];
    EXPECT_EQ(rest.Tokens(0), std::vector<SeenToken>(answer.begin() + 20, answer.end()));
    EXPECT_EQ(rest.cached_tokens, border);
  }
}

TEST_P(EngineStatesTest, AStateThatHoldsNoNumberEndsItsOwnRequestAndIsNotKept) {
  std::atomic<bool> is_on = true;
  LiveWorker worker(
      *file_,
      {.num_blocks = kBlocks,
       .max_context = kContext,
       .incarnation = 2,
       .prefix_cache = true,
       .checkpoint_tokens = 4 * kBlock,
       .wrap = [&](model::Model* inner) { return std::make_unique<PoisonedModel>(inner, &is_on); }},
      &hub_, &wire_);
  // The state breaks while it is decoded, and in the middle of a prompt.
  RequestSpec decodes = Longer({}, 40, 30);
  decodes.tokens[35] = kPoison;
  RequestSpec computes = Longer({}, 300, 5);
  computes.tokens[70] = kPoison;
  const RequestSpec beside = Longer({}, 250, 60);
  for (const RequestSpec& spec : {beside, decodes, computes}) {
    EXPECT_TRUE(worker.engine().TryStart(spec).ok());
  }
  for (const RequestSpec& spec : {beside, decodes, computes}) {
    EXPECT_TRUE(worker.recorder().WaitEnded(spec.key));
  }
  ASSERT_TRUE(worker.WaitIdle());
  const auto end_of = [&](const RequestSpec& spec) { return worker.recorder().Of(spec.key); };
  EXPECT_EQ(end_of(decodes).last(), RequestState::kFailed);
  EXPECT_EQ(end_of(decodes).failed_part, FailedPart::kComputation);
  EXPECT_THAT(std::string(end_of(decodes).status.message()),
              HasSubstr("the model's logits hold no number, nor does the state of its layer 0"));
  EXPECT_EQ(end_of(computes).last(), RequestState::kFailed);
  // A step takes as many tokens as its time allows: the next copy is that of 128 or of 192 tokens.
  EXPECT_THAT(std::string(end_of(computes).status.message()),
              MatchesRegex("the model's state after (128|192) tokens holds no number"));
  EXPECT_EQ(end_of(beside).last(), RequestState::kFinished);
  ExpectSameBits(end_of(beside), Plain(beside), beside);

  // The checkpoints that were kept of them are whole.
  is_on = false;
  for (const RequestSpec& failed : {decodes, computes}) {
    RequestSpec again = failed;
    for (const bool is_second : {true, false}) {
      again.key.uid.lo += 1'000;
      again.key.uid.hi += 1'000;
      const Record record = RunAggregated(&worker, {again})[0];
      ExpectSameBits(record, Plain(again), again);
      const bool is_short = failed.tokens.size() == 40;
      const uint32_t most = is_second && !is_short ? 128 : CheckpointOf(again);
      EXPECT_THAT(record.cached_tokens, AllOf(Ge(is_short ? 32u : 64u), Le(most)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, EngineStatesTest,
                         ::testing::Values("tiny_qwen35.gguf", "tiny_qwen35_q8_0.gguf",
                                           "tiny_qwen35moe.gguf", "tiny_nemotron_h.gguf"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('.'));
                         });

}  // namespace
}  // namespace baton::engine
