// Fast mode on the runner, with the loopback of cuBLASLt, whose sums run in other orders: what it
// takes, how far logits are from those of our own kernels, and when it stands back.
#include "src/model/fast_products.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/math.h"
#include "tests/cublaslt/loopback_library.h"
#include "tests/model/on_device.h"
#include "tests/model/open_files.h"

namespace baton::model {

namespace cublaslt = kernels::cublaslt;
namespace cublaslt_test = kernels::cublaslt_test;
namespace cuda = kernels::cuda;
namespace simt = kernels::simt;
using device::Accelerator;
using device::DeviceBuffer;
using device::DeviceKind;
using device::ThreadPool;
using kernels::Bf16FromFloat;

namespace {

using cublaslt_test::NumProducts;
using cublaslt_test::ScopedFaults;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kRows = 152;  // of the prompts here; a model has 200 at most

FastMode Loopback(const std::string& plan_folder = "") {
  return {.library = std::shared_ptr<const cublaslt::CublasLtTable>(
              &cublaslt_test::LoopbackTable(), [](const cublaslt::CublasLtTable*) {}),
          .plan_folder = plan_folder};
}

std::vector<float> AllLogits(WeightsOnDevice& on, uint32_t rows, uint32_t sequence = 0) {
  const std::vector<TokenId> tokens = RandomTokens(rows, 11);
  const auto logits = on.fixture.Run({{sequence, 0, tokens}}, /*all_rows=*/true);
  EXPECT_TRUE(logits.ok()) << logits.status();
  return logits.value_or(std::vector<float>());
}

// Rows of logits in units of each row's root mean square.
struct Distance {
  double worst = 0;
  int num_different = 0;  // logits
  int num_decided = 0;    // rows whose largest leads by more than twice the bound
  int num_wrong = 0;      // of them, with another argmax
};

Distance Compare(const std::vector<float>& exact, const std::vector<float>& fast, size_t vocab,
                 double bound) {
  Distance out;
  for (size_t begin = 0; begin < exact.size(); begin += vocab) {
    const auto row = std::span(exact).subspan(begin, vocab);
    const auto other = std::span(fast).subspan(begin, vocab);
    double rms = 0;
    for (const float value : row) rms += double{value} * value / static_cast<double>(vocab);
    rms = std::sqrt(rms);
    for (size_t i = 0; i < vocab; ++i) {
      out.num_different += row[i] != other[i] ? 1 : 0;
      out.worst = std::max(out.worst, std::fabs(double{row[i]} - other[i]) / rms);
    }
    std::vector<float> sorted(row.begin(), row.end());
    std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
    if (sorted[0] - sorted[1] <= 2 * bound * rms) continue;
    ++out.num_decided;
    const auto argmax = [](std::span<const float> of) {
      return std::max_element(of.begin(), of.end()) - of.begin();
    };
    out.num_wrong += argmax(row) != argmax(other) ? 1 : 0;
  }
  return out;
}

class FastModelTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FastModelTest, LogitsAreWithinTheBoundAndTokensTheSameBeyondIt) {
  for (const bool keeps_packed : {true, false}) {
    WeightsOnDevice exact(Tiny(GetParam()), keeps_packed);
    WeightsOnDevice fast(Tiny(GetParam()), keeps_packed, Loopback());
    ASSERT_TRUE(exact.fixture.status().ok()) << exact.fixture.status();
    ASSERT_TRUE(fast.fixture.status().ok()) << fast.fixture.status();
    ASSERT_FALSE(fast.model().is_deterministic());
    const double bound = FastLogitBound(exact.model().config());
    const Distance distance =
        Compare(AllLogits(exact, kRows), AllLogits(fast, kRows), exact.fixture.vocab(), bound);
    std::printf("%s: %d logits differ, by %.2e at most of bound %.2e; argmax decided on %d of %u\n",
                GetParam(), distance.num_different, distance.worst, bound, distance.num_decided,
                kRows);
    EXPECT_GT(distance.num_different, 0) << "nothing was compared";
    EXPECT_LE(distance.worst, bound);
    EXPECT_GE(distance.num_decided, static_cast<int>(kRows) / 4);
    EXPECT_EQ(distance.num_wrong, 0);
  }
}

// Few rows are ours, in fast mode too.
TEST_P(FastModelTest, StepsOfUpTo128RowsHaveTheBitsOfOurOwnKernels) {
  WeightsOnDevice exact(Tiny(GetParam()), true);
  WeightsOnDevice fast(Tiny(GetParam()), true, Loopback());
  ASSERT_TRUE(fast.fixture.status().ok()) << fast.fixture.status();
  const uint64_t before = NumProducts();
  EXPECT_EQ(AllLogits(exact, kMaxOwnRows), AllLogits(fast, kMaxOwnRows));
  EXPECT_EQ(NumProducts(), before);
}

INSTANTIATE_TEST_SUITE_P(Models, FastModelTest,
                         ::testing::Values("head64_llama", "head64_qwen2", "head128_qwen3",
                                           "head64_gemma3", "head64_lfm2"),
                         [](const auto& info) { return std::string(info.param); });

// A model in fast mode, and one without, of the same file.
class FastProductsTest : public ::testing::Test {
 protected:
  FastProductsTest() {
    std::string name = ::testing::TempDir() + "/fast_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~FastProductsTest() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  static std::string TextOf(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // A model that was given the library and does not use it: it has the numerics of one without.
  static void ExpectOwnKernels(WeightsOnDevice& on) {
    ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
    EXPECT_TRUE(on.model().is_deterministic());
    static const std::string numerics =
        WeightsOnDevice(Tiny("head64_llama"), false).model().numerics_id();
    EXPECT_EQ(on.model().numerics_id(), numerics);
  }

  std::string folder_;
};

TEST_F(FastProductsTest, APromptsProductsAreTheLibrarys) {
  WeightsOnDevice on(Tiny("head64_llama"), false, Loopback());
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const std::vector<TokenId> tokens = RandomTokens(kRows, 1);
  const uint64_t before = NumProducts();
  ASSERT_TRUE(on.fixture.Run({{0, 0, tokens}}).ok());
  EXPECT_EQ(NumProducts() - before, 4 * on.model().config().num_layers)
      << "one row of logits is ours";
  AllLogits(on, kRows, 1);
  EXPECT_EQ(NumProducts() - before, 8 * on.model().config().num_layers + 1);
}

TEST_F(FastProductsTest, ABiasStaysOurs) {
  WeightsOnDevice on(Tiny("head64_qwen2"), false, Loopback());
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const std::vector<TokenId> tokens = RandomTokens(kRows, 1);
  const uint64_t before = NumProducts();
  ASSERT_TRUE(on.fixture.Run({{0, 0, tokens}}).ok());
  EXPECT_EQ(NumProducts() - before, 3 * on.model().config().num_layers);
}

TEST_F(FastProductsTest, NumericsTellTheModesAndVersionsApart) {
  WeightsOnDevice exact(Tiny("head64_llama"), false);
  WeightsOnDevice fast(Tiny("head64_llama"), false, Loopback());
  EXPECT_THAT(exact.model().numerics_text(), HasSubstr(" deterministic=1"));
  EXPECT_THAT(exact.model().numerics_text(), Not(HasSubstr("cublaslt")));
  EXPECT_THAT(fast.model().numerics_text(), HasSubstr(" deterministic=0 cublaslt=13.0.0 rows>128"));
  FastMode newer = Loopback();
  auto table = std::make_shared<cublaslt::CublasLtTable>(cublaslt_test::LoopbackTable());
  table->version = 130'100;
  newer.library = table;
  WeightsOnDevice other(Tiny("head64_llama"), false, newer);
  EXPECT_NE(other.model().numerics_id(), fast.model().numerics_id());
}

TEST_F(FastProductsTest, AModelThatSharesWeightsIsFastToo) {
  WeightsOnDevice first(Tiny("head64_llama"), false, Loopback(folder_));
  ASSERT_TRUE(first.fixture.status().ok()) << first.fixture.status();
  const auto device = first.device.accelerator->Share();
  ASSERT_TRUE(device.ok()) << device.status();
  ThreadPool pool(1);
  const auto second = first.fixture.model().Share({.pool = &pool, .device = device->get()});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_FALSE((*second)->is_deterministic());
  EXPECT_EQ((*second)->numerics_id(), first.model().numerics_id());
}

// The library is asked anew for each part of a device, and may be right on one alone.
TEST_F(FastProductsTest, ModelsThatShareWeightsHaveOneNumerics) {
  const auto share = [](WeightsOnDevice& first, Accelerator* device) {
    ThreadPool pool(1);
    return first.fixture.model().Share({.pool = &pool, .device = device});
  };
  std::optional<ScopedFaults> faults("wrong=0");
  WeightsOnDevice exact(Tiny("head64_llama"), false, Loopback());
  ExpectOwnKernels(exact);
  faults.reset();
  const auto other = exact.device.accelerator->Share();
  ASSERT_TRUE(other.ok()) << other.status();
  const auto also_exact = share(exact, other->get());
  ASSERT_TRUE(also_exact.ok()) << also_exact.status();
  EXPECT_EQ((*also_exact)->numerics_id(), exact.model().numerics_id());

  WeightsOnDevice fast(Tiny("head64_llama"), false, Loopback());
  EXPECT_FALSE(fast.model().is_deterministic());
  const auto part = fast.device.accelerator->Share();
  ASSERT_TRUE(part.ok()) << part.status();
  faults.emplace("wrong=0");
  const auto refused = share(fast, part->get());
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--deterministic"));
}

TEST_F(FastProductsTest, RanksAndExpertsStayWithOurOwnKernels) {
  const ComputeDevice device = *OpenComputeDevice(DeviceKind::kSimt);
  ModelFixture divided({.path = Tiny("ranks2_gemma3"),
                        .max_rows = 200,
                        .num_blocks = 8,
                        .device = device.accelerator.get(),
                        .kernels = device.kernels,
                        .fast = Loopback(),
                        .num_ranks = 2});
  ASSERT_TRUE(divided.status().ok()) << divided.status();
  EXPECT_TRUE(divided.model().is_deterministic());
  WeightsOnDevice experts(Tiny("head64_qwen3moe"), false, Loopback());
  ASSERT_TRUE(experts.fixture.status().ok()) << experts.fixture.status();
  EXPECT_TRUE(experts.model().is_deterministic());
}

// ---- What a library cannot do, or does wrong.

TEST_F(FastProductsTest, AWrongProductTurnsTheLibraryOff) {
  const uint32_t n = 2 * WeightsOnDevice(Tiny("head64_llama"), false).model().config().ffn_size;
  for (const uint32_t wrong : {0u, n}) {
    const ScopedFaults faults(fmt::format("wrong={}", wrong));
    WeightsOnDevice on(Tiny("head64_llama"), false, Loopback());
    ExpectOwnKernels(on);
    if (wrong == 0) continue;
    WeightsOnDevice exact(Tiny("head64_llama"), false);
    EXPECT_EQ(AllLogits(on, kRows), AllLogits(exact, kRows));
  }
}

TEST_F(FastProductsTest, ALibraryThatFailsOrKnowsNothingIsTurnedOff) {
  for (const char* fault : {"create=1", "fail=0", "refuse=0"}) {
    const ScopedFaults faults(fault);
    WeightsOnDevice on(Tiny("head64_llama"), false, Loopback(folder_));
    ExpectOwnKernels(on);
  }
}

TEST_F(FastProductsTest, ARefusedMatrixIsOursAndTheOthersAreNot) {
  const uint32_t n = 2 * WeightsOnDevice(Tiny("head64_llama"), false).model().config().ffn_size;
  const ScopedFaults faults(fmt::format("refuse={}", n));
  WeightsOnDevice on(Tiny("head64_llama"), false, Loopback());
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  const std::vector<TokenId> tokens = RandomTokens(kRows, 1);
  const uint64_t before = NumProducts();
  ASSERT_TRUE(on.fixture.Run({{0, 0, tokens}}).ok());
  EXPECT_EQ(NumProducts() - before, 3 * on.model().config().num_layers);
}

TEST_F(FastProductsTest, RefusedNumbersOfRowsAreOurs) {
  const ScopedFaults faults("multiple=4");
  WeightsOnDevice on(Tiny("head64_llama"), false, Loopback());
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  WeightsOnDevice exact(Tiny("head64_llama"), false);
  uint64_t before = NumProducts();
  EXPECT_EQ(AllLogits(on, kRows - 1), AllLogits(exact, kRows - 1));
  EXPECT_EQ(NumProducts(), before);
  AllLogits(on, kRows, 1);
  EXPECT_GT(NumProducts(), before);
}

TEST_F(FastProductsTest, WhatTheLibraryRefusesInAStepIsOursFromThenOn) {
  WeightsOnDevice on(Tiny("head64_llama"), false, Loopback());
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  WeightsOnDevice exact(Tiny("head64_llama"), false);
  const auto expected = AllLogits(exact, kRows);
  const uint64_t before = NumProducts();
  {
    const ScopedFaults faults(fmt::format("fail={}", kRows));
    EXPECT_EQ(AllLogits(on, kRows), expected);
  }
  EXPECT_EQ(AllLogits(on, kRows, 1), expected) << "it is not asked again";
  EXPECT_EQ(NumProducts(), before);
  AllLogits(on, kRows + 1, 2);
  EXPECT_GT(NumProducts(), before);
}

// ---- Ranges of rows, of one product without a model.

class FastRangesTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kN = 64;
  static constexpr uint32_t kK = 64;
  static constexpr uint32_t kMaxRows = 520;  // ranges end at 256, 512 and 520

