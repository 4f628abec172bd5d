// The file of what was timed: written once, read by who asks the same, and never believed when it
// is damaged or another's.
#include "src/model/product_plan.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/hex.h"
#include "src/base/xxh3.h"
#include "tests/model/open_files.h"

namespace baton::model {
namespace {

using std::chrono_literals::operator""h;
using std::chrono_literals::operator""ms;
using ::testing::HasSubstr;

class ProductPlanTest : public ::testing::Test {
 protected:
  ProductPlanTest() {
    std::string name = ::testing::TempDir() + "/plans_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = std::filesystem::canonical(name).string() + "/products";
  }
  ~ProductPlanTest() override {
    std::filesystem::remove_all(std::filesystem::path(folder_).parent_path());
  }

  static ProductPlan Asked() {
    return {
        .machine = "cuda 'H200' with 132 multiprocessors, cuBLASLt 130002",
        .products = {{{.n = 512, .k = 256}, 256}, {{.n = 304, .k = 128, .is_float = true}, 200}}};
  }
  static ProductPlan Answered() {
    ProductPlan plan = Asked();
    plan.products[0].algorithm = cublasLtMatmulAlgo_t{{1, 2, 3, 4, 5, 6, 7, 0xFEDCBA9876543210}};
    return plan;
  }
  std::string Path() const { return PlanPath(folder_, Asked()); }
  std::string Text() const {
    std::ifstream file(Path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // A text whose hash is right.
  void Write(const std::string& lines) const {
    std::ofstream(Path()) << lines << "hash " << HexFromU64(Xxh3Hash64(lines.data(), lines.size()))
                          << "\n";
  }
  std::string WhatIsWrong() const {
    ProductPlan plan = Asked();
    const Status status = ReadPlan(Path(), &plan);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_FALSE(plan.products[0].algorithm.has_value());
    return std::string(status.message());
  }

  std::string folder_;
};

TEST_F(ProductPlanTest, WhatWasKeptIsReadByWhoAsksTheSame) {
  ProductPlan plan = Asked();
  EXPECT_EQ(ReadPlan(Path(), &plan).code(), StatusCode::kNotFound);
  ASSERT_TRUE(WritePlan(Path(), Answered()).ok());
  ASSERT_TRUE(ReadPlan(Path(), &plan).ok());
  ASSERT_TRUE(plan.products[0].algorithm.has_value());
  EXPECT_EQ(plan.products[0].algorithm->data[7], 0xFEDCBA9876543210);
  EXPECT_FALSE(plan.products[1].algorithm.has_value());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(ProductPlanTest, AnotherQuestionIsAnotherFile) {
  ProductPlan other_machine = Asked();
  other_machine.machine += ".";
  ProductPlan other_rows = Asked();
  other_rows.products[1].rows = 201;
  ProductPlan other_type = Asked();
  other_type.products[0].shape.is_float = true;
  for (const ProductPlan& other : {other_machine, other_rows, other_type}) {
    EXPECT_NE(PlanPath(folder_, other), Path());
  }
}

TEST_F(ProductPlanTest, AnyDamagedByteIsSeen) {
  ASSERT_TRUE(WritePlan(Path(), Answered()).ok());
  const std::string text = Text();
  for (size_t i = 0; i < text.size(); i += 7) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    std::ofstream(Path()) << damaged;
    EXPECT_THAT(WhatIsWrong(), HasSubstr("hash")) << i;
  }
  for (const size_t size : {size_t{0}, size_t{1}, text.size() / 2, text.size() - 1}) {
    std::ofstream(Path()) << text.substr(0, size);
    EXPECT_THAT(WhatIsWrong(), HasSubstr("hash")) << size;
  }
}

TEST_F(ProductPlanTest, AFileOfOthersIsNotBelieved) {
  ASSERT_TRUE(WritePlan(Path(), Answered()).ok());
  const std::string text = Text();
  const std::string lines = text.substr(0, text.rfind("hash "));
  Write("baton products 2\n" + lines.substr(lines.find('\n') + 1));
  EXPECT_THAT(WhatIsWrong(), HasSubstr("another machine or version"));
  Write(lines + "n 8 k 8 bf16 rows 256 none\n");
  EXPECT_THAT(WhatIsWrong(), HasSubstr("other products"));
  Write(lines.substr(0, lines.rfind("n 304")));
  EXPECT_THAT(WhatIsWrong(), HasSubstr("lacks 'n 304 k 128 fp32 rows 200"));
  Write(lines.substr(0, lines.rfind("none")) + "abcd\n");
  EXPECT_THAT(WhatIsWrong(), HasSubstr("'abcd' is no algorithm"));
}

TEST_F(ProductPlanTest, ADamagedFileIsReplaced) {
  ASSERT_TRUE(WritePlan(Path(), Asked()).ok());
  std::ofstream(Path()) << "nonsense";
  ASSERT_TRUE(WritePlan(Path(), Answered()).ok());
  ProductPlan plan = Asked();
  EXPECT_TRUE(ReadPlan(Path(), &plan).ok());
  EXPECT_TRUE(plan.products[0].algorithm.has_value());
}

// A process that was killed while it wrote leaves such a file, on which nobody holds a lock.
TEST_F(ProductPlanTest, AHalfWrittenPlanThatWasLeftIsNoObstacle) {
  const std::string partial = Path() + ".a1b2c3.partial";
  std::ofstream(partial) << "baton products";
  ASSERT_TRUE(WritePlan(Path(), Answered()).ok());
  ProductPlan plan = Asked();
  EXPECT_TRUE(ReadPlan(Path(), &plan).ok());
  EXPECT_TRUE(plan.products[0].algorithm.has_value());
}

TEST_F(ProductPlanTest, OneHasTheTurnAtATime) {
  auto first = std::make_unique<PlanTurn>(folder_, 0ms);
  EXPECT_TRUE(first->is_held());
  const PlanTurn other(folder_, 0ms);
  EXPECT_FALSE(other.is_held());
  EXPECT_THAT(other.failure(), HasSubstr("is locked by another process"));
  std::atomic<bool> is_given_back = false;
  std::thread waits([&] {
    EXPECT_TRUE(PlanTurn(folder_, 1h).is_held());
    EXPECT_TRUE(is_given_back);
  });
  EXPECT_TRUE(WaitUntilOpen(folder_, 2)) << "nobody waits";
  is_given_back = true;
  first.reset();
  waits.join();
  EXPECT_TRUE(PlanTurn(folder_, 0ms).is_held());
}

TEST_F(ProductPlanTest, WhereNothingCanBeLockedNobodyWaits) {
  const PlanTurn turn("/dev/null/nowhere", 1h);
  EXPECT_FALSE(turn.is_held());
  EXPECT_THAT(turn.failure(), HasSubstr("open /dev/null/nowhere: "));
}

TEST_F(ProductPlanTest, WhereNothingCanBeKeptTheReasonIsSaid) {
  const Status status = WritePlan("/dev/null/products/x.plan", Answered());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/dev/null/products"));
}

}  // namespace
}  // namespace baton::model
