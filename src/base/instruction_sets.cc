#include "src/base/instruction_sets.h"

#include <span>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace baton {
namespace {

// tidy_test compares the names of this file with the flags.
constexpr std::string_view kAvx2Features[] = {"avx2", "fma", "f16c", "bmi", "bmi2"};
constexpr std::string_view kAvx512Features[] = {"avx512f", "avx512bw", "avx512vl", "avx512dq",
                                                "avx512vnni"};

std::string_view FirstMissing(std::span<const std::string_view> features, HasFeature has) {
  for (const std::string_view feature : features) {
    if (!has(feature)) return feature;
  }
  return "";
}

}  // namespace

#if defined(__x86_64__)

namespace {

// Not every compiler's __builtin_cpu_supports knows it.
bool HasF16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

bool ThisProcessorHas(std::string_view name) {
  if (name == "avx2") return __builtin_cpu_supports("avx2") != 0;
  if (name == "fma") return __builtin_cpu_supports("fma") != 0;
  if (name == "f16c") return HasF16c();
  if (name == "bmi") return __builtin_cpu_supports("bmi") != 0;
  if (name == "bmi2") return __builtin_cpu_supports("bmi2") != 0;
  if (name == "avx512f") return __builtin_cpu_supports("avx512f") != 0;
  if (name == "avx512bw") return __builtin_cpu_supports("avx512bw") != 0;
  if (name == "avx512vl") return __builtin_cpu_supports("avx512vl") != 0;
  if (name == "avx512dq") return __builtin_cpu_supports("avx512dq") != 0;
  if (name == "avx512vnni") return __builtin_cpu_supports("avx512vnni") != 0;
  return false;
}

#else

bool ThisProcessorHas(std::string_view) { return false; }

#endif

std::string_view MissingForAvx2(HasFeature has) { return FirstMissing(kAvx2Features, has); }

std::string_view MissingForAvx512(HasFeature has) {
  const std::string_view missing = MissingForAvx2(has);
  return missing.empty() ? FirstMissing(kAvx512Features, has) : missing;
}

bool RunsAvx2() { return MissingForAvx2().empty(); }
bool RunsAvx512() { return MissingForAvx512().empty(); }

}  // namespace baton
