// Ranks with a device each. Every kernel is put into its rank's stream while that device is
// current, and works on that device's memory. All ranks come to an exchange before any kernel after
// it. The devices and kernels stand for real ones and compute nothing.
#include <algorithm>
#include <atomic>
#include <map>
#include <span>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/engine/kv_store.h"
#include "tests/device/fake_accelerator.h"
#include "tests/loop_thread.h"
#include "tests/model/on_device.h"

namespace baton::model {

namespace cuda = kernels::cuda;
using device::Accelerator;
using device::FakeAccelerator;
using device::LaunchGate;
using device::ThreadPool;
using engine::KvStore;
using kernels::AttentionSpan;
using kv::KvArena;

namespace {

constexpr uint32_t kNumRanks = 4;

// The work that was put into streams, in order: the device and whether it was an exchange.
struct Put {
  const FakeAccelerator* device;
  bool is_exchange;
};
std::vector<Put>& Puts() {
  static std::vector<Put> puts;
  return puts;
}

// Layers whose K and V were put into a device's stream, and those that are stored there by now.
struct Stored {
  uint32_t num_put = 0;
  uint32_t num_done = 0;
};
std::map<const FakeAccelerator*, Stored>& StoredOn() {
  static std::map<const FakeAccelerator*, Stored> stored;
  return stored;
}

absl::Status Note(const void* written, bool is_exchange = false) {
  const FakeAccelerator* const device = FakeAccelerator::Current();
  EXPECT_TRUE(device->Owns(written)) << "memory of another device";
  Puts().push_back({device, is_exchange});
  return OkStatus();
}

// Counts the beginnings and the ends of Calls of another thread; odd while there is one.
std::atomic<uint64_t> call_edges = 0;
uint64_t edges_at_first_rank = 0;

template <typename Params>
absl::Status NoteExchange(const Params& params) {
  const uint64_t edges = call_edges.load();
  if (params.ranks.first_rank == 0) edges_at_first_rank = edges;
  EXPECT_EQ(edges % 2, 0u) << "an exchange beside a call";
  EXPECT_EQ(edges, edges_at_first_rank) << "a call while some ranks were at an exchange";
  EXPECT_EQ(params.ranks.num_ranks, kNumRanks);
  EXPECT_EQ(params.ranks.num_here, 1u);
  return Note(params.ranks.flags[params.ranks.first_rank], /*is_exchange=*/true);
}

const cuda::KernelTable& Kernels() {
  static const cuda::KernelTable table = [] {
    cuda::KernelTable kernels = {};
    kernels.has_wgmma = [] { return false; };
    kernels.has_prefill = [](uint32_t, cuda::KvElement) { return true; };
    kernels.has_spread = [](uint32_t, cuda::KvElement) { return true; };
    kernels.embed = [](const cuda::EmbedParams& p, void*) { return Note(p.out); };
    kernels.embed_packed = [](const cuda::EmbedPackedParams& p, void*) { return Note(p.out); };
    kernels.rms_norm = [](const cuda::RmsNormParams& p, void*) { return Note(p.out); };
    kernels.gemm_bf16 = [](const cuda::GemmParams& p, void*) {
      return Note(p.y_float != nullptr ? static_cast<void*>(p.y_float) : p.y_bf16);
    };
    kernels.gemm_packed = [](const cuda::PackedGemmParams& p, void*) {
      EXPECT_TRUE(FakeAccelerator::Current()->Owns(p.w.data));
      return Note(p.product.y_float != nullptr ? static_cast<void*>(p.product.y_float)
                                               : p.product.y_bf16);
    };
    kernels.rope_append = [](const cuda::RopeAppendParams& p, void*) {
      EXPECT_TRUE(FakeAccelerator::Current()->Owns(p.kv.base));
      Stored* const stored = &StoredOn()[FakeAccelerator::Current()];
      ++stored->num_put;
      FakeAccelerator::Current()->Put([stored] { ++stored->num_done; });
      return Note(p.q);
    };
    kernels.attention_prefill = [](const cuda::AttentionParams& p, void*) { return Note(p.out); };
    kernels.attention_decode = [](const cuda::AttentionParams& p, void*) { return Note(p.out); };
    kernels.silu_mul = [](const cuda::GateMulParams& p, void*) { return Note(p.out); };
    kernels.sample = [](const cuda::SampleParams& p, void*) { return Note(p.tokens); };
    kernels.all_reduce = [](const cuda::AllReduceParams& p, void*) { return NoteExchange(p); };
    kernels.gather_columns = [](const cuda::GatherColumnsParams& p, void*) {
      return NoteExchange(p);
    };
    return kernels;
  }();
  return table;
}

// A model of four ranks, its KV and a sequence of one block.
class RankDevices : public ::testing::Test {
 protected:
  // A thread that is in a Call may get no processor for seconds: the gate waits for longer.
  explicit RankDevices(int64_t max_hold_us = 60'000'000) : gate_(max_hold_us) {}
  void SetUp() override {
    const auto file = OpenModelFile(Tiny("ranks8_llama"));
    ASSERT_TRUE(file.ok()) << file.status();
    for (FakeAccelerator& device : devices_) all_.push_back(&device);
    auto model = DeviceModel::Load(**file, {.device = all_[0],
                                            .kernels = &Kernels(),
                                            .pool = &pool_,
                                            .block_size = 16,
                                            .max_rows = 8,
                                            .max_logit_rows = 8,
                                            .max_context = 16,
                                            .num_ranks = kNumRanks,
                                            .peers = {all_.begin() + 1, all_.end()},
                                            .gate = &gate_});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    arena_ = *KvArena::Create(model_->layout(), 2);
    store_ = *KvStore::Ranked(all_, arena_.get());
    Puts().clear();
    StoredOn().clear();
  }
  Status Forward(uint32_t num_rows, uint32_t num_logits, LayerHook* hook = nullptr) {
    const std::vector<TokenId> tokens(num_rows, 1);
    const uint32_t block = 1;
    const AttentionSpan span{.kv = {{&block, 1}}, .first_row = 0, .num_rows = num_rows};
    const uint32_t last = num_rows - 1;
    std::vector<float> logits(num_logits * model_->vocab_size());
    return model_->Forward({.token_ids = tokens,
                            .spans = {&span, 1},
                            .logit_rows = std::span(&last, 1).first(num_logits)},
                           store_->view(), hook, logits);
  }

