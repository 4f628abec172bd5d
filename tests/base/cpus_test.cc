#include "src/base/cpus.h"

#include <sched.h>

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

class CpuQuotaTest : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(root_); }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  const std::string root_ = testing::TempDir() + "/cpu_quota_test";
};

TEST_F(CpuQuotaTest, TheTightestAncestorCounts) {
  Write("/proc/self/cgroup", "0::/pod/one\n");
  Write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
  Write("/sys/fs/cgroup/pod/one/cpu.max", "400000 100000\n");
  Write("/sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
  EXPECT_EQ(CpuQuota(root_), 1.5);
  Write("/sys/fs/cgroup/pod/cpu.max", "max 100000\n");
  EXPECT_EQ(CpuQuota(root_), 4.0);
  Write("/sys/fs/cgroup/pod/one/cpu.max", "max 100000\n");
  EXPECT_EQ(CpuQuota(root_), std::nullopt);
}

TEST_F(CpuQuotaTest, InANamespaceTheMountPointIsTheGroup) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  Write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(CpuQuota(root_), 0.5);
}

TEST_F(CpuQuotaTest, AContainerWithTheHostsNameOfItsGroup) {
  Write("/proc/self/cgroup", "7:cpu,cpuacct:/docker/abc\n0::/docker/abc\n");
  Write("/proc/self/mountinfo",
        "40 35 0:30 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro master:11 - cgroup cgroup "
        "rw,cpu,cpuacct\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota(root_), 2.0);
  // A child group that the container made.
  Write("/proc/self/cgroup", "7:cpu,cpuacct:/docker/abc/job\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "25000\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(CpuQuota(root_), 0.5);
}

TEST_F(CpuQuotaTest, HybridHierarchiesAndOtherMountPoints) {
  Write("/proc/self/cgroup", "3:memory:/m\n2:cpu:/a\n0::/b\n");
  Write("/proc/self/mountinfo",
        "1 0 0:1 / /groups/a\\040b rw - cgroup cgroup rw,cpu\n"
        "2 0 0:2 / /groups/memory rw - cgroup cgroup rw,memory\n"
        "3 0 0:3 / /groups/unified rw - cgroup2 cgroup2 rw\n");
  Write("/groups/a b/a/cpu.cfs_quota_us", "-1\n");
  Write("/groups/a b/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota(root_), std::nullopt);
  Write("/groups/a b/cpu.cfs_quota_us", "300000\n");
  Write("/groups/a b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota(root_), 3.0);
  Write("/groups/unified/b/cpu.max", "100000 100000\n");
  EXPECT_EQ(CpuQuota(root_), 1.0);
}

TEST_F(CpuQuotaTest, NothingToReadIsNoQuota) {
  EXPECT_EQ(CpuQuota(root_), std::nullopt);
  Write("/proc/self/cgroup", "0::/a\ngarbage\n");
  Write("/proc/self/mountinfo", "garbage\n - \n");
  for (const char* text : {"", "max", "0 100000", "100000 0", "x y", "-5 100000"}) {
    Write("/sys/fs/cgroup/a/cpu.max", text);
    EXPECT_EQ(CpuQuota(root_), std::nullopt) << text;
  }
}

TEST_F(CpuQuotaTest, ProcessorsOfTwoKindsAreNotAlike) {
  const std::string folder = "/sys/devices/system/cpu/cpu";
  EXPECT_TRUE(AreAlike({0, 1}, root_)) << "nothing is known";
  Write(folder + "0/cpufreq/cpuinfo_max_freq", "5400000\n");
  Write(folder + "1/cpufreq/cpuinfo_max_freq", "5200000\n");
  Write(folder + "2/cpufreq/cpuinfo_max_freq", "3900000\n");
  EXPECT_TRUE(AreAlike({0, 1}, root_)) << "a favoured core";
  EXPECT_FALSE(AreAlike({0, 1, 2}, root_));
  EXPECT_TRUE(AreAlike({2}, root_));
  Write(folder + "0/cpu_capacity", "1024\n");
  Write(folder + "1/cpu_capacity", "446\n");
  EXPECT_FALSE(AreAlike({0, 1}, root_));
  EXPECT_TRUE(AreAlike({}, root_));
}

TEST(CpusTest, AQuotaIsRoundedUp) {
  EXPECT_EQ(CpusWithin(64, std::nullopt), 64u);
  EXPECT_EQ(CpusWithin(64, 1.0), 1u);
  EXPECT_EQ(CpusWithin(64, 1.5), 2u);
  EXPECT_EQ(CpusWithin(64, 0.1), 1u);
  EXPECT_EQ(CpusWithin(2, 12.0), 2u);
  EXPECT_EQ(CpusWithin(0, std::nullopt), 1u);
  EXPECT_EQ(CpusWithin(2048, 1500.5), 1501u);
}

TEST(CpusTest, TheAffinityMaskIsRead) {
  cpu_set_t one;
  CPU_ZERO(&one);
  ASSERT_FALSE(AffinityCpus().empty());
  const int last = AffinityCpus().back();
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_SET(last, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(AffinityCpus(), std::vector<int>{last});
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

}  // namespace
}  // namespace baton
