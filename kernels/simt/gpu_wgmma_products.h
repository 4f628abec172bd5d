// The GPU body of wgmma's products, by shape and by where the first operand is; gpu_wgmma.h has
// what orders them. Included through device.h only; elsewhere than in code for sm_90a each of them
// traps.
#ifndef BATON_KERNELS_SIMT_GPU_WGMMA_PRODUCTS_H_
#define BATON_KERNELS_SIMT_GPU_WGMMA_PRODUCTS_H_

#include <cstdint>

#include "kernels/simt/gpu_body.h"
#include "kernels/simt/types.h"

namespace baton::kernels::simt {
inline namespace gpu {

#define BATON_SUMS_OF(j) \
  "+f"(sums[j].values[0]), "+f"(sums[j].values[1]), "+f"(sums[j].values[2]), "+f"(sums[j].values[3])
#define BATON_EIGHT_SUMS(j)                                                           \
  BATON_SUMS_OF(j), BATON_SUMS_OF(j + 1), BATON_SUMS_OF(j + 2), BATON_SUMS_OF(j + 3), \
      BATON_SUMS_OF(j + 4), BATON_SUMS_OF(j + 5), BATON_SUMS_OF(j + 6), BATON_SUMS_OF(j + 7)

// sums = a b^T, plus sums when `adds`: a is 64 rows, b as many as there are columns, of one step of
// 16 columns of their tiles. Asynchronous: until wgmma_finish the sums are not the caller's, and
// until a wait that covers its group neither are the tiles. The threads of a warpgroup call at the
// same line with the same operands; sums[j] is thread t's part of columns [8j, 8j + 8) of rows
// [16 (t / 32), 16 (t / 32) + 16), as FragmentC says. Orders nothing.
BATON_DEVICE void wgmma_bf16_m64k16(FragmentC (&sums)[1], TileDescriptor a, TileDescriptor b,
                                    bool adds, Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0; }"
      : BATON_SUMS_OF(0)
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<uint32_t>(adds)));
#else
  __trap();
#endif
}
BATON_DEVICE void wgmma_bf16_m64k16(FragmentC (&sums)[4], TileDescriptor a, TileDescriptor b,
                                    bool adds, Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, %16, %17, p, 1, 1, 0, 0; }"
      : BATON_SUMS_OF(0), BATON_SUMS_OF(1), BATON_SUMS_OF(2), BATON_SUMS_OF(3)
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<uint32_t>(adds)));
#else
  __trap();
#endif
}
BATON_DEVICE void wgmma_bf16_m64k16(FragmentC (&sums)[8], TileDescriptor a, TileDescriptor b,
                                    bool adds, Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, p, 1, 1, 0, 0; }"
      : BATON_EIGHT_SUMS(0)
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<uint32_t>(adds)));
#else
  __trap();
#endif
}
BATON_DEVICE void wgmma_bf16_m64k16(FragmentC (&sums)[16], TileDescriptor a, TileDescriptor b,
                                    bool adds, Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, 0, 0; }"
      : BATON_EIGHT_SUMS(0), BATON_EIGHT_SUMS(8)
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<uint32_t>(adds)));
#else
  __trap();
#endif
}
BATON_DEVICE void wgmma_bf16_m64k16(FragmentC (&sums)[24], TileDescriptor a, TileDescriptor b,
                                    bool adds, Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
      "}, %96, %97, p, 1, 1, 0, 0; }"
      : BATON_EIGHT_SUMS(0), BATON_EIGHT_SUMS(8), BATON_EIGHT_SUMS(16)
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<uint32_t>(adds)));
#else
  __trap();
#endif
}
BATON_DEVICE void wgmma_bf16_m64k16(FragmentC (&sums)[32], TileDescriptor a, TileDescriptor b,
                                    bool adds, Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127"
      "}, %128, %129, p, 1, 1, 0, 0; }"
      : BATON_EIGHT_SUMS(0), BATON_EIGHT_SUMS(8), BATON_EIGHT_SUMS(16), BATON_EIGHT_SUMS(24)
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<uint32_t>(adds)));
#else
  __trap();
#endif
}
// sums += a b: the warpgroup has a in registers, its warp w rows [16 w, 16 w + 16) as FragmentA
// says, which stay as they are until the wgmma_finish that takes them; b is 16 rows of its tiles.
BATON_DEVICE void wgmma_bf16_m64k16(FragmentC (&sums)[8], const FragmentA& a, ColumnsDescriptor b,
                                    Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1; }"
      : BATON_EIGHT_SUMS(0)
      : "r"(a.regs[0]), "r"(a.regs[1]), "r"(a.regs[2]), "r"(a.regs[3]), "l"(b.bits), "r"(1));
#else
  __trap();
#endif
}
BATON_DEVICE void wgmma_bf16_m64k16(FragmentC (&sums)[16], const FragmentA& a, ColumnsDescriptor b,
                                    Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1; }"
      : BATON_EIGHT_SUMS(0), BATON_EIGHT_SUMS(8)
      : "r"(a.regs[0]), "r"(a.regs[1]), "r"(a.regs[2]), "r"(a.regs[3]), "l"(b.bits), "r"(1));
#else
  __trap();
#endif
}
BATON_DEVICE void wgmma_bf16_m64k16(FragmentC (&sums)[32], const FragmentA& a, ColumnsDescriptor b,
                                    Site = Here()) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127"
      "}, {%128, %129, %130, %131}, %132, p, 1, 1, 1; }"
      : BATON_EIGHT_SUMS(0), BATON_EIGHT_SUMS(8), BATON_EIGHT_SUMS(16), BATON_EIGHT_SUMS(24)
      : "r"(a.regs[0]), "r"(a.regs[1]), "r"(a.regs[2]), "r"(a.regs[3]), "l"(b.bits), "r"(1));
#else
  __trap();
#endif
}
#undef BATON_EIGHT_SUMS
#undef BATON_SUMS_OF

}  // namespace gpu
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_GPU_WGMMA_PRODUCTS_H_
