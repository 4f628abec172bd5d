// Files of /proc and /sys as numbers. Pure; any thread.
#ifndef BATON_CLI_DOCTOR_PROC_TEXT_H_
#define BATON_CLI_DOCTOR_PROC_TEXT_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace baton::cli {

// Bytes of a line of /proc/meminfo ("MemTotal:  24576 kB"); also a plain count ("HugePages_Total").
std::optional<uint64_t> MeminfoValue(std::string_view text, std::string_view key);

// The processors of "0-3,8,10-11"; empty for a text of another form.
std::set<int> ParseCpuList(std::string_view text);

// A number; empty for "max" and for anything else.
std::optional<uint64_t> ParseCount(std::string_view text);

// The word in brackets of "always [madvise] never"; "" when there is none.
std::string ChosenWord(std::string_view text);

// Steal over all time, of the line "cpu  user nice system idle iowait irq softirq steal ...".
std::optional<double> ParseStealRatio(std::string_view stat_text);

// The cgroup of a controller in /proc/self/cgroup: of version 2 ("0::/a/b") when `controller` is
// "", else of version 1 ("4:memory:/a/b"). Empty when there is none.
std::optional<std::string> CgroupPath(std::string_view text, std::string_view controller);

// "/a/b" -> {"/a/b", "/a", ""}: limits of all of them hold.
std::vector<std::string> WithAncestors(std::string_view path);

}  // namespace baton::cli

#endif  // BATON_CLI_DOCTOR_PROC_TEXT_H_