  ThreadPool pool_{1};
  LaunchGate gate_;
  FakeAccelerator devices_[kNumRanks];
  std::vector<Accelerator*> all_;
  std::unique_ptr<DeviceModel> model_;
  std::unique_ptr<KvArena> arena_;
  std::unique_ptr<KvStore> store_;
};

// The host goes on with the next layer meanwhile.
TEST_F(RankDevices, ALayerIsToldOnceAllDevicesHaveStoredIt) {
  struct Hook : LayerHook {
    void OnLayerStored(uint32_t layer) override {
      EXPECT_EQ(layer, num_told++);
      for (const auto& [device, stored] : StoredOn()) {
        EXPECT_GT(stored.num_done, layer);
        most_ahead = std::max(most_ahead, stored.num_put - num_told);
      }
    }
    uint32_t num_told = 0;
    uint32_t most_ahead = 0;
  };
  const uint32_t num_layers = model_->config().num_layers;
  for (const uint32_t num_logits : {0u, 1u}) {
    StoredOn().clear();
    Hook hook;
    ASSERT_TRUE(Forward(3, num_logits, &hook).ok());
    EXPECT_EQ(hook.num_told, num_layers);
    EXPECT_EQ(hook.most_ahead, num_layers - 1) << "the streams take a piece of work a query";
    EXPECT_EQ(StoredOn().size(), kNumRanks);
  }
}

TEST_F(RankDevices, EveryKernelGoesToItsRanksDevice) {
  ASSERT_TRUE(Forward(3, 1).ok());
  std::vector<size_t> exchanges(kNumRanks);
  std::vector<size_t> kernels(kNumRanks);
  for (const Put& put : Puts()) {
    const auto rank = static_cast<size_t>(put.device - devices_);
    ASSERT_LT(rank, kNumRanks);
    // Nobody is further than one exchange ahead, and then only by kernels before the next.
    if (put.is_exchange) {
      for (size_t other = 0; other < kNumRanks; ++other) {
        EXPECT_EQ(exchanges[other], exchanges[rank] + (other < rank ? 1 : 0));
      }
      ++exchanges[rank];
    } else {
      EXPECT_EQ(exchanges[rank], exchanges[kNumRanks - 1]) << "a kernel behind an exchange of some";
      ++kernels[rank];
    }
  }
  // Two layers of two sums, and the logits.
  EXPECT_THAT(exchanges, ::testing::Each(5u));
  // 263 tokens are five tiles of logits, two of a rank: the last has none. Products of packed
  // weights are not joined.
  const size_t of_step = DeviceModel::KernelsAStep(model_->config(), StepKernels::kApart);
  EXPECT_THAT(kernels, ::testing::ElementsAre(of_step, of_step, of_step, of_step - 1));
}

TEST_F(RankDevices, WithoutLogitsTheLastLayerOnlyStores) {
  ASSERT_TRUE(Forward(3, 0).ok());
  size_t num_exchanges = 0;
  for (const Put& put : Puts()) num_exchanges += put.is_exchange ? 1 : 0;
  EXPECT_EQ(num_exchanges, 2 * kNumRanks);
  for (const FakeAccelerator& device : devices_)
    EXPECT_FALSE(device.IsBusy()) << "it was waited for";
}

TEST_F(RankDevices, AStepIsRecordedOnEveryDevice) {
  for (FakeAccelerator& device : devices_) device.records = true;
  ASSERT_TRUE(model_->Prepare(store_->view()).ok());
  ASSERT_GT(model_->num_recorded_steps(), 0u);
  for (const FakeAccelerator& device : devices_) {
    EXPECT_EQ(device.num_graphs, model_->num_recorded_steps());
  }
  Puts().clear();
  ASSERT_TRUE(Forward(1, 1).ok());
  EXPECT_TRUE(Puts().empty()) << "only graphs were launched";
  for (const FakeAccelerator& device : devices_) EXPECT_EQ(device.num_graph_launches, 1u);
}

TEST_F(RankDevices, NoExchangeIsLaunchedBesideACallOfAnotherThread) {
  const LoopThread caller([this] {
    const LaunchGate::Call call(&gate_);
    ++call_edges;
    std::this_thread::yield();
    ++call_edges;
  });
  uint64_t edges = 0;
  for (uint32_t step = 0; step < 100 || edges < 100; ++step) {
    ASSERT_TRUE(Forward(3, 1).ok());
    edges = call_edges.load();
  }
}

// For tests in which Calls lapse.
struct RankDevicesOfShortCalls : RankDevices {
  RankDevicesOfShortCalls() : RankDevices(20'000) {}
};

// The second overrun would be one of an exchange or graph that was not launched under the gate.
TEST_F(RankDevicesOfShortCalls, EveryWayOfLaunchingAStepWaitsForACall) {
  for (FakeAccelerator& device : devices_) device.records = true;
  for (const bool is_recorded : {false, true}) {
    if (is_recorded) {
      ASSERT_TRUE(model_->Prepare(store_->view()).ok());
    }
    for (const uint32_t num_rows : {1u, 3u}) {
      const uint64_t before = gate_.num_overruns();
      const LaunchGate::Call call(&gate_);
      ASSERT_TRUE(Forward(num_rows, 1).ok());
      EXPECT_EQ(gate_.num_overruns(), before + 1) << "it went on when the call had lapsed";
    }
    // It waits for no result under the gate, and leaves it.
    const LaunchGate::Call call(&gate_);
    EXPECT_EQ(gate_.num_overruns(), is_recorded ? 4u : 2u);
  }
}

TEST_F(RankDevices, WhereOneCannotRecordNoneGoesOnRecording) {
  for (const size_t refuses : {0u, 2u}) {
    for (FakeAccelerator& device : devices_) device.records = &device != &devices_[refuses];
    ASSERT_TRUE(model_->Prepare(store_->view()).ok());
    EXPECT_EQ(model_->num_recorded_steps(), 0u);
    for (const FakeAccelerator& device : devices_) {
      EXPECT_FALSE(device.is_recording);
      EXPECT_EQ(device.num_graphs, 0u);
    }
  }
  EXPECT_TRUE(Forward(1, 1).ok());
}

}  // namespace
}  // namespace baton::model
