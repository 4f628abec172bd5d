// PromptSeals: which slices of a prompt are hashed and may cross, and when. A slice that is sealed
// too early crosses with the bytes of an earlier request.
#include "src/engine/prompt_seals.h"

#include <cstring>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/transport/slice_copy.h"
#include "tests/engine/parts_rig.h"

namespace baton::engine {

using kv::BlockHandle;
using kv::Grant;
using kv::HandoffMessage;
using kv::KvLayout;
using kv::SliceChecksum;
using kv::SliceRef;
using scheduler::BatchItem;
using scheduler::ItemResult;

namespace {

const Incarnation kPeer(7);
constexpr uint32_t kTokens = 11;  // two full blocks and a part of a third

// One prompt of kTokens, computed in chunks of two blocks and handed to kPeer.
class PromptSealsTest : public ::testing::Test {
 protected:
  void Make(PartsOptions options) {
    options.role = WorkerRole::kPrefill;
    options.max_chunk = 2 * kToyBlock;
    rig_ = std::make_unique<PartsRig>(options);
    seals_ = std::make_unique<PromptSeals>(
        StepParts{.state = &rig_->state, .events = &rig_->events, .hub = &rig_->hub});
  }
  void Begin(uint64_t uid) {
    RequestSpec spec = ToyRequest(1, kTokens, 3);
    spec.key.uid = {uid, uid};
    spec.kind = RequestKind::kSource;
    spec.peer = kPeer;
    LiveRequest* const request = rig_->Add(std::move(spec));
    transfer_ =
        rig_->hub.sources().Start(request->spec, request->prompt_sequence, rig_->state.now_us);
    request->source = transfer_;
  }
  // Plans the prompt's next chunk, and fills its blocks and its state's with bytes of their own.
  void BeginStep() {
    const BatchItem& item = rig_->state.scheduler.Plan(rig_->state.now_us).items.at(0);
    rig_->hub.sources().BeginStep();
    seals_->Clear();
    seals_->Note(item, transfer_);
    for (const BlockHandle block : transfer_->blocks) {
      const int byte = static_cast<int>(block.index.value()) + 1;
      std::memset(rig_->arena->Block(block.index), byte, layout().BlockBytes());
    }
  }
  void StoreLayers(uint32_t first, uint32_t end) {
    for (uint32_t layer = first; layer < end; ++layer) seals_->OnLayerStored(layer);
  }
  void EndStep() {
    const std::vector<ItemResult> results(1);
    rig_->state.scheduler.Finish(results, 1'000, rig_->state.now_us);
    rig_->hub.sources().FinishStep(rig_->state.now_us);
  }
  void RunStep() {
    BeginStep();
    seals_->SealHits();
    StoreLayers(0, kToyLayers);
    EndStep();
  }
  Grant WholeGrant() const {
    const uint32_t num_blocks = layout().BlocksOfSequence(kTokens);
    return {.key = {transfer_->key.uid, transfer_->key.attempt, TransferId(5)},
            .decode_incarnation = kPeer,
            .generations = std::vector<uint32_t>(num_blocks, 1),
            .layout_id = layout().LayoutId(),
            .expected_bytes = num_blocks * layout().BlockBytes(),
            .ttl_ms = 10'000};
  }
  // Ordinals whose slices are hashed in every layer. One of a few layers alone is a failure, and so
  // is another hash than that of the bytes.
  std::set<uint32_t> Hashed() const {
    std::set<uint32_t> ordinals;
    for (uint32_t i = 0; i < transfer_->blocks.size(); ++i) {
      uint32_t num_layers = 0;
      for (uint32_t layer = 0; layer < kToyLayers; ++layer) {
        const uint64_t hash = transfer_->checksums[i * kToyLayers + layer];
        if (hash == 0) continue;
        ++num_layers;
        EXPECT_EQ(hash, SliceChecksum(rig_->arena->Slice(transfer_->blocks[i].index, layer),
                                      layout().SliceBytes()));
      }
      EXPECT_TRUE(num_layers == 0 || num_layers == kToyLayers) << num_layers << " of block " << i;
      if (num_layers > 0) ordinals.insert(i);
    }
    return ordinals;
  }
  // (ordinal, layer) of what the transport was given.
  std::set<std::pair<uint32_t, uint32_t>> Sent() const {
    std::set<std::pair<uint32_t, uint32_t>> sent;
    for (const SliceRef& slice : rig_->transport.slices) {
      EXPECT_TRUE(sent.emplace(slice.ordinal, slice.layer).second) << "it crosses twice";
      EXPECT_EQ(slice.source, transfer_->blocks[slice.ordinal].index);
      EXPECT_EQ(slice.checksum, transfer_->checksums[slice.ordinal * kToyLayers + slice.layer]);
    }
    return sent;
  }
  static std::set<std::pair<uint32_t, uint32_t>> Slices(const std::set<uint32_t>& ordinals,
                                                        uint32_t num_layers) {
    std::set<std::pair<uint32_t, uint32_t>> slices;
    for (const uint32_t ordinal : ordinals) {
      for (uint32_t layer = 0; layer < num_layers; ++layer) slices.emplace(ordinal, layer);
    }
    return slices;
  }
  const KvLayout& layout() const { return *rig_->state.kv_view.layout; }

  std::unique_ptr<PartsRig> rig_;
  std::unique_ptr<PromptSeals> seals_;
  SourceTransfer* transfer_ = nullptr;
};

using Ordinals = std::set<uint32_t>;

TEST_F(PromptSealsTest, AChunkSealsTheBlocksThatItFills) {
  Make({});
  Begin(1);
  RunStep();
  EXPECT_EQ(Hashed(), (Ordinals{0, 1}));
  RunStep();
  EXPECT_EQ(Hashed(), (Ordinals{0, 1, 2})) << "a part-full block, with the prompt's end alone";
}

TEST_F(PromptSealsTest, AStateIsSealedByThePromptsLastChunk) {
  Make({.state_blocks = 2});
  Begin(1);
  RunStep();
  EXPECT_EQ(Hashed(), (Ordinals{0, 1})) << "later chunks write the state";
  RunStep();
  EXPECT_EQ(Hashed(), (Ordinals{0, 1, 2, 3, 4}));
}

TEST_F(PromptSealsTest, BlocksOfAHitAreSealedBeforeTheFirstLayer) {
  Make({});
  Begin(1);
  RunStep();
  RunStep();
  Begin(2);
  BeginStep();
  EXPECT_EQ(Hashed(), Ordinals{});
  seals_->SealHits();
  EXPECT_EQ(Hashed(), (Ordinals{0, 1}));
  StoreLayers(0, kToyLayers);
  EXPECT_EQ(Hashed(), (Ordinals{0, 1, 2}));
  EndStep();
}

TEST_F(PromptSealsTest, SlicesCrossAfterEachGroupAndAfterTheLastLayer) {
  Make({.layers_per_group = 4});
  Begin(1);
  BeginStep();
  ASSERT_TRUE(rig_->hub.sources().OnGrantInStep(kPeer, WholeGrant(), rig_->state.now_us));
  StoreLayers(0, 3);
  EXPECT_EQ(Sent(), Slices({}, 0));
  StoreLayers(3, 5);
  EXPECT_EQ(Sent(), Slices({0, 1}, 4));
  StoreLayers(5, kToyLayers);
  EXPECT_EQ(Sent(), Slices({0, 1}, kToyLayers));
  EndStep();
  RunStep();
  EXPECT_EQ(Sent(), Slices({0, 1, 2}, kToyLayers));
}

TEST_F(PromptSealsTest, AGrantThatComesBetweenTwoLayersIsTakenAtTheGroupsEnd) {
  Make({.layers_per_group = 4});
  Begin(1);
  BeginStep();
  StoreLayers(0, 4);
  Grant unknown = WholeGrant();
  unknown.key.uid = {99, 99};
  for (const Grant& grant : {unknown, WholeGrant()}) {
    rig_->inbox.Post(
        PeerMessage{.peer = kPeer, .message = std::make_unique<HandoffMessage>(grant)});
  }
  StoreLayers(4, 5);
  EXPECT_EQ(Sent(), Slices({}, 0));
  StoreLayers(5, kToyLayers);
  EXPECT_EQ(Sent(), Slices({0, 1}, kToyLayers)) << "what was sealed before it, too";
  EndStep();
  std::vector<bool> is_left;
  rig_->events.HandleAll([&](EngineEvent event) {
    is_left.push_back(std::get<PeerMessage>(event).message != nullptr);
  });
  EXPECT_EQ(is_left, (std::vector<bool>{true, false})) << "one may wait for its order";
}

}  // namespace
}  // namespace baton::engine