  FastRangesTest() : device_(*OpenComputeDevice(DeviceKind::kSimt)) {
    device_.accelerator->MakeCurrent();
    const auto buffer = [this](size_t bytes) {
      return *DeviceBuffer::Create(device_.accelerator.get(), bytes, "of the test");
    };
    x_ = buffer(size_t{kMaxRows} * kK * 2);
    w_ = buffer(size_t{kN} * kK * 2);
    y_ = buffer(size_t{kMaxRows} * kN * 2);
    partials_ = buffer(size_t{1} << 20);
    counters_ = buffer(4096);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    auto* const weights = reinterpret_cast<uint16_t*>(w_.data());  // the runner's memory
    for (uint32_t i = 0; i < kN * kK; ++i) weights[i] = Bf16FromFloat(normal(random));
  }

  cuda::GemmParams Product(uint32_t m, uint32_t n = kN) const {
    return {.x = x_.as<simt::Bf16>(),
            .w = w_.as<simt::Bf16>(),
            .y_bf16 = y_.as<simt::Bf16>(),
            .m = m,
            .n = n,
            .k = kK,
            .partials = partials_.data(),
            .counters = counters_.as<uint32_t>(),
            .partial_bytes = partials_.size_bytes(),
            .num_sms = device_.accelerator->num_sms()};
  }
  // The site that multiplies by the first n rows of the matrix.
  FastSite Site(uint32_t n) {
    return {"product",
            {n, kK},
            &x_,
            &y_,
            kMaxRows,
            [this, n](uint32_t m) {
              return device_.kernels->gemm_bf16(Product(m, n), device_.accelerator->stream());
            },
            [this]() -> StatusOr<const void*> { return w_.data(); }};
  }
  std::unique_ptr<FastProducts> Create() { return Create({Site(kN)}, ""); }
  std::unique_ptr<FastProducts> Create(const std::vector<FastSite>& sites,
                                       const std::string& plan_folder) {
    auto made = FastProducts::Create(Loopback(plan_folder), device_.accelerator.get(), sites);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }

