#include "src/base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <memory>
#include <sstream>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

#include "src/base/regular_file.h"

namespace baton {
namespace {

// Mount of one hierarchy of control groups, as /proc/self/mountinfo has it.
struct GroupMount {
  std::string root;   // the group that lies at the mount point, seen from our namespace
  std::string point;  // where it is mounted
  bool is_v2 = false;
};

std::string ReadAll(const std::string& path) { return ReadSystemFile(path).value_or(""); }

// "\040" as the space that it stands for.
std::string Unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto octal = [&](size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] < '8';
    };
    if (text[i] != '\\' || !octal(i + 1) || !octal(i + 2) || !octal(i + 3)) {
      plain += text[i];
      continue;
    }
    plain +=
        static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + text[i + 3] - '0');
    i += 3;
  }
  return plain;
}

bool HasName(const std::string& list, std::string_view name) {
  const std::vector<std::string> names = absl::StrSplit(list, ',');
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The hierarchies that can hold a quota of processor time.
std::vector<GroupMount> GroupMounts(const std::string& root) {
  std::vector<GroupMount> mounts;
  std::istringstream lines(ReadAll(root + "/proc/self/mountinfo"));
  for (std::string line; std::getline(lines, line);) {
    // ID PARENT DEVICE ROOT POINT OPTIONS [TAGS...] - TYPE SOURCE OPTIONS
    const std::vector<std::string> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    const std::vector<std::string> left = absl::StrSplit(halves[0], ' ');
    const std::vector<std::string> right = absl::StrSplit(halves[1], ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    const bool is_v1 = right[0] == "cgroup" && HasName(right[2], "cpu");
    if (!is_v1 && right[0] != "cgroup2") continue;
    mounts.push_back({.root = Unescaped(left[3]), .point = Unescaped(left[4]), .is_v2 = !is_v1});
  }
  if (!mounts.empty()) return mounts;
  return {{.root = "/", .point = "/sys/fs/cgroup", .is_v2 = true},
          {.root = "/", .point = "/sys/fs/cgroup/cpu"}};
}

// Our group in one of the hierarchies of /proc/self/cgroup ("4:cpu,cpuacct:/a", "0::/a/b").
std::optional<std::string> OwnGroup(const std::string& groups, bool is_v2) {
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const bool is_it = is_v2 ? fields[0] == "0" && fields[1].empty() : HasName(fields[1], "cpu");
    if (is_it) return fields[2];
  }
  return std::nullopt;
}

// `group` as seen from the mount point; "" when it lies elsewhere, as in a container that sees the
// host's name of its group: the mount point is then the nearest that is known.
std::string BelowMount(const std::string& group, const std::string& root) {
  if (root == "/") return group;
  if (group == root) return "";
  return group.starts_with(root + "/") ? group.substr(root.size()) : "";
}

std::optional<double> Quota(std::string_view quota, std::string_view period) {
  double allowed = 0;
  double of = 0;
  const auto read = [](std::string_view text, double* value) {
    return absl::SimpleAtod(absl::string_view(text.data(), text.size()), value);
  };
  if (!read(quota, &allowed) || !read(period, &of)) return std::nullopt;  // "max", or no file
  if (!(allowed > 0) || !(of > 0)) return std::nullopt;                   // -1 = none
  return allowed / of;
}

std::optional<double> QuotaOf(const std::string& folder, bool is_v2) {
  if (!is_v2) {
    return Quota(ReadAll(folder + "/cpu.cfs_quota_us"), ReadAll(folder + "/cpu.cfs_period_us"));
  }
  const std::string text = ReadAll(folder + "/cpu.max");
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return words.size() == 2 ? Quota(words[0], words[1]) : std::nullopt;
}

}  // namespace

std::vector<int> AffinityCpus() {
  // The system refuses a mask that is smaller than its own.
  constexpr size_t kMaxCpus = size_t{1} << 20;
  for (size_t size = 1024; size <= kMaxCpus; size *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE(size);
    const auto free_set = [](cpu_set_t* set) { CPU_FREE(set); };
    const std::unique_ptr<cpu_set_t, decltype(free_set)> set(CPU_ALLOC(size), free_set);
    if (set == nullptr) return {};
    CPU_ZERO_S(bytes, set.get());
    if (sched_getaffinity(0, bytes, set.get()) != 0) {
      if (errno == EINVAL) continue;
      return {};
    }
    std::vector<int> cpus;
    for (size_t cpu = 0; cpu < size; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(static_cast<int>(cpu));
    }
    return cpus;
  }
  return {};
}

bool AreAlike(const std::vector<int>& cpus, const std::string& root) {
  constexpr double kLeastShare = 0.85;  // favoured cores of one kind differ by less
  for (const char* const file : {"cpu_capacity", "cpufreq/cpuinfo_max_freq"}) {
    double slowest = std::numeric_limits<double>::infinity();
    double fastest = 0;
    for (const int cpu : cpus) {
      const std::string text =
          ReadAll(root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/" + file);
      double speed = 0;
      if (!absl::SimpleAtod(text, &speed) || !(speed > 0)) continue;
      slowest = std::min(slowest, speed);
      fastest = std::max(fastest, speed);
    }
    if (slowest < kLeastShare * fastest) return false;
  }
  return true;
}

std::optional<double> CpuQuota(const std::string& root) {
  const std::string groups = ReadAll(root + "/proc/self/cgroup");
  std::optional<double> tightest;
  for (const GroupMount& mount : GroupMounts(root)) {
    const std::optional<std::string> group = OwnGroup(groups, mount.is_v2);
    if (!group) continue;
    std::string below = BelowMount(*group, mount.root);
    while (below.ends_with('/')) below.pop_back();
    while (true) {
      const std::optional<double> quota = QuotaOf(root + mount.point + below, mount.is_v2);
      if (quota && (!tightest || *quota < *tightest)) tightest = quota;
      if (below.empty()) break;
      const size_t slash = below.rfind('/');
      below.resize(slash == std::string::npos ? 0 : slash);
    }
  }
  return tightest;
}

uint32_t CpusWithin(uint32_t num_cpus, std::optional<double> quota) {
  const double cpus = std::max(1u, num_cpus);
  return static_cast<uint32_t>(quota ? std::max(1.0, std::min(cpus, std::ceil(*quota))) : cpus);
}

}  // namespace baton
