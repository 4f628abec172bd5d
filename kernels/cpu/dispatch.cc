#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace baton::kernels {
namespace {

#if defined(__x86_64__)

// Names the first processor feature that the AVX2 bodies need and this machine lacks; "" = none.
// __builtin_cpu_supports also checks that the operating system saves the registers.
std::string_view MissingForAvx2() {
  if (!__builtin_cpu_supports("avx2")) return "avx2";
  if (!__builtin_cpu_supports("fma")) return "fma";
  if (!__builtin_cpu_supports("bmi2")) return "bmi2";
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_F16C) == 0) return "f16c";
  return "";
}

std::string_view MissingForAvx512() {
  if (const std::string_view missing = MissingForAvx2(); !missing.empty()) return missing;
  if (!__builtin_cpu_supports("avx512f")) return "avx512f";
  if (!__builtin_cpu_supports("avx512bw")) return "avx512bw";
  if (!__builtin_cpu_supports("avx512dq")) return "avx512dq";
  if (!__builtin_cpu_supports("avx512vl")) return "avx512vl";
  if (!__builtin_cpu_supports("avx512vnni")) return "avx512vnni";
  return "";
}

#else

std::string_view MissingForAvx2() { return "x86-64"; }
std::string_view MissingForAvx512() { return "x86-64"; }
const Ops& Avx2Ops() { return PortableOps(); }
const Ops& Avx512Ops() { return PortableOps(); }

#endif

absl::StatusOr<const Ops*> Checked(std::string_view isa, std::string_view missing,
                                   const Ops& (*ops)()) {
  if (missing.empty()) return &ops();
  return FailedPrecondition("--isa {} needs the processor feature \"{}\", which this machine lacks",
                            isa, missing);
}

}  // namespace

absl::StatusOr<const Ops*> OpsFor(Isa isa) {
  switch (isa) {
    case Isa::kAuto:
      break;
    case Isa::kPortable:
      return &PortableOps();
    case Isa::kAvx2:
      return Checked("avx2", MissingForAvx2(), Avx2Ops);
    case Isa::kAvx512:
      return Checked("avx512", MissingForAvx512(), Avx512Ops);
  }
  if (MissingForAvx512().empty()) return &Avx512Ops();
  if (MissingForAvx2().empty()) return &Avx2Ops();
  return &PortableOps();
}

absl::StatusOr<Isa> ParseIsa(std::string_view text) {
  if (text == "auto") return Isa::kAuto;
  if (text == "portable") return Isa::kPortable;
  if (text == "avx2") return Isa::kAvx2;
  if (text == "avx512") return Isa::kAvx512;
  return InvalidArgument("isa \"{}\" is not one of auto, avx512, avx2, portable", text);
}

}  // namespace baton::kernels
