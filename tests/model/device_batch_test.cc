// A batch on its way to a device: what kernels find there, and that what was recorded for a number
// of rows finds every padded batch.
#include "src/model/device_batch.h"

#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/simt/run_options.h"
#include "kernels/simt/simt_device.h"
#include "tests/device/fake_accelerator.h"

namespace baton::model {

namespace cuda = kernels::cuda;
namespace simt = kernels::simt;
using device::FakeAccelerator;
using kernels::AttentionSpan;
using kernels::RowSampling;

namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;

constexpr uint32_t kBlockSize = 16;

// A batch of rows at given positions, each of a sequence of its own, with the arrays it needs.
class TestBatch {
 public:
  void Add(uint32_t first_pos, uint32_t num_rows) {
    std::vector<uint32_t>& list = lists_.emplace_back((first_pos + num_rows - 1) / kBlockSize + 1);
    std::iota(list.begin(), list.end(), 1000 * static_cast<uint32_t>(lists_.size()));
    spans_.push_back({{}, static_cast<uint32_t>(tokens_.size()), num_rows, first_pos});
    for (uint32_t i = 0; i < num_rows; ++i) tokens_.push_back(next_token_++);
    logit_rows_.push_back(static_cast<uint32_t>(tokens_.size()) - 1);
  }
  ModelBatch Get() {
    for (size_t i = 0; i < spans_.size(); ++i) spans_[i].kv.blocks = lists_[i];
    sampling_.assign(logit_rows_.size(), {.seed = 7, .on_device = 1});
    chosen_.resize(logit_rows_.size());
    return {tokens_, spans_, logit_rows_, sampling_, chosen_};
  }

 private:
  std::vector<std::vector<uint32_t>> lists_;
  std::vector<AttentionSpan> spans_;
  std::vector<TokenId> tokens_;
  std::vector<uint32_t> logit_rows_;
  std::vector<RowSampling> sampling_;
  std::vector<TokenId> chosen_;
  TokenId next_token_ = 100;
};

class DeviceBatchTest : public ::testing::TestWithParam<const char*> {
 protected:
  DeviceBatchTest() {
    device_.MakeCurrent();
    config_.traits = FindArchitecture(GetParam());
    config_.num_heads = 8;
    config_.num_kv_heads = 4;
    config_.head_dim = 64;
    config_.window = 40;
    batch_ = *DeviceBatch::Create(
        config_,
        {.max_rows = 160, .max_logit_rows = 160, .max_context = 1u << 17, .block_size = kBlockSize},
        &device_);
  }
  template <typename T>
  static std::vector<T> Read(const T* from, size_t count) {
    return {from, from + count};  // the runner's memory is the host's
  }
  // Every block of a span is found by way of sequences().
  void ExpectLists(const ModelBatch& batch) const {
    for (const AttentionSpan& span : batch.spans) {
      const uint32_t begin = batch_->sequences()[span.first_row];
      const uint32_t count = (span.first_pos + span.num_rows - 1) / kBlockSize + 1;
      EXPECT_EQ(Read(batch_->block_lists() + begin, count),
                std::vector<uint32_t>(span.kv.blocks.begin(), span.kv.blocks.begin() + count));
    }
  }
  static std::vector<cuda::AttentionItem> Items(const DeviceItems& items) {
    return Read(items.items, *items.num_items);
  }

