#include "kernels/cpu/tables.h"
#include "kernels/ops.h"
#include "src/base/instruction_sets.h"

namespace baton::kernels {
namespace {

#if !defined(__x86_64__)
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
  if (RunsAvx512()) return &Avx512Ops();
  if (RunsAvx2()) return &Avx2Ops();
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
