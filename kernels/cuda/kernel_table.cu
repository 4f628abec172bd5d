#include "kernels/cuda/kernel_table.h"

namespace baton::cuda {

namespace {

// Constants, not local statics: their guard would be an atomic, which kernels may not use.
const KernelInfo* const kInfos[] = {
    &kRmsNormInfo,    &kSiluMulInfo,    &kEmbedInfo,       &kGemmRows8Info,
    &kGemmRows32Info, &kGemmTile64Info, &kGemmTile128Info,
};
const KernelTable kTable = {RmsNorm,  SiluMul, Embed,
                            GemmBf16, kInfos,  sizeof(kInfos) / sizeof(kInfos[0])};

}  // namespace

const KernelTable& BATON_BODY::Kernels() { return kTable; }

}  // namespace baton::cuda
