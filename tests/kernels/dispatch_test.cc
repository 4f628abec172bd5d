
#include "gtest/gtest.h"

#include "kernels/ops.h"
#include "tests/kernels/kernel_fixtures.h"

namespace baton::kernels {
namespace {

TEST(OpsFor, PortableAlwaysRunsAndAutoIsTheWidestThatRuns) {
  ASSERT_TRUE(OpsFor(Isa::kPortable).ok());
  const Ops* best = OpsFor(Isa::kAuto).value();
  for (Isa isa : {Isa::kAvx512, Isa::kAvx2, Isa::kPortable}) {
    if (const auto ops = OpsFor(isa); ops.ok()) {
      EXPECT_EQ(best, *ops);
      break;
    }
  }
}

TEST(OpsFor, ARefusalNamesTheMissingFeature) {
  for (Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    const auto ops = OpsFor(isa);
    if (ops.ok()) {
      EXPECT_EQ((*ops)->isa, isa);
      continue;
    }
    EXPECT_EQ(ops.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(ops.status().message().find("feature \""), absl::string_view::npos) << ops.status();
  }
}

TEST(Ops, TheArithmeticTagSaysWhetherProductsAreFused) {
  for (const Body& body : Bodies()) {
    EXPECT_EQ(body.ops->arithmetic, body.fused ? "a16.fma.1" : "a16.muladd.1") << body.name;
  }
  EXPECT_EQ(ReferenceOps().arithmetic, "a16.fma.1");
}

TEST(ParseIsa, TakesTheFourWordsAndNamesThemOtherwise) {
  EXPECT_EQ(ParseIsa("auto").value(), Isa::kAuto);
  EXPECT_EQ(ParseIsa("avx512").value(), Isa::kAvx512);
  EXPECT_EQ(ParseIsa("avx2").value(), Isa::kAvx2);
  EXPECT_EQ(ParseIsa("portable").value(), Isa::kPortable);
  const Status status = ParseIsa("sse").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("\"sse\""), absl::string_view::npos);
}

}  // namespace
}  // namespace baton::kernels
