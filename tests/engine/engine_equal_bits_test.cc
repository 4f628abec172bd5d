// 64 prompts of each form of state (rows, windows, latents, convolutions, fixed states), of the
// lengths at which something begins or ends: an engine that cuts them into odd chunks, and two
// engines joined by NcclTransport over the loopback of NCCL, give the bits of one engine that
// computes long chunks.
#include <memory>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/transport/nccl/nccl_transport.h"
#include "src/model/gguf.h"
#include "tests/engine/live_requests.h"
#include "tests/nccl/loopback_library.h"
#include "tests/nccl/nccl_device.h"

namespace baton::engine {

using device::FakeAccelerator;
using kv::LocalHub;
using kv::TransportKind;
using model::GgufFile;
using model::GoldenPath;

namespace {

constexpr uint32_t kContext = 512;
constexpr uint32_t kTokens = 12;

// Around blocks, tiles and splits first, then spread to the longest.
std::vector<uint32_t> Lengths() {
  std::vector<uint32_t> lengths = {1,  2,  3,  15,  16,  17,  31,  32,  33,
                                   63, 64, 65, 127, 128, 129, 255, 256, 257};
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  const size_t count = lengths.size();  // the shapes of all, which more of them do not add to
#else
  const size_t count = 64;
#endif
  for (uint32_t i = 0; lengths.size() < count; ++i) lengths.push_back(1 + 7 * i * 400 / 65 % 400);
  return lengths;
}

class EngineEqualBitsTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto opened = GgufFile::Open(GoldenPath(GetParam()));
    ASSERT_TRUE(opened.ok()) << opened.status();
    file_ = *std::move(opened);
    LiveWorker worker(*file_, Options(1), &hub_, &wire_);
    specs_ = Requests(Lengths(), kTokens, worker.model().config().vocab_size);
    for (const RequestSpec& spec : specs_) alone_.push_back(RunAggregated(&worker, {spec})[0]);
  }

  static LiveOptions Options(uint64_t incarnation) {
    return {.num_blocks = 8192, .max_context = kContext, .incarnation = incarnation};
  }
  void ExpectBitsOfOneAlone(const std::vector<Record>& records) {
    ASSERT_EQ(records.size(), alone_.size());
    for (size_t i = 0; i < specs_.size(); ++i) ExpectSameBits(records[i], alone_[i], specs_[i]);
  }

  std::unique_ptr<GgufFile> file_;
  LocalHub hub_{true};
  TableWire wire_;
  std::vector<RequestSpec> specs_;
  std::vector<Record> alone_;  // one after the other
};

TEST_P(EngineEqualBitsTest, OddChunksInABatchChangeNoBit) {
  for (const uint32_t max_chunk : {1u, 7u, 33u, 61u}) {
    SCOPED_TRACE(testing::Message() << "chunks of at most " << max_chunk);
    LiveOptions options = Options(10 + max_chunk);
    options.max_chunk = max_chunk;
    LiveWorker worker(*file_, options, &hub_, &wire_);
    ExpectBitsOfOneAlone(RunAggregated(&worker, specs_));
    uint64_t num_tokens = 0;
    for (const RequestSpec& spec : specs_) num_tokens += spec.num_prompt_tokens;
    EXPECT_EQ(worker.engine().Snapshot().computed_tokens, num_tokens);
  }
}

// Blocks in an arena, as the blocks of a device whose kernels are their references.
TEST_P(EngineEqualBitsTest, AHandOffByNcclsLoopbackChangesNoBit) {
  kv::nccl_test::Configure("");
  FakeAccelerator devices[2];
  const auto join = [&](FakeAccelerator* device) {
    return [device](std::unique_ptr<kv::KvEndpoint> endpoint, kv::KvArena* arena) {
      kv::NcclTransportOptions options;
      options.table = &kv::nccl_test::LoopbackTable();
      options.device = {.device = device,
                        .kernels = kernels::cuda::SliceKernelsOf(kv::nccl_test::FakeKernels()),
                        .memory = arena->memory()};
      // The machine may be slow; nothing is to expire.
      options.timers.build_us = 60'000'000 * int64_t{kPatienceFactor};
      options.timers.credit_us = options.timers.build_us;
      options.timers.operation_us = options.timers.build_us;
      auto made = kv::NcclTransport::Create(options, std::move(endpoint));
      EXPECT_TRUE(made.ok()) << made.status();
      return std::unique_ptr<kv::KvTransport>(*std::move(made));
    };
  };
  LiveOptions options = Options(2);
  options.kind = TransportKind::kTcp;  // of NCCL's own words
  options.role = WorkerRole::kPrefill;
  options.transport_over = join(&devices[0]);
  LiveWorker p(*file_, options, &hub_, &wire_);
  options.role = WorkerRole::kDecode;
  options.incarnation = 3;
  options.transport_over = join(&devices[1]);
  LiveWorker d(*file_, options, &hub_, &wire_);
  p.Connect(d);
  const std::vector<Record> records = RunPair(&p, &d, specs_);
  ExpectBitsOfOneAlone(records);
  for (const Record& record : records) EXPECT_EQ(record.transport, TransportKind::kNccl);
  EXPECT_EQ(d.engine().Snapshot().computed_tokens, 0u) << "D computed no prompt";
  // States cross as the last blocks of each prompt. Blocks that no layer will see stay.
  const kv::KvLayout& layout = d.model().layout();
  const kv::KvWindow window{d.model().config().window_of_all(), layout.block_size};
  uint64_t bytes = 0;
  for (const RequestSpec& spec : specs_) {
    const uint32_t num_blocks = layout.BlocksOfSequence(spec.num_prompt_tokens);
    bytes += (num_blocks - window.NumUnseen(spec.num_prompt_tokens)) * layout.BlockBytes();
  }
  EXPECT_EQ(d.engine().Snapshot().kv_bytes_received, bytes);
}

INSTANTIATE_TEST_SUITE_P(Forms, EngineEqualBitsTest,
                         ::testing::Values("tiny_gemma3.gguf", "tiny_phi3_short.gguf",
                                           "tiny_gemma4.gguf", "tiny_gptoss_mxfp4.gguf",
                                           "tiny_deepseek2.gguf", "tiny_lfm2.gguf",
                                           "tiny_lfm2moe.gguf", "tiny_qwen35.gguf",
                                           "tiny_qwen35moe.gguf", "tiny_nemotron_h.gguf"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(5, name.find('.') - 5);
                         });

}  // namespace
}  // namespace baton::engine
