// The real model: a prompt computed by one engine and decoded by another gives the bits (token ids
// and log-probabilities) of one engine doing both, over every transport, while others run.
#include "gtest/gtest.h"

#include "tests/engine/live_requests.h"

namespace baton::engine {

using kv::KvDtype;
using kv::LocalHub;
using kv::TransportKind;
using kv::TransportKindName;
using scheduler::FinishReason;

namespace {

constexpr uint32_t kBlock = 16;

// Opens the demo model, which scripts/test.sh has fetched.
#define BATON_OPEN_DEMO(file)                               \
  const std::string path = ::baton::model::DemoModelPath(); \
  auto opened = ::baton::model::GgufFile::Open(path);       \
  ASSERT_TRUE(opened.ok()) << opened.status();              \
  const ::baton::model::GgufFile& file = **opened

TEST(EngineExactTest, TheDemoModelAnswersAChat) {
  BATON_OPEN_DEMO(file);
  LocalHub hub(true);
  TableWire wire;
  LiveWorker worker(file, {}, &hub, &wire);
  // "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n" in the
  // tokens of SmolLM2.
  RequestSpec spec;
  spec.key = {{1, 2}, 1};
  spec.session = SessionId(1);
  spec.tokens = {1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198};
  spec.num_prompt_tokens = static_cast<uint32_t>(spec.tokens.size());
  spec.sampling.max_tokens = 16;
  spec.sampling.temperature = 0;
  spec.deadline_us = 60'000'000 * int64_t{kPatienceFactor};
  ASSERT_TRUE(worker.engine().TryStart(spec).ok());
  ASSERT_TRUE(worker.recorder().WaitEnded(spec.key));
  const Record record = worker.recorder().Of(spec.key);
  EXPECT_EQ(record.last(), RequestState::kFinished) << record.status;
  EXPECT_EQ(record.Tokens(0).back().finish, FinishReason::kStop) << "it ends its turn";
  std::vector<TokenId> ids;
  for (const SeenToken& token : record.Tokens(0)) ids.push_back(token.token);
  // "The capital of France is Paris." and the end of the turn.
  EXPECT_EQ(ids, (std::vector<TokenId>{504, 3575, 282, 4649, 314, 7042, 30, 2}));
  EXPECT_TRUE(worker.WaitIdle());
}

// A transport by which the pair is joined.
class EngineExactTransportTest : public ::testing::TestWithParam<TransportKind> {};

TEST_P(EngineExactTransportTest, DisaggregatedEqualsAggregatedBitForBit) {
  BATON_OPEN_DEMO(file);
  const TransportKind kind = GetParam();
#ifdef __SANITIZE_THREAD__  // looks for races, which longer prompts do not add
  const std::vector<uint32_t> lengths = {1, kBlock - 1, kBlock, kBlock + 1, 47};
#elif defined(__SANITIZE_ADDRESS__)  // looks for bad accesses: one length of each shape
  const std::vector<uint32_t> lengths = {1, kBlock - 1, kBlock, kBlock + 1, 257};
#else
  const std::vector<uint32_t> lengths = {1,  2,   kBlock - 1, kBlock, kBlock + 1, 2 * kBlock,
                                         47, 100, 255,        256,    257,        300};
#endif
  const std::vector<RequestSpec> specs = Requests(lengths, 8);
  LocalHub hub(true);
  TableWire wire;
  std::vector<Record> alone;
  {
    LiveWorker worker(file, {}, &hub, &wire);
    alone = RunAggregated(&worker, specs);
  }
  LiveWorker p(file, {.role = WorkerRole::kPrefill, .kind = kind, .incarnation = 11}, &hub, &wire);
  LiveWorker d(file, {.role = WorkerRole::kDecode, .kind = kind, .incarnation = 12}, &hub, &wire);
  p.Connect(d);
  uint64_t bytes = 0;
  for (const RequestSpec& spec : specs) {
    bytes += d.model().layout().BlocksFor(spec.num_prompt_tokens) * d.model().layout().BlockBytes();
  }
  const std::vector<Record> records = RunPair(&p, &d, specs);
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(records[i].transport, kind);
    ExpectSameBits(records[i], alone[i], specs[i]);
  }
  EXPECT_EQ(d.engine().Snapshot().kv_bytes_received, bytes);
  EXPECT_EQ(d.engine().Snapshot().computed_tokens, 0u) << "D computed no prompt";
}

INSTANTIATE_TEST_SUITE_P(Transports, EngineExactTransportTest,
                         ::testing::Values(TransportKind::kLocal, TransportKind::kShm,
                                           TransportKind::kTcp),
                         [](const auto& info) {
                           return std::string(TransportKindName(info.param));
                         });

TEST(EngineExactTest, TheNumberOfThreadsChangesNoBit) {
  BATON_OPEN_DEMO(file);
  const std::vector<uint32_t> lengths = {5, 33, 130};
  const std::vector<RequestSpec> specs = Requests(lengths, 6);
  LocalHub hub(true);
  TableWire wire;
  LiveWorker one(file, {.num_threads = 1, .incarnation = 1}, &hub, &wire);
  LiveWorker two(file, {.num_threads = 2, .incarnation = 2}, &hub, &wire);
  const std::vector<Record> a = RunAggregated(&one, specs);
  const std::vector<Record> b = RunAggregated(&two, specs);
  for (size_t i = 0; i < specs.size(); ++i) ExpectSameBits(a[i], b[i], specs[i]);
}

// A pair whose workers lend their cores to each other.
TEST(EngineExactTest, LentCoresChangeNoBit) {
  BATON_OPEN_DEMO(file);
  const std::vector<uint32_t> lengths = {5, 33, 130, 60};
  const std::vector<RequestSpec> specs = Requests(lengths, 6);
  LocalHub hub(true);
  TableWire wire;
  std::vector<Record> alone;
  {
    LiveWorker worker(file, {}, &hub, &wire);
    alone = RunAggregated(&worker, specs);
  }
  const auto budget = *device::CoreBudget::Create(std::vector<uint32_t>{1, 2});
  const auto p_cores = *device::CoreShare::Attach(budget->fd(), 0);
  const auto d_cores = *device::CoreShare::Attach(budget->fd(), 1);
  {
    LiveWorker p(file,
                 {.role = WorkerRole::kPrefill,
                  .num_threads = 3,
                  .kind = TransportKind::kLocal,
                  .incarnation = 11,
                  .cores = p_cores.get()},
                 &hub, &wire);
    LiveWorker d(file,
                 {.role = WorkerRole::kDecode,
                  .num_threads = 3,
                  .kind = TransportKind::kLocal,
                  .incarnation = 12,
                  .cores = d_cores.get()},
                 &hub, &wire);
    p.Connect(d);
    const std::vector<Record> records = RunPair(&p, &d, specs);
    for (size_t i = 0; i < specs.size(); ++i) ExpectSameBits(records[i], alone[i], specs[i]);
    EXPECT_GT(d_cores->Stats().lent_us, 0u) << "the prompt was computed with them";
    EXPECT_GT(p_cores->Stats().lent_us, 0u) << "the tokens were computed with it";
  }
  for (uint32_t core = 0; core < budget->num_cores(); ++core) {
    EXPECT_EQ(budget->word(core).load(), device::kFreeCore) << "nobody computes";
  }
}

TEST(EngineExactTest, ADecodedTokenGivesTheSameBitsWhenItIsPrefilled) {
  BATON_OPEN_DEMO(file);
  LocalHub hub(true);
  TableWire wire;
  LiveWorker worker(file, {}, &hub, &wire);
  RequestSpec whole = MakeRequest(6, 40, 14);
  const Record record = RunAggregated(&worker, {whole})[0];
  const std::vector<SeenToken> tokens = record.Tokens(0);
  ASSERT_EQ(tokens.size(), 14u);
  for (const uint32_t cut : {1u, 7u, 8u, 13u}) {
    RequestSpec rest = whole;
    rest.key.uid.hi = 100 + cut;
    for (uint32_t i = 0; i < cut; ++i) rest.tokens.push_back(tokens[i].token);
    const Record resumed = RunAggregated(&worker, {rest})[0];
    const std::vector<SeenToken> expected(tokens.begin() + cut, tokens.end());
    EXPECT_EQ(resumed.Tokens(0), expected) << "cut at " << cut;
  }
}

// Turns of a conversation on a worker that remembers equal those on one that computes everything.
TEST(EngineExactTest, APrefixHitChangesNoBit) {
  BATON_OPEN_DEMO(file);
  LocalHub hub(true);
  TableWire wire;
  LiveWorker plain(file, {}, &hub, &wire);
  LiveWorker remembering(file, {.prefix_cache = true}, &hub, &wire);
  RequestSpec spec = MakeRequest(6, 75, 10);
  for (uint32_t turn = 0; turn < 4; ++turn) {
    spec.key.uid.hi = 200 + turn;
    const Record expected = RunAggregated(&plain, {spec})[0];
    const Record record = RunAggregated(&remembering, {spec})[0];
    ExpectSameBits(record, expected, spec);
    EXPECT_EQ(record.cached_tokens > 0, turn > 0);
    // Its answer, and what the user says next.
    for (const SeenToken& token : record.Tokens(0)) spec.tokens.push_back(token.token);
    const RequestSpec next = MakeRequest(50 + turn, 20 + turn, 10);
    spec.tokens.insert(spec.tokens.end(), next.tokens.begin(), next.tokens.end());
    spec.num_prompt_tokens = static_cast<uint32_t>(spec.tokens.size());
    spec.num_choices = 1 + turn % 2;
  }
  EXPECT_EQ(plain.engine().Snapshot().prefix.hit_tokens, 0u);
}

// Texts that repeat themselves, so that guesses are right, and random ones.
TEST(EngineExactTest, GuessedTokensChangeNoBit) {
  BATON_OPEN_DEMO(file);
  const std::vector<uint32_t> lengths = {5, 33, 130, 60, 40, 47};
  std::vector<RequestSpec> specs = Requests(lengths, 40);
  for (size_t i = 0; i < specs.size(); i += 2) {
    RequestSpec& spec = specs[i];
    for (size_t at = 5; at < spec.tokens.size(); ++at) spec.tokens[at] = spec.tokens[at % 5];
  }
  LocalHub hub(true);
  TableWire wire;
  std::vector<Record> off;
  {
    LiveWorker worker(file, {}, &hub, &wire);
    off = RunAggregated(&worker, specs);
  }
  {
    LiveWorker worker(file, {.num_threads = 2, .speculate = SpeculateMode::kNgram}, &hub, &wire);
    const std::vector<Record> on = RunAggregated(&worker, specs);
    for (size_t i = 0; i < specs.size(); ++i) ExpectSameBits(on[i], off[i], specs[i]);
    EXPECT_GT(worker.engine().Snapshot().accepted_tokens, 20u);
  }
  LiveWorker p(file, {.role = WorkerRole::kPrefill, .kind = TransportKind::kShm, .incarnation = 21},
               &hub, &wire);
  LiveWorker d(file,
               {.role = WorkerRole::kDecode,
                .kind = TransportKind::kShm,
                .incarnation = 22,
                .speculate = SpeculateMode::kNgram},
               &hub, &wire);
  p.Connect(d);
  const std::vector<Record> on = RunPair(&p, &d, specs);
  for (size_t i = 0; i < specs.size(); ++i) ExpectSameBits(on[i], off[i], specs[i]);
  EXPECT_GT(d.engine().Snapshot().accepted_tokens, 20u);
}

// K and V in q8 have an equal-bits promise of their own: over shm and tcp, in batches, with other
// threads, guesses and a cached prefix, and after a token was prefilled again.
TEST(EngineExactTest, Q8GivesTheSameBitsOnEveryPath) {
  BATON_OPEN_DEMO(file);
  const std::vector<uint32_t> lengths = {1, 15, 16, 17, 47, 130, 257};
  const std::vector<RequestSpec> specs = Requests(lengths, 8);
  LocalHub hub(true);
  TableWire wire;
  std::vector<Record> alone;
  {
    LiveWorker worker(file, {.kv_dtype = KvDtype::kQ8}, &hub, &wire);
    alone = RunAggregated(&worker, specs);
    for (size_t i = 0; i < specs.size(); ++i) {
      RequestSpec rest = specs[i];
      rest.key.uid.hi = 300 + i;
      const std::vector<SeenToken> tokens = alone[i].Tokens(0);
      if (specs[i].num_choices > 1 || tokens.size() < 5) continue;
      for (uint32_t t = 0; t < 4; ++t) rest.tokens.push_back(tokens[t].token);
      const std::vector<SeenToken> expected(tokens.begin() + 4, tokens.end());
      EXPECT_EQ(RunAggregated(&worker, {rest})[0].Tokens(0), expected) << "resumed, request " << i;
    }
  }
  {
    LiveWorker worker(file,
                      {.num_threads = 2,
                       .kv_dtype = KvDtype::kQ8,
                       .prefix_cache = true,
                       .speculate = SpeculateMode::kNgram},
                      &hub, &wire);
    for (const bool is_cached : {false, true}) {
      std::vector<RequestSpec> again = specs;
      for (RequestSpec& spec : again) spec.key.uid.hi += is_cached ? 1000 : 2000;
      const std::vector<Record> records = RunAggregated(&worker, again);
      for (size_t i = 0; i < specs.size(); ++i) ExpectSameBits(records[i], alone[i], specs[i]);
      EXPECT_EQ(records.back().cached_tokens > 0, is_cached);
    }
  }
  uint64_t incarnation = 31;
  for (const TransportKind kind : {TransportKind::kShm, TransportKind::kTcp}) {
    LiveOptions options = {.kv_dtype = KvDtype::kQ8, .kind = kind};
    options.role = WorkerRole::kPrefill;
    options.incarnation = incarnation++;
    LiveWorker p(file, options, &hub, &wire);
    options.role = WorkerRole::kDecode;
    options.incarnation = incarnation++;
    LiveWorker d(file, options, &hub, &wire);
    p.Connect(d);
    const std::vector<Record> records = RunPair(&p, &d, specs);
    uint64_t bytes = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      ExpectSameBits(records[i], alone[i], specs[i]);
      // 30 layers, K and V of 3 heads: 64 codes and two scales each.
      bytes += uint64_t{d.model().layout().BlocksFor(specs[i].num_prompt_tokens)} * kBlock * 30 *
               2 * 3 * (64 + 2 * 2);
    }
    EXPECT_EQ(d.engine().Snapshot().kv_bytes_received, bytes);
  }
}

}  // namespace
}  // namespace baton::engine
