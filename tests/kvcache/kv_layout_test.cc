#include "kvcache/kv_layout.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

KvLayout SmolLm2() {
  KvLayout layout;
  layout.num_layers = 30;
  layout.num_kv_heads = 3;
  layout.head_dim = 64;
  return layout;
}

// Layouts that differ from SmolLm2 in one field each, and the field's name.
struct Variant {
  const char* field;
  KvLayout layout;
};

std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  const auto add = [&](const char* field, auto&& change) {
    KvLayout layout = SmolLm2();
    change(layout);
    variants.push_back({field, layout});
  };
  add("dtype", [](KvLayout& l) { l.dtype = KvDtype::kF32; });
  add("encoding", [](KvLayout& l) { l.encoding = KvEncoding::kPlain; });
  add("num_layers", [](KvLayout& l) { l.num_layers = 31; });
  add("num_kv_heads", [](KvLayout& l) { l.num_kv_heads = 4; });
  add("head_dim", [](KvLayout& l) { l.head_dim = 128; });
  add("block_size", [](KvLayout& l) { l.block_size = 32; });
  add("window_tokens", [](KvLayout& l) { l.window_tokens = 512; });
  return variants;
}

TEST(KvLayoutTest, SizesOfTheDemoModelAreExact) {
  const KvLayout layout = SmolLm2();
  ASSERT_TRUE(layout.Validate().ok()) << layout.Validate();
  EXPECT_EQ(layout.PieceBytes(), 16u * 64 * 2);
  EXPECT_EQ(layout.SliceBytes(), 2u * 3 * 16 * 64 * 2);
  EXPECT_EQ(layout.BlockBytes(), 368'640u);
  EXPECT_EQ(layout.BlockStride() % kKvBlockAlignment, 0u);
  EXPECT_GE(layout.BlockStride(), layout.BlockBytes());
  EXPECT_LT(layout.BlockStride(), layout.BlockBytes() + kKvBlockAlignment);
  EXPECT_EQ(layout.BytesPerToken(), 23'040u);
  EXPECT_EQ(layout.BlocksFor(0), 0u);
  EXPECT_EQ(layout.BlocksFor(15), 1u);
  EXPECT_EQ(layout.BlocksFor(16), 1u);
  EXPECT_EQ(layout.BlocksFor(17), 2u);
}

TEST(KvLayoutTest, IdsAreEqualExactlyWhenLayoutsAre) {
  std::set<uint64_t> ids = {SmolLm2().LayoutId()};
  for (const Variant& variant : Variants()) ids.insert(variant.layout.LayoutId());
  EXPECT_EQ(ids.size(), Variants().size() + 1);
  EXPECT_EQ(SmolLm2().LayoutId(), SmolLm2().LayoutId());
  EXPECT_EQ(SmolLm2().ToString(), "bf16 paired layers=30 kv_heads=3 head_dim=64 block=16 window=0");
}

TEST(KvLayoutTest, DifferenceNamesTheFieldAndBothValues) {
  EXPECT_EQ(KvLayout::Difference(SmolLm2(), SmolLm2()), "");
  for (const Variant& variant : Variants()) {
    const std::string text = KvLayout::Difference(SmolLm2(), variant.layout);
    EXPECT_TRUE(text.starts_with(variant.field)) << text;
    EXPECT_NE(text.find(" against "), std::string::npos) << text;
  }
  EXPECT_EQ(KvLayout::Difference(SmolLm2(), Variants()[2].layout), "num_layers 30 against 31");
}

TEST(KvLayoutTest, ValidateNamesWhatIsWrong) {
  struct Case {
    const char* part;
    KvLayout layout;
  };
  std::vector<Case> cases;
  const auto add = [&](const char* part, auto&& change) {
    KvLayout layout = SmolLm2();
    change(layout);
    cases.push_back({part, layout});
  };
  add("dtype 0", [](KvLayout& l) { l.dtype = KvDtype::kUnspecified; });
  add("encoding 9", [](KvLayout& l) { l.encoding = KvEncoding{9}; });
  add("num_layers 0", [](KvLayout& l) { l.num_layers = 0; });
  add("num_kv_heads 0", [](KvLayout& l) { l.num_kv_heads = 0; });
  add("head_dim 63 is odd", [](KvLayout& l) { l.head_dim = 63; });
  add("block_size 0", [](KvLayout& l) { l.block_size = 0; });
  add("block_size 15 is odd", [](KvLayout& l) { l.block_size = 15; });
  add("num_layers 4000000000", [](KvLayout& l) { l.num_layers = 4'000'000'000u; });
  add("no multiple of 64", [](KvLayout& l) {
    l.num_kv_heads = 1;
    l.head_dim = 2;
    l.block_size = 2;
  });
  add("exceeds", [](KvLayout& l) {
    l.num_layers = l.num_kv_heads = l.block_size = 4096;
    l.head_dim = 8192;
  });
  for (const Case& c : cases) {
    const Status status = c.layout.Validate();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.part;
    EXPECT_NE(std::string(status.message()).find(c.part), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace baton
