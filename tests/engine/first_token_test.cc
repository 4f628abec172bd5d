// The token before the first request: computed through the blocks, or said why not.
#include "src/engine/first_token.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kvcache/kv_arena.h"
#include "tests/engine/toy_model.h"

namespace baton::engine {

using kv::KvArena;
using kv::KvView;
using model::LayerHook;
using model::ModelBatch;

namespace {

using ::testing::HasSubstr;

// A toy whose logits or whose device can be broken from one step on.
class BrokenModel : public ToyModel {
 public:
  Status Forward(const ModelBatch& batch, const KvView& kv, LayerHook* hook,
                 std::span<float> logits) override {
    BATON_RETURN_IF_ERROR(ToyModel::Forward(batch, kv, hook, logits));
    if (num_steps() < first_broken_step) return OkStatus();
    if (device_fails) return Internal("the device is gone");
    logits[17] = logit;
    return OkStatus();
  }

  uint64_t first_broken_step = std::numeric_limits<uint64_t>::max();
  bool device_fails = false;
  float logit = 0;
};

class FirstTokenTest : public testing::Test {
 protected:
  KvView View() const {
    return {.base = arena_->base(), .layout = &arena_->layout(), .num_blocks = 1};
  }
  static TokenId Best(const std::vector<float>& logits) {
    return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  std::unique_ptr<KvArena> arena_ = *KvArena::Create(ToyLayout(), 1);
  BrokenModel model_;
};

TEST_F(FirstTokenTest, IsWhatTheModelSaysAfterAPromptThroughTheBlocks) {
  const StatusOr<TokenId> token = ComputeFirstToken(&model_, View());
  ASSERT_TRUE(token.ok()) << token.status();
  const TokenId second = Best(ToyModel::LogitsAfter(std::vector<TokenId>{0}));
  EXPECT_EQ(*token, Best(ToyModel::LogitsAfter(std::vector<TokenId>{0, second})));
  EXPECT_EQ(model_.num_steps(), 2u);
}

TEST_F(FirstTokenTest, ALogitThatIsNoNumberInEitherStepIsNamed) {
  for (const float logit : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (const uint64_t step : {1, 2}) {
      BrokenModel model;
      model.first_broken_step = step;
      model.logit = logit;
      const Status status = ComputeFirstToken(&model, View()).status();
      ASSERT_TRUE(absl::IsInternal(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(fmt::format("logit 17 at position {}", step - 1)));
    }
  }
}

TEST_F(FirstTokenTest, WhatTheDeviceSaysComesThrough) {
  model_.first_broken_step = 2;
  model_.device_fails = true;
  EXPECT_THAT(std::string(ComputeFirstToken(&model_, View()).status().message()),
              HasSubstr("the device is gone"));
}

}  // namespace
}  // namespace baton::engine
