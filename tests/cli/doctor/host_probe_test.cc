// Tests the facts that are read from a tree of files that looks like /proc and /sys.
#include "src/cli/doctor/host_probe.h"

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

// An empty root folder.
class HostProbeTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/host_probe_test";
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  HostFacts Probe() {
    HostFacts facts;
    ProbeProcFiles(root_, &facts);
    return facts;
  }
  std::string root_;
};

TEST_F(HostProbeTest, NothingThereIsNotKnown) {
  const HostFacts facts = Probe();
  EXPECT_EQ(facts.cpu.model, "");
  EXPECT_EQ(facts.cpu.num_numa_nodes, 1u);
  EXPECT_EQ(facts.cpu.load_1m, std::nullopt);
  EXPECT_EQ(facts.memory.total_bytes, std::nullopt);
  EXPECT_EQ(facts.memory.overcommit, std::nullopt);
  EXPECT_EQ(facts.network.first_local_port, std::nullopt);
}

TEST_F(HostProbeTest, MemoryAndItsRules) {
  Write("/proc/meminfo",
        "MemTotal: 2048 kB\nMemAvailable: 1024 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n"
        "HugePages_Total: 2\nHugepagesize: 2048 kB\n");
  Write("/sys/kernel/mm/transparent_hugepage/enabled", "always [never]\n");
  Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "[advise] never\n");
  Write("/proc/sys/vm/overcommit_memory", "2\n");
  const MemoryFacts memory = Probe().memory;
  EXPECT_EQ(memory.total_bytes, 2048u * 1024);
  EXPECT_EQ(memory.available_bytes, 1024u * 1024);
  EXPECT_EQ(memory.swap_used_bytes, 60u * 1024);
  EXPECT_EQ(memory.hugetlb_bytes, 4u << 20);
  EXPECT_EQ(memory.transparent_huge_pages, "never");
  EXPECT_EQ(memory.shmem_huge_pages, "advise");
  EXPECT_EQ(memory.overcommit, 2);
}

TEST_F(HostProbeTest, ProcessorsOfThisProcess) {
  Write("/proc/cpuinfo", "processor : 0\nmodel name\t: A processor\nmodel name\t: another\n");
  Write("/proc/loadavg", "1.25 1.00 0.50 1/100 1\n");
  // Every processor that there can be, so that those of this process are among them.
  Write("/sys/devices/system/node/node0/cpulist", "0-4095\n");
  Write("/sys/devices/system/node/node1/cpulist", "5000\n");
  Write("/sys/devices/system/node/online", "0-1\n");
  const CpuFacts cpu = Probe().cpu;
  EXPECT_EQ(cpu.model, "A processor");
  EXPECT_EQ(cpu.load_1m, 1.25);
  EXPECT_EQ(cpu.num_numa_nodes, 1u) << "node1 has none of ours";
  EXPECT_TRUE(cpu.governors.empty());
}

TEST_F(HostProbeTest, TheTightestLimitOfTheGroupAndItsAncestors) {
  Write("/proc/self/cgroup", "0::/pod/one\n");
  Write("/sys/fs/cgroup/pod/one/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/pod/cpu.max", "250000 100000\n");
  Write("/sys/fs/cgroup/pod/one/memory.max", "4096\n");
  Write("/sys/fs/cgroup/pod/one/memory.current", "100\n");
  Write("/sys/fs/cgroup/pod/memory.max", "1024\n");
  Write("/sys/fs/cgroup/pod/memory.current", "200\n");
  Write("/sys/fs/cgroup/pod/one/pids.max", "max\n");
  const HostFacts facts = Probe();
  EXPECT_EQ(facts.cpu.quota_cpus, 2.5);
  EXPECT_EQ(facts.memory.cgroup_limit_bytes, 1024u);
  EXPECT_EQ(facts.memory.cgroup_used_bytes, 200u);
  EXPECT_EQ(facts.cpu.max_pids, std::nullopt);
}

TEST_F(HostProbeTest, GroupsOfVersionOne) {
  Write("/proc/self/cgroup", "3:cpu:/a\n2:memory:/b\n");
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Probe().cpu.quota_cpus, 0.5);
  EXPECT_EQ(Probe().memory.cgroup_limit_bytes, std::nullopt);
  Write("/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "8192\n");
  EXPECT_EQ(Probe().memory.cgroup_limit_bytes, 8192u);
}

TEST_F(HostProbeTest, SocketsAndTheirLimits) {
  Write("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
  Write("/proc/sys/net/core/somaxconn", "128\n");
  Write("/proc/sys/net/core/wmem_max", "212992\n");
  const NetworkFacts network = Probe().network;
  EXPECT_EQ(network.first_local_port, 32768u);
  EXPECT_EQ(network.last_local_port, 60999u);
  EXPECT_EQ(network.somaxconn, 128u);
  EXPECT_EQ(network.max_send_buffer_bytes, 212992u);
  EXPECT_EQ(network.max_receive_buffer_bytes, std::nullopt);
}

}  // namespace
}  // namespace baton::cli
