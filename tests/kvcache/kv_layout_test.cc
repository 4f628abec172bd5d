#include "kvcache/kv_layout.h"

#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kvcache/kv_view.h"

namespace baton::kv {
namespace {

KvLayout SmolLm2() {
  KvLayout layout;
  layout.num_layers = 30;
  layout.num_kv_heads = 3;
  layout.head_dim = 64;
  return layout;
}

KvLayout Fp8() {
  KvLayout layout = SmolLm2();
  layout.dtype = KvDtype::kFp8;
  layout.encoding = KvEncoding::kFragments;
  return layout;
}

KvLayout Q8() {
  KvLayout layout = SmolLm2();
  layout.dtype = KvDtype::kQ8;
  layout.encoding = KvEncoding::kLanes;
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
  add("dtype", [](KvLayout& l) { l = Fp8(); });
  add("encoding", [](KvLayout& l) { l.encoding = KvEncoding::kFragments; });
  add("encoding", [](KvLayout& l) { l.encoding = KvEncoding::kPlain; });
  add("dtype", [](KvLayout& l) { l = Q8(); });
  add("num_layers", [](KvLayout& l) { l.num_layers = 31; });
  add("num_kv_heads", [](KvLayout& l) { l.num_kv_heads = 4; });
  add("head_dim", [](KvLayout& l) { l.head_dim = 128; });
  add("block_size", [](KvLayout& l) { l.block_size = 32; });
  add("window_tokens", [](KvLayout& l) { l.window_tokens = 512; });
  add("state_blocks", [](KvLayout& l) { l.state_blocks = 7; });
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

// A row of 64 e4m3 has a scale of two bytes, and a slice of any number of heads is still a multiple
// of 64.
TEST(KvLayoutTest, SizesOfFp8AreExact) {
  KvLayout layout = Fp8();
  ASSERT_TRUE(layout.Validate().ok()) << layout.Validate();
  EXPECT_EQ(layout.PieceBytes(), 16u * (64 + 2));
  EXPECT_EQ(layout.SliceBytes(), 2u * 3 * 16 * 66);
  EXPECT_EQ(layout.BytesPerToken(), 30u * 2 * 3 * 66);
  EXPECT_EQ(layout.ToString(), "fp8 fragments layers=30 kv_heads=3 head_dim=64 block=16 window=0");
  for (const uint32_t heads : {1u, 2u, 5u}) {
    for (const uint32_t dim : {64u, 128u, 256u}) {
      for (const uint32_t block_size : {16u, 32u, 64u}) {
        layout.num_kv_heads = heads;
        layout.head_dim = dim;
        layout.block_size = block_size;
        EXPECT_TRUE(layout.Validate().ok()) << layout.Validate();
        EXPECT_EQ(layout.SliceBytes() % 64, 0u);
      }
    }
  }
}

// A row has a scale of two bytes for each 32 int8. A block of 16 tokens suits any even head_dim.
TEST(KvLayoutTest, SizesOfQ8AreExact) {
  KvLayout layout = Q8();
  ASSERT_TRUE(layout.Validate().ok()) << layout.Validate();
  EXPECT_EQ(layout.PieceBytes(), 16u * (64 + 4));
  EXPECT_EQ(layout.SliceBytes(), 2u * 3 * 16 * 68);
  EXPECT_EQ(layout.BytesPerToken(), 30u * 2 * 3 * 68);
  EXPECT_EQ(layout.ToString(),
            "q8 turned-lanes layers=30 kv_heads=3 head_dim=64 block=16 window=0");
  const std::vector<std::pair<uint32_t, uint32_t>> scales_of_dims = {{2, 1},  {32, 1},  {34, 2},
                                                                     {80, 3}, {128, 4}, {256, 8}};
  for (const auto& [dim, scales] : scales_of_dims) {
    layout.head_dim = dim;
    EXPECT_EQ(layout.num_scales(), scales);
    EXPECT_EQ(layout.PieceBytes(), 16u * (dim + 2 * scales));
  }
  for (const uint32_t heads : {1u, 2u, 5u}) {
    for (uint32_t dim = 2; dim <= 256; dim += 2) {
      layout.num_kv_heads = heads;
      layout.head_dim = dim;
      EXPECT_TRUE(layout.Validate().ok()) << layout.Validate();
      EXPECT_EQ(layout.SliceBytes() % 64, 0u);
    }
  }
}

// The order of states within their blocks is part of the id: "state=7" alone was another order.
TEST(KvLayoutTest, TheTextNamesTheOrderOfStates) {
  KvLayout layout = SmolLm2();
  layout.state_blocks = 7;
  EXPECT_EQ(layout.ToString(),
            "bf16 paired layers=30 kv_heads=3 head_dim=64 block=16 window=0 state=7 spread");
}

TEST(KvLayoutTest, EveryTypeIsFoundByItsName) {
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kF32, KvDtype::kFp8, KvDtype::kQ8}) {
    EXPECT_EQ(KvDtypeNamed(KvDtypeName(dtype)), dtype);
  }
  for (const char* name : {"", "unspecified", "unknown", "q4", "Q8"}) {
    EXPECT_EQ(KvDtypeNamed(name), std::nullopt) << name;
  }
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
  EXPECT_EQ(KvLayout::Difference(SmolLm2(), Variants()[5].layout), "num_layers 30 against 31");
  EXPECT_EQ(KvLayout::Difference(SmolLm2(), Fp8()), "dtype bf16 against fp8");
  EXPECT_EQ(KvLayout::Difference(Q8(), SmolLm2()), "dtype q8 against bf16");
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
  add("state_blocks 65281 is above 65280", [](KvLayout& l) { l.state_blocks = 65'281; });
  add("no multiple of 64", [](KvLayout& l) {
    l.num_kv_heads = 1;
    l.head_dim = 2;
    l.block_size = 2;
  });
  add("exceeds", [](KvLayout& l) {
    l.num_layers = l.num_kv_heads = l.block_size = 4096;
    l.head_dim = 8192;
  });
  add("bf16 does not go with the encoding fragments",
      [](KvLayout& l) { l.encoding = KvEncoding::kFragments; });
  add("fp8 does not go with the encoding paired", [](KvLayout& l) { l.dtype = KvDtype::kFp8; });
  add("q8 does not go with the encoding paired", [](KvLayout& l) { l.dtype = KvDtype::kQ8; });
  add("bf16 does not go with the encoding turned-lanes",
      [](KvLayout& l) { l.encoding = KvEncoding::kLanes; });
  for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kQ8}) {
    add("does not go with the encoding latent", [dtype](KvLayout& l) {
      l.dtype = dtype;
      l.encoding = KvEncoding::kLatent;
    });
  }
  add("encoding 6", [](KvLayout& l) { l.encoding = KvEncoding{6}; });
  add("dtype 5", [](KvLayout& l) { l.dtype = KvDtype{5}; });
  add("head_dim 72 and block_size 16 in multiples of 16", [](KvLayout& l) {
    l = Fp8();
    l.head_dim = 72;
  });
  add("head_dim 64 and block_size 24", [](KvLayout& l) {
    l = Fp8();
    l.block_size = 24;
  });
  for (const Case& c : cases) {
    const Status status = c.layout.Validate();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.part;
    EXPECT_NE(std::string(status.message()).find(c.part), std::string::npos) << status;
  }
}

// Three slices of one head of 16 as two layers: one with a head of 32, and one of the slice's.
TEST(KvLayoutTest, ALayerViewFillsItsSlicesAndNoOthers) {
  KvLayout whole = SmolLm2();
  whole.num_layers = 3;
  whole.num_kv_heads = 1;
  whole.head_dim = 16;
  KvLayout wide = whole;
  wide.num_layers = 1;
  wide.head_dim = 32;
  std::vector<std::byte> arena(2 * whole.BlockStride());
  const KvView view = {arena.data(), &whole, 2};
  const KvView first = LayerView(view, 0, wide);
  for (const uint32_t block : {0u, 1u}) {
    const std::byte* begin = arena.data() + block * whole.BlockStride();
    EXPECT_EQ(first.Piece(block, 0, 0, 0), begin);
    EXPECT_EQ(first.Piece(block, 0, 1, 0), begin + whole.SliceBytes());
    EXPECT_EQ(first.Piece(block, 0, 1, 0) + wide.PieceBytes(), view.Piece(block, 2, 0, 0));
  }
  wide.head_dim = 16;
  const KvView last = LayerView(view, 2, wide);
  EXPECT_EQ(last.Piece(1, 0, 0, 0), view.Piece(1, 2, 0, 0));
  EXPECT_EQ(last.Piece(1, 0, 1, 0), view.Piece(1, 2, 1, 0));
}

}  // namespace
}  // namespace baton::kv
