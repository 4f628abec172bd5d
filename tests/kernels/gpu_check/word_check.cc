#include "tests/kernels/gpu_check/word_check.h"

#include <utility>

#include "kernels/simt/tensor_core.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"

namespace baton::kernels::gpu_check {
namespace {

constexpr size_t kMaxMismatches = 8;

bool IsNan(uint32_t word) { return (word & 0x7FFFFFFFu) > 0x7F800000u; }

bool Agree(const WordCheck& check, uint32_t got, uint32_t expected) {
  return got == expected || (check.any_nan && IsNan(got) && IsNan(expected));
}

// Compares, and says where it differs.
void Judge(const WordCheck& check, const std::vector<uint32_t>& got, Finding& finding) {
  size_t num_wrong = 0;
  auto wrong = nlohmann::json::array();
  for (size_t i = 0; i < got.size(); ++i) {
    if (Agree(check, got[i], check.expected[i])) continue;
    ++num_wrong;
    if (wrong.size() < kMaxMismatches) {
      wrong.push_back(fmt::format("[{}] {:08x}, expected {:08x}", i, got[i], check.expected[i]));
    }
  }
  finding.verdict = num_wrong == 0 ? Verdict::kPass : Verdict::kFail;
  finding.detail = num_wrong == 0 ? fmt::format("{} words", got.size())
                                  : fmt::format("{} of {} words differ, first {}", num_wrong,
                                                got.size(), wrong[0].get<std::string>());
  finding.data["wrong"] = std::move(wrong);
}

}  // namespace

absl::Status LaunchAndRead(const StageInput& input, const WordCheck& check,
                           std::vector<uint32_t>& got) {
  DeviceArray<uint32_t> in(input.body, check.in);
  DeviceArray<uint32_t> out(input.body, check.out);
  DeviceArray<uint32_t> scratch(input.body, std::vector<uint32_t>(64));
  for (const auto* array : {&in, &out, &scratch}) BATON_RETURN_IF_ERROR(array->status());
  BATON_RETURN_IF_ERROR(
      check.launch({in.data(), out.data(), scratch.data(), check.count}, check.num_ctas));
  got = out.Values();
  return out.status();
}

Finding RunCheck(const StageInput& input, const WordCheck& check) {
  Finding finding{.name = check.name};
  // A bulk copy traps where there is none; an mma runs, but its bits may be known to nobody.
  const bool is_foreign = check.is_mma && !simt::TensorCoreOf(input.major).has_value();
  if (check.hopper_only && input.major != 9) {
    finding.verdict = Verdict::kNotRun;
    finding.detail = "needs sm_90";
    return finding;
  }
  std::vector<uint32_t> got;
  const absl::Status status = LaunchAndRead(input, check, got);
  if (!status.ok()) {
    finding.verdict = Verdict::kFail;
    finding.detail = std::string(status.message());
    return finding;
  }
  Judge(check, got, finding);
  if (is_foreign) {
    finding.verdict = Verdict::kNotRun;
    finding.detail = "no model of these tensor cores is known; the vectors are kept";
  }
  finding.data["digest_in"] = DigestOf(check.in);
  finding.data["digest_out"] = DigestOf(got);
  finding.data["words_in"] = check.in.size();
  finding.data["words_out"] = got.size();
  if (!check.drawn.empty()) finding.data["drawn"] = check.drawn;
  if (check.drawn.empty() || check.in.size() <= kRawInputWords) {
    finding.data["in"] = HexOf(check.in, kRawInputWords);
  }
  finding.data["out"] = HexOf(got, kRawWords);
  return finding;
}

absl::Status AddCheck(const StageInput& input, const WordCheck& check, Report& report) {
  return report.Begin(check.name) ? report.Add(RunCheck(input, check)) : absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
