// CheckWgmma, CheckWgmmaAttention: whether a device's wgmma gives the bits of its mma.sync, so that
// GemmBf16 and AttentionPrefill may choose between them. It is published that a Hopper does, and
// an H100 showed it; a model asks the device itself when it is loaded. Host code.
#ifndef BATON_KERNELS_CUDA_WGMMA_CHECK_H_
#define BATON_KERNELS_CUDA_WGMMA_CHECK_H_

#include "kernels/cuda/kernel_table.h"
#include "src/base/status.h"
#include "src/device/accelerator.h"

namespace baton::kernels::cuda {

// True when every kernel of wgmma gives the bits of mma.sync for two tiles of outputs or more, of
// three segments or, where a kernel takes no more, of one; false otherwise, with one line in the
// log unless the device has no wgmma at all. Operands have mixed signs, exponents far apart, tiny
// and huge, subnormals, pairs that nearly cancel, and products so small that it matters how a sum
// starts from zero: by wgmma without C, by mma.sync with a C of 0. Needs 1 MB on the device.
// Errors are the device's; `device` is current.
absl::StatusOr<bool> CheckWgmma(const KernelTable& kernels, device::Accelerator& device);

// As CheckWgmma, for AttentionPrefill at this head_dim over K and V of this type. It checks 40 rows
// of four heads on two, and 310 keys in blocks with NaNs after the last. Needs 1 MB.
absl::StatusOr<bool> CheckWgmmaAttention(const KernelTable& kernels, device::Accelerator& device,
                                         uint32_t head_dim, KvElement element);

}  // namespace baton::kernels::cuda

#endif  // BATON_KERNELS_CUDA_WGMMA_CHECK_H_
