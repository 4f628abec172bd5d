// The table of cuBLASLt's functions: where a library is looked for, what is said of one that will
// not do, and a product through it.
#include "kernels/cublaslt/cublaslt_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cublaslt/lt_product.h"
#include "kernels/math.h"
#include "tests/cublaslt/loopback_library.h"

namespace baton::kernels::cublaslt {
namespace {

using cublaslt_test::BuiltLibrary;
using cublaslt_test::LoopbackPath;
using cublaslt_test::LoopbackTable;
using cublaslt_test::ScopedFaults;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kVariable = "BATON_CUBLASLT_LIBRARY";

class CublasLtLibrary : public testing::Test {
 protected:
  ~CublasLtLibrary() override { unsetenv(kVariable); }
};

std::string MessageOf(const StatusOr<CublasLtTable>& table) {
  return std::string(table.status().message());
}

TEST_F(CublasLtLibrary, TheFlagNamesALibraryAndEveryFunctionIsFound) {
  setenv(kVariable, "/nowhere/else.so", 1);
  const StatusOr<CublasLtTable> table = LoadCublasLt({.library = LoopbackPath()});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->path, LoopbackPath());
  EXPECT_EQ(table->version, 130'000u);
#define BATON_EXPECT(name) EXPECT_NE(table->name, nullptr) << #name;
  BATON_CUBLASLT_FUNCTIONS(BATON_EXPECT)
#undef BATON_EXPECT
}

TEST_F(CublasLtLibrary, TheEnvironmentComesNext) {
  setenv(kVariable, LoopbackPath().c_str(), 1);
  const StatusOr<CublasLtTable> table = LoadCublasLt({});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->path, LoopbackPath());
}

TEST_F(CublasLtLibrary, PythonPackagesComeLast) {
  if (dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL) != nullptr) {
    GTEST_SKIP() << "the loader's path has a cuBLASLt, which comes before";
  }
  std::string packages = testing::TempDir() + "/packages_XXXXXX";
  ASSERT_NE(mkdtemp(packages.data()), nullptr);
  const std::filesystem::path lib = std::filesystem::path(packages) / "nvidia/cu13/lib";
  std::filesystem::create_directories(lib);
  std::filesystem::create_symlink(LoopbackPath(), lib / "libcublasLt.so.13");
  const StatusOr<CublasLtTable> table = LoadCublasLt({.python_folders = {"/nowhere", packages}});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->path, (lib / "libcublasLt.so.13").string());
  std::filesystem::remove_all(packages);
}

TEST_F(CublasLtLibrary, AMissingLibraryIsNotFoundAndSaysWhereWasLooked) {
  const StatusOr<CublasLtTable> named = LoadCublasLt({.library = "/nowhere/libcublasLt.so"});
  EXPECT_EQ(named.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(named), HasSubstr("/nowhere/libcublasLt.so"));
  EXPECT_THAT(MessageOf(named), HasSubstr("--cublaslt-library or BATON_CUBLASLT_LIBRARY"));
  // A user who names a library gets no other one.
  EXPECT_THAT(MessageOf(named), Not(HasSubstr("libcublasLt.so.13")));
  EXPECT_THAT(MessageOf(named), Not(HasSubstr("\n")));
}

TEST_F(CublasLtLibrary, ALibraryThatLacksFunctionsIsRefusedByTheirNames) {
  const auto table = LoadCublasLt({.library = BuiltLibrary("libbaton_cublaslt_partial.so")});
  EXPECT_EQ(table.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(table), HasSubstr("libbaton_cublaslt_partial.so"));
  EXPECT_THAT(MessageOf(table), HasSubstr("lacks cublasLtCreate, cublasLtDestroy"));
}

TEST_F(CublasLtLibrary, AnOldVersionIsRefusedByBothNumbers) {
  const ScopedFaults faults("version=120903");
  const StatusOr<CublasLtTable> table = LoadCublasLt({.library = LoopbackPath()});
  EXPECT_EQ(table.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(table), HasSubstr("is version 12.9.3, the oldest that works is 13.0.0"));
}

// ---- A product: 3 x 24 x 40, in which every value and every sum is exact.

