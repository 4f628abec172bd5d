// One line of `baton doctor`: what was found, what follows from it, and what to do. Plain data; any
// thread.
#ifndef BATON_CLI_DOCTOR_HOST_CHECK_H_
#define BATON_CLI_DOCTOR_HOST_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace baton::cli {

// The result of a check. A problem keeps Baton from serving here; a warning costs speed or safety.
enum class Verdict : uint8_t { kOk = 0, kWarning = 1, kProblem = 2, kNotApplicable = 3 };
inline constexpr size_t kNumVerdicts = 4;

// "ok", "warning", "problem", "not applicable".
std::string_view VerdictName(Verdict verdict);

// The repair for what a check found.
struct CheckFix {
  std::string text;     // one sentence
  std::string command;  // shell that does it as root on this host; "" = no command does
};

// One check and its result; id and why are literals.
struct HostCheck {
  std::string_view id;   // [a-z0-9_]
  std::string_view why;  // why it matters here
  Verdict verdict = Verdict::kNotApplicable;
  std::string value;  // what was found
  CheckFix fix;       // empty unless warning or problem
};

inline HostCheck AsOk(HostCheck check, std::string value) {
  check.verdict = Verdict::kOk;
  check.value = std::move(value);
  return check;
}
inline HostCheck AsNotApplicable(HostCheck check, std::string value) {
  check.verdict = Verdict::kNotApplicable;
  check.value = std::move(value);
  return check;
}
inline HostCheck AsWarning(HostCheck check, std::string value, CheckFix fix) {
  check.verdict = Verdict::kWarning;
  check.value = std::move(value);
  check.fix = std::move(fix);
  return check;
}
inline HostCheck AsProblem(HostCheck check, std::string value, CheckFix fix) {
  check.verdict = Verdict::kProblem;
  check.value = std::move(value);
  check.fix = std::move(fix);
  return check;
}

}  // namespace baton::cli

#endif  // BATON_CLI_DOCTOR_HOST_CHECK_H_