  simt::SimtDevice device_{simt::RunOptions{}};
  ModelConfig config_;
  std::unique_ptr<DeviceBatch> batch_;
};

TEST_P(DeviceBatchTest, HoldsABatchAsItIs) {
  TestBatch made;
  made.Add(5, 1);
  made.Add(30, 70);
  made.Add(0, 2);
  const ModelBatch batch = made.Get();
  ASSERT_TRUE(batch_->Set(batch, 0).ok());
  EXPECT_EQ(batch_->num_rows(), 73u);
  EXPECT_EQ(batch_->num_logit_rows(), 3u);
  EXPECT_THAT(Read(batch_->logit_rows(), 3), ElementsAre(0, 70, 72));
  EXPECT_THAT(Read(batch_->token_ids(), 3), ElementsAre(100, 101, 102));
  EXPECT_THAT(Read(batch_->positions(), 3), ElementsAre(5, 30, 31));
  EXPECT_EQ(batch_->sampling()[2].seed, 7u);
  ExpectLists(batch);
  EXPECT_EQ(Items(batch_->prefill()).front().sequence, batch_->sequences()[1]);
  EXPECT_EQ(batch_->prefill().num_ctas, *batch_->prefill().num_items);
  EXPECT_EQ(Items(batch_->decode()).front().sequence, batch_->sequences()[0]);
  EXPECT_EQ(batch_->decode().num_ctas, *batch_->decode().num_items);
  EXPECT_EQ(batch_->local_decode().num_ctas > 0, config_.traits->windowed);
}

TEST_P(DeviceBatchTest, PaddedBatchesLieWhereTheyWereRecorded) {
  batch_->PlacePadded(24, kPaddedGrids[0]);
  const uint32_t* const token_ids = batch_->token_ids();
  const uint32_t* const positions = batch_->positions();
  const uint32_t* const sequences = batch_->sequences();
  const uint32_t* const logit_rows = batch_->logit_rows();
  const RowSampling* const sampling = batch_->sampling();
  const uint32_t* const lists = batch_->block_lists();
  const DeviceItems decode = batch_->decode();
  const DeviceItems local = batch_->local_decode();
  for (const uint32_t num_rows : {17u, 24u}) {
    TestBatch made;
    for (uint32_t i = 0; i < num_rows; ++i) made.Add(3 * i, 1);
    const ModelBatch batch = made.Get();
    ASSERT_TRUE(batch_->Set(batch, 24).ok());
    EXPECT_EQ(batch_->num_rows(), 24u);
    EXPECT_EQ(batch_->num_logit_rows(), 24u);
    EXPECT_EQ(batch_->token_ids(), token_ids);
    EXPECT_EQ(batch_->positions(), positions);
    EXPECT_EQ(batch_->sequences(), sequences);
    EXPECT_EQ(batch_->logit_rows(), logit_rows);
    EXPECT_EQ(batch_->sampling(), sampling);
    EXPECT_EQ(batch_->block_lists(), lists);
    EXPECT_EQ(batch_->decode().items, decode.items);
    EXPECT_EQ(batch_->decode().num_items, decode.num_items);
    EXPECT_EQ(batch_->decode().num_ctas, decode.num_ctas);
    EXPECT_EQ(batch_->local_decode().items, local.items);
    EXPECT_EQ(batch_->local_decode().num_items, local.num_items);
    EXPECT_EQ(batch_->prefill().num_ctas, 0u);
    ExpectLists(batch);
    const uint32_t padding = 24 - num_rows;
    EXPECT_THAT(Read(sequences + num_rows, padding), Each(cuda::kPaddingRow));
    EXPECT_THAT(Read(token_ids + num_rows, padding), Each(0u));
    for (uint32_t i = num_rows; i < 24; ++i) EXPECT_EQ(sampling[i].on_device, 0u);
  }
}

// A GPU reads the batch when it comes to the copy: until then nothing of it may be written again.
TEST(DeviceBatchPinnedTest, IsReadWhenTheCopyIsDone) {
  FakeAccelerator device;
  ModelConfig config;
  config.traits = FindArchitecture("llama");
  config.num_heads = config.num_kv_heads = 1;
  config.head_dim = 64;
  const auto batch = *DeviceBatch::Create(
      config, {.max_rows = 8, .max_logit_rows = 8, .max_context = 64, .block_size = kBlockSize},
      &device);
  TestBatch made;
  made.Add(5, 1);
  ASSERT_TRUE(batch->Set(made.Get(), 4).ok());
  EXPECT_NE(*batch->token_ids(), 100u) << "the copy is under way";
  ASSERT_TRUE(device.Wait().ok());
  EXPECT_EQ(*batch->token_ids(), 100u);
  EXPECT_EQ(batch->sequences()[1], cuda::kPaddingRow);
}

// One row of a long context has more splits than the small grid has ctas, and another kernel.
TEST_P(DeviceBatchTest, ItemsDecideTheGrid) {
  const auto grid_of = [this](uint32_t position) {
    TestBatch made;
    made.Add(position, 1);
    EXPECT_TRUE(batch_->Set(made.Get(), 1).ok());
    return batch_->decode().num_ctas;
  };
  EXPECT_EQ(grid_of(100), kPaddedGrids[0]);
  EXPECT_TRUE(batch_->decode().is_spread && batch_->local_decode().is_spread);
  EXPECT_EQ(grid_of(100'000), kPaddedGrids[1]);
  EXPECT_FALSE(batch_->decode().is_spread || batch_->local_decode().is_spread);
  EXPECT_LE(*batch_->decode().num_items, kPaddedGrids[1]);
  // A window over two splits: the other kernel takes four at a time, so they are one item.
  EXPECT_EQ(grid_of(391 * 256), kPaddedGrids[1]);
  EXPECT_EQ(*batch_->local_decode().num_items,
            config_.traits->windowed ? config_.num_kv_heads : 0u);
  EXPECT_THAT(Items(batch_->local_decode()), Each(Field(&cuda::AttentionItem::num_parts, 1u)));
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceBatchTest, ::testing::Values("llama", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace baton::model
