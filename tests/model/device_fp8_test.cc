// Folders in F8_E4M3 on an accelerator, here the runner: kept packed, dequantised at load, or the
// same weights in bf16, logits and KV have the same bits.
#include "gtest/gtest.h"

#include "tests/model/fp8_folder.h"
#include "tests/model/on_device.h"

namespace baton::model {
namespace {

struct Case {
  Fp8Layout layout;
  bool has_experts;
};

// How scales lie in a folder is gone once it is read; hf_fp8_test has all forms.
std::vector<Case> Cases() {
  std::vector<Case> out;
  for (const Fp8Layout& layout : Fp8Layouts()) {
    const std::string_view name = layout.name;
    if (name == "scalar" || name == "inverse") out.push_back({layout, false});
    if (name == "rows" || name == "inverse_bf16") out.push_back({layout, true});
  }
  return out;
}

class DeviceFp8Test : public ::testing::TestWithParam<Case> {};

TEST_P(DeviceFp8Test, PackedDequantisedAndInBf16TheyGiveTheSameBits) {
  const Fp8Model weights = Fp8ModelMaker(GetParam().layout).Make(GetParam().has_experts);
  const TestFolder coded("device_coded");
  const TestFolder plain("device_plain");
  coded.Write(weights.config, weights.fp8);
  plain.Write(weights.config, weights.bf16);
  WeightsOnDevice packed(coded.path(), /*keeps_packed=*/true);
  WeightsOnDevice dequantised(coded.path(), /*keeps_packed=*/false);
  WeightsOnDevice in_bf16(plain.path(), /*keeps_packed=*/true);
  for (WeightsOnDevice* one : {&packed, &dequantised, &in_bf16}) {
    ASSERT_TRUE(one->fixture.status().ok()) << one->fixture.status();
  }
  EXPECT_EQ(packed.fixture.model().numerics_id(), dequantised.fixture.model().numerics_id());
  EXPECT_EQ(dequantised.model().packed_bytes(), 0u);
  EXPECT_EQ(dequantised.model().weight_bytes(), in_bf16.model().weight_bytes());
  // All matrices but the embedding and the router.
  EXPECT_GT(packed.model().packed_bytes(), packed.model().weight_bytes() / 2);
  EXPECT_LT(packed.model().weight_bytes(), in_bf16.model().weight_bytes());

  std::vector<TokenId> tokens;
  for (TokenId i = 0; i < 150; ++i) tokens.push_back((i * 37 + 5) % 263);
  const std::span<const TokenId> all(tokens);
  // A prompt that has each matrix unpacked, rows that read it packed, both at once.
  const auto run = [&](const std::vector<Chunk>& chunks, bool all_rows) {
    const auto wanted = in_bf16.fixture.Run(chunks, all_rows);
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    for (WeightsOnDevice* one : {&packed, &dequantised}) {
      const auto got = one->fixture.Run(chunks, all_rows);
      ASSERT_TRUE(got.ok()) << got.status();
      ASSERT_TRUE(std::equal(got->begin(), got->end(), wanted->begin(), wanted->end()));
    }
  };
  run({{0, 0, all.first(30)}}, /*all_rows=*/true);
  run({{0, 30, all.subspan(30, 1)}, {1, 0, all.first(5)}}, /*all_rows=*/false);
  run({{1, 5, all.subspan(5, 140)}}, /*all_rows=*/true);
  EXPECT_EQ(packed.fixture.KvBytes(0, 31), in_bf16.fixture.KvBytes(0, 31));
  EXPECT_EQ(packed.fixture.KvBytes(1, 145), in_bf16.fixture.KvBytes(1, 145));
}

INSTANTIATE_TEST_SUITE_P(, DeviceFp8Test, ::testing::ValuesIn(Cases()), [](const auto& info) {
  return std::string(info.param.layout.name) + (info.param.has_experts ? "_experts" : "");
});

}  // namespace
}  // namespace baton::model
