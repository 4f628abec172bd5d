// The output of `baton doctor`. Pure; any thread.
#ifndef BATON_CLI_DOCTOR_DOCTOR_REPORT_H_
#define BATON_CLI_DOCTOR_DOCTOR_REPORT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/cli/doctor/host_check.h"

namespace baton::cli {

// How many checks say what, by Verdict.
std::array<size_t, kNumVerdicts> CountVerdicts(const std::vector<HostCheck>& checks);

// A line a check; beneath what is not in order why it matters and what mends it; a last line of
// counts.
std::string DoctorText(const std::vector<HostCheck>& checks, int64_t elapsed_ms);

// {"verdict", "elapsed_ms", "counts": {..}, "checks": [{"id", "verdict", "value", "why", "fix",
// "command"}]}; "fix" and "command" only where there is one. Ends with a newline.
std::string DoctorJson(const std::vector<HostCheck>& checks, int64_t elapsed_ms);

// A shell script (POSIX sh) with a section for each check that is not in order: its commands, or in
// a comment what a person has to do. Text from the host stands only in comments.
std::string DoctorFixPlan(const std::vector<HostCheck>& checks);

}  // namespace baton::cli

#endif  // BATON_CLI_DOCTOR_DOCTOR_REPORT_H_
