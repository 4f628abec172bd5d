// Records what a model tells of the slices of KV that it has stored.
#ifndef BATON_TESTS_MODEL_TOLD_SLICES_H_
#define BATON_TESTS_MODEL_TOLD_SLICES_H_

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/model/model_fixture.h"
#include "tests/model/test_model.h"

namespace baton::model {

// Keeps the bytes of each slice of sequence 0 as it is told. They are told in order.
class ToldSlices : public LayerHook {
 public:
  ToldSlices(ModelFixture& fixture, uint32_t num_tokens)
      : fixture_(fixture), num_tokens_(num_tokens) {}

  void OnLayerStored(uint32_t slice) override {
    EXPECT_EQ(slice, told_.size());
    told_.push_back(BytesOf(slice));
  }
  // Each slice of the layout was told once, with the bytes that it has now.
  void ExpectAllFinal() const {
    ASSERT_EQ(told_.size(), fixture_.model().layout().num_layers);
    for (uint32_t slice = 0; slice < told_.size(); ++slice) {
      EXPECT_EQ(told_[slice], BytesOf(slice)) << slice;
    }
  }

 private:
  std::vector<std::byte> BytesOf(uint32_t slice) const {
    const kv::KvLayout& layout = fixture_.model().layout();
    const std::vector<std::byte> all = fixture_.KvBytes(0, num_tokens_);
    std::vector<std::byte> out;
    for (size_t block = 0; block < all.size(); block += layout.BlockBytes()) {
      const auto begin = all.begin() + block + slice * layout.SliceBytes();
      out.insert(out.end(), begin, begin + layout.SliceBytes());
    }
    return out;
  }

  ModelFixture& fixture_;
  const uint32_t num_tokens_;
  std::vector<std::vector<std::byte>> told_;
};

// A prompt of 20 tokens in a golden file's model.
inline void ExpectSlicesToldWhenFinal(const std::string& name) {
  SCOPED_TRACE(name);
  ModelFixture fixture({.path = GoldenPath(name)});
  ASSERT_TRUE(fixture.status().ok()) << fixture.status();
  std::vector<TokenId> tokens(20);
  std::iota(tokens.begin(), tokens.end(), 5);
  ToldSlices slices(fixture, 20);
  ASSERT_TRUE(fixture.Run({{0, 0, tokens}}, false, &slices).ok());
  slices.ExpectAllFinal();
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_TOLD_SLICES_H_
