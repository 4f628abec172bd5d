#include "src/cli/serve_cores.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/cpus.h"
#include "src/device/thread_pool.h"

namespace baton::cli {
namespace {

// A server and the cores of its workers' homes, prefill workers first.
struct HomesCase {
  ServeWorkers workers;
  std::vector<uint32_t> homes;
};

TEST(ServeCoresTest, HomesAreTheSharesAndDecodeHasWhatIsLeftOver) {
  const std::vector<HomesCase> cases = {
      {{.num_prefill = 1, .num_decode = 1, .threads = 2}, {1, 1}},
      {{.num_prefill = 1, .num_decode = 1, .threads = 8}, {6, 2}},
      {{.num_prefill = 1, .num_decode = 2, .threads = 5}, {3, 1, 1}},
      {{.num_prefill = 4, .num_decode = 1, .threads = 9}, {1, 1, 1, 1, 5}},
      {{.num_prefill = 2, .num_decode = 2, .threads = 7}, {2, 2, 2, 1}},
      {{.num_prefill = 0, .num_decode = 3, .threads = 8}, {3, 3, 2}},
  };
  for (const HomesCase& one : cases) {
    const std::vector<uint32_t> homes = HomeCores(one.workers);
    EXPECT_EQ(homes, one.homes) << one.workers.threads << " threads";
    EXPECT_EQ(std::accumulate(homes.begin(), homes.end(), int64_t{0}), one.workers.threads);
  }
}

TEST(ServeCoresTest, NothingIsLentByOneWorkerOrWhereWorkersShareCores) {
  EXPECT_TRUE(HomeCores({.num_prefill = 0, .num_decode = 1, .threads = 8}).empty());
  EXPECT_TRUE(HomeCores({.num_prefill = 1, .num_decode = 1, .threads = 1}).empty());
  EXPECT_TRUE(HomeCores({.num_prefill = 2, .num_decode = 2, .threads = 3}).empty());
  EXPECT_EQ(*MakeCoreBudget({{.num_prefill = 1, .num_decode = 1, .threads = 1}}), nullptr);
}

TEST(ServeCoresTest, CoresHaveProcessorsWhereThereAreJustAsMany) {
  const std::vector<int> cpus = {1, 4, 5};
  EXPECT_EQ(ProcessorsOfCores(3, cpus, std::nullopt), cpus);
  EXPECT_EQ(ProcessorsOfCores(3, cpus, 2.5), cpus) << "the quota is rounded up";
  EXPECT_TRUE(ProcessorsOfCores(3, cpus, 1.5).empty()) << "a quota below the processors";
  EXPECT_TRUE(ProcessorsOfCores(2, cpus, std::nullopt).empty()) << "the system may choose";
  EXPECT_TRUE(ProcessorsOfCores(4, cpus, std::nullopt).empty()) << "they are shared";
  EXPECT_TRUE(ProcessorsOfCores(0, {}, std::nullopt).empty());
}

TEST(ServeCoresTest, OneWorkerHasABudgetForItsProcessorsAlone) {
  const auto num_cpus = static_cast<int64_t>(AffinityCpus().size());
  const auto budget = MakeCoreBudget({{.num_prefill = 0, .num_decode = 1, .threads = num_cpus}});
  ASSERT_TRUE(budget.ok()) << budget.status();
  const bool is_right_number = num_cpus >= 2 && num_cpus <= device::ThreadPool::kMaxThreads;
  if (!is_right_number || CpuQuota().has_value() || !AreAlike(AffinityCpus())) {
    GTEST_SKIP() << "needs 2 to 256 processors of one kind, no quota";
  }
  ASSERT_NE(*budget, nullptr);
  EXPECT_EQ((*budget)->num_members(), 1u);
  EXPECT_EQ((*budget)->cpu(0), AffinityCpus().front());
  const auto fewer = MakeCoreBudget({{.num_prefill = 0, .num_decode = 1, .threads = num_cpus - 1}});
  ASSERT_TRUE(fewer.ok()) << fewer.status();
  EXPECT_EQ(*fewer, nullptr);
}

TEST(ServeCoresTest, ModelsShareThreadsEqually) {
  const auto shares = [](int64_t threads, size_t num_models) {
    std::vector<int64_t> of_models;
    for (const ServeWorkers& model : ShareAmongModels({.threads = threads}, num_models)) {
      of_models.push_back(model.threads);
    }
    return of_models;
  };
  EXPECT_EQ(shares(7, 1), (std::vector<int64_t>{7}));
  EXPECT_EQ(shares(0, 1), (std::vector<int64_t>{0})) << "one model has them all, as it asks";
  EXPECT_EQ(shares(8, 2), (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(shares(8, 3), (std::vector<int64_t>{3, 3, 2}));
  EXPECT_EQ(shares(2, 3), (std::vector<int64_t>{1, 1, 1})) << "at least one";
}

TEST(ServeCoresTest, TheLineSaysWhetherCoresAreLent) {
  const ServeWorkers workers = {.num_prefill = 1, .num_decode = 1, .threads = 2};
  const std::string line = ThreadsLine(workers, true);
  EXPECT_TRUE(line.starts_with("compute threads: 1 a prefill worker, 1 a decode worker (")) << line;
  EXPECT_TRUE(line.ends_with("; a worker without work lends its own")) << line;
  EXPECT_TRUE(ThreadsLine(workers, false).ends_with(")"));
}

}  // namespace
}  // namespace baton::cli