class LtProductTest : public testing::TestWithParam<bool> {
 protected:
  static constexpr uint32_t kM = 3;
  static constexpr uint32_t kN = 24;
  static constexpr uint32_t kK = 40;

  LtProductTest() : x_(kM * kK), w_(kN * kK), y_(kM * kN * sizeof(float)) {
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = Bf16FromFloat(static_cast<float>(i % 5) - 2);
    for (size_t i = 0; i < w_.size(); ++i) w_[i] = Bf16FromFloat(static_cast<float>(i % 3) - 1);
  }
  LtOperands Operands() { return {x_.data(), w_.data(), y_.data(), kM}; }
  float Got(size_t i) const {
    if (GetParam()) return reinterpret_cast<const float*>(y_.data())[i];
    return FloatFromBf16(reinterpret_cast<const uint16_t*>(y_.data())[i]);
  }
  float Expected(size_t i) const {
    float sum = 0;
    for (uint32_t k = 0; k < kK; ++k) {
      sum += FloatFromBf16(x_[i / kN * kK + k]) * FloatFromBf16(w_[i % kN * kK + k]);
    }
    return sum;
  }

  std::vector<uint16_t> x_;
  std::vector<uint16_t> w_;
  std::vector<std::byte> y_;
};

TEST_P(LtProductTest, RowsTimesWeightsInEitherType) {
  const auto handle = LtHandle::Create(LoopbackTable());
  ASSERT_TRUE(handle.ok()) << handle.status();
  const auto product = LtProduct::Create(**handle, {kN, kK, GetParam()});
  ASSERT_TRUE(product.ok()) << product.status();
  const auto algorithms = (*product)->Candidates(kM, 0, 8);
  ASSERT_TRUE(algorithms.ok()) << algorithms.status();
  ASSERT_EQ(algorithms->size(), 2u);
  for (const cublasLtMatmulAlgo_t& algorithm : *algorithms) {
    std::fill(y_.begin(), y_.end(), std::byte{0xFF});
    ASSERT_TRUE((*product)->Multiply(algorithm, Operands(), {nullptr, 0}, nullptr).ok());
    for (size_t i = 0; i < kM * kN; ++i) ASSERT_EQ(Got(i), Expected(i)) << i;
  }
}

TEST_P(LtProductTest, WhatTheLibraryDoesNotTakeIsSaid) {
  const auto handle = LtHandle::Create(LoopbackTable());
  ASSERT_TRUE(handle.ok()) << handle.status();
  const auto product = LtProduct::Create(**handle, {kN, kK, GetParam()});
  ASSERT_TRUE(product.ok()) << product.status();
  const auto algorithms = (*product)->Candidates(kM, 0, 1);
  ASSERT_TRUE(algorithms.ok()) << algorithms.status();
  ASSERT_EQ(algorithms->size(), 1u);
  EXPECT_TRUE((*product)->Takes(algorithms->front(), 7, 0));
  EXPECT_FALSE((*product)->Takes(cublasLtMatmulAlgo_t{}, 7, 0)) << "of another library";
  {
    const ScopedFaults faults("multiple=2,fail=3");
    EXPECT_FALSE((*product)->Takes(algorithms->front(), 7, 0));
    EXPECT_TRUE((*product)->Takes(algorithms->front(), 8, 0));
    const Status failed =
        (*product)->Multiply(algorithms->front(), Operands(), {nullptr, 0}, nullptr);
    EXPECT_EQ(failed.code(), StatusCode::kInternal);
    EXPECT_THAT(std::string(failed.message()), HasSubstr("cublasLtMatmul: cuBLAS error 13"));
  }
  const ScopedFaults faults("refuse=24");
  const auto none = (*product)->Candidates(kM, 0, 1);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->empty());
}

INSTANTIATE_TEST_SUITE_P(Outputs, LtProductTest, testing::Bool());

TEST(LtHandleTest, ALibraryThatCannotUseTheDeviceSaysSo) {
  const ScopedFaults faults("create=1");
  const auto handle = LtHandle::Create(LoopbackTable());
  EXPECT_THAT(std::string(handle.status().message()), HasSubstr("cublasLtCreate: cuBLAS error 1"));
}

}  // namespace
}  // namespace baton::kernels::cublaslt