  ComputeDevice device_;
  DeviceBuffer x_;
  DeviceBuffer w_;
  DeviceBuffer y_;
  DeviceBuffer partials_;
  DeviceBuffer counters_;
};

TEST_F(FastRangesTest, EachNumberOfRowsHasTheAlgorithmOfItsRange) {
  const std::unique_ptr<FastProducts> fast = Create();
  ASSERT_NE(fast, nullptr);
  const std::pair<uint32_t, uint64_t> asked_rows[] = {{129, 256}, {256, 256}, {257, 512},
                                                      {512, 512}, {513, 520}, {520, 520}};
  for (const auto& [m, asked] : asked_rows) {
    EXPECT_TRUE(fast->Multiply(Product(m))) << m;
    EXPECT_EQ(cublaslt_test::AskLoopback("baton_cublaslt_loopback_asked_rows"), asked) << m;
  }
  const uint64_t before = NumProducts();
  EXPECT_FALSE(fast->Multiply(Product(128)));
  EXPECT_FALSE(fast->Multiply(Product(521)));
  EXPECT_EQ(NumProducts(), before);
}

TEST_F(FastRangesTest, ARefusedRangeLeavesTheOthers) {
  const ScopedFaults faults("multiple=512");
  const std::unique_ptr<FastProducts> fast = Create();
  ASSERT_NE(fast, nullptr);
  for (const uint32_t m : {256u, 512u, 520u}) EXPECT_TRUE(fast->Multiply(Product(m))) << m;
  for (const uint32_t m : {129u, 255u, 257u, 511u, 519u}) {
    EXPECT_FALSE(fast->Multiply(Product(m))) << m;
  }
}

TEST_F(FastRangesTest, WhatIsWrongInOnePlaceIsFound) {
  for (const char* fault : {"wrong_rows=129", "wrong_rows=257", "wrong_rows=512", "wrong_rows=513",
                            "repeat=64", "repeat=128", "repeat=519"}) {
    const ScopedFaults faults(fault);
    EXPECT_EQ(Create(), nullptr) << fault;
  }
}

// ---- Plans.

TEST_F(FastProductsTest, APlanIsTimedOnceAndKept) {
  uint64_t before = NumProducts();
  WeightsOnDevice first(Tiny("head64_llama"), false, Loopback(folder_));
  ASSERT_FALSE(first.model().is_deterministic());
  const uint64_t num_timed = NumProducts() - before;
  ASSERT_EQ(Files().size(), 5u) << "one for each matrix of a layer, one for the output layer";
  const std::string kept = TextOf(Files()[0]);
  EXPECT_THAT(kept, HasSubstr("cuBLASLt 130000"));

  before = NumProducts();
  WeightsOnDevice second(Tiny("head64_llama"), false, Loopback(folder_));
  // The most and the fewest rows of each matrix and of the output layer are compared with ours.
  EXPECT_EQ(NumProducts() - before, 10u);
  EXPECT_GT(num_timed, 10u);
  EXPECT_EQ(TextOf(Files()[0]), kept);
  EXPECT_EQ(AllLogits(first, kRows), AllLogits(second, kRows));
}

TEST_F(FastProductsTest, WhoWaitedForTheTurnReadsWhatTheOtherFound) {
  const std::string alone = folder_ + "/alone";
  const std::string both = std::filesystem::canonical(folder_).string() + "/both";
  WeightsOnDevice(Tiny("head64_llama"), false, Loopback(alone));
  const uint64_t before = NumProducts();
  std::optional<PlanTurn> turn(std::in_place, both, std::chrono::milliseconds(0));
  ASSERT_TRUE(turn->is_held());
  std::thread waits([&both] {
    WeightsOnDevice on(Tiny("head64_llama"), false, Loopback(both));
    EXPECT_FALSE(on.model().is_deterministic());
  });
  EXPECT_TRUE(WaitUntilOpen(both, 2)) << "it has a plan from somewhere";
  std::filesystem::copy(alone, both);
  turn.reset();
  waits.join();
  EXPECT_EQ(NumProducts() - before, 10u) << "it compares and times nothing";
}

TEST_F(FastProductsTest, ADamagedPlanIsTimedAndWrittenAnew) {
  WeightsOnDevice first(Tiny("head64_llama"), false, Loopback(folder_));
  const std::vector<std::string> files = Files();
  ASSERT_EQ(files.size(), 5u);
  const std::string path = files[0];
  std::ofstream(path) << "nonsense";
  WeightsOnDevice second(Tiny("head64_llama"), false, Loopback(folder_));
  EXPECT_FALSE(second.model().is_deterministic());
  EXPECT_EQ(Files(), files);
  EXPECT_THAT(TextOf(path), HasSubstr("hash "));
}

TEST_F(FastProductsTest, AnotherVersionOfTheLibraryHasAPlanOfItsOwn) {
  WeightsOnDevice first(Tiny("head64_llama"), false, Loopback(folder_));
  FastMode newer = Loopback(folder_);
  auto table = std::make_shared<cublaslt::CublasLtTable>(cublaslt_test::LoopbackTable());
  table->version = 130'100;
  newer.library = table;
  WeightsOnDevice second(Tiny("head64_llama"), false, newer);
  EXPECT_EQ(Files().size(), 10u);
}

// As the two workers of a server do, of which one cannot unpack the output layer.
TEST_F(FastRangesTest, WhoAsksPartlyTheSameReadsThatPart) {
  std::string folder = ::testing::TempDir() + "/fast_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ASSERT_NE(Create({Site(kN), Site(kN / 2)}, folder), nullptr);
  const uint64_t before = NumProducts();
  ASSERT_NE(Create({Site(kN / 2)}, folder), nullptr);
  EXPECT_EQ(NumProducts() - before, 6u) << "it compares three ranges and times nothing";
  std::filesystem::remove_all(folder);
}

TEST_F(FastProductsTest, AWrongPlanIsNotKept) {
  const uint32_t n = 2 * WeightsOnDevice(Tiny("head64_llama"), false).model().config().ffn_size;
  {
    const ScopedFaults faults(fmt::format("wrong={}", n));
    WeightsOnDevice on(Tiny("head64_llama"), false, Loopback(folder_));
    ExpectOwnKernels(on);
    EXPECT_LT(Files().size(), 5u) << "the wrong one was written";
  }
  WeightsOnDevice on(Tiny("head64_llama"), false, Loopback(folder_));
  EXPECT_FALSE(on.model().is_deterministic());
  EXPECT_EQ(Files().size(), 5u);
}

TEST_F(FastProductsTest, WithoutAFolderAllIsTheSame) {
  WeightsOnDevice on(Tiny("head64_llama"), false, Loopback("/dev/null/nowhere"));
  ASSERT_TRUE(on.fixture.status().ok()) << on.fixture.status();
  EXPECT_FALSE(on.model().is_deterministic());
}

}  // namespace
}  // namespace baton::model
