#include "src/model/compute_device.h"

#ifdef BATON_HAVE_SIMT
#include "kernels/simt/simt_device.h"
#endif

namespace baton {

absl::StatusOr<ComputeDevice> OpenComputeDevice(DeviceKind kind) {
  ComputeDevice out;
  if (kind == DeviceKind::kCpu) return out;
#ifdef BATON_HAVE_SIMT
  if (kind == DeviceKind::kSimt) {
    // One fp32 chain instead of Hopper's bits, which cost ten times as much, and no races looked
    // for: kernel tests do both.
    simt::RunOptions options;
    options.tensor_math = simt::TensorMath::kFloat;
    options.detect_races = false;
    out.accelerator = std::make_unique<simt::SimtDevice>(options);
    out.kernels = &cuda::runner::Kernels();
    return out;
  }
#endif
  return Unimplemented("--device {} is not in this build; use auto or cpu", DeviceKindName(kind));
}

}  // namespace baton
