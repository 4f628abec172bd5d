// Work: a grid of a few ctas an SM walks over the memory, four groups of sixteen bytes a thread
// under way at a time. Bytes: those read and those written. Limit: memory.
#include "kernels/simt/device.h"
#include "tests/kernels/gpu_check/memory_loops.h"

namespace baton::kernels::gpu_check {
inline namespace BATON_BODY {
namespace {

using simt::Vec16;

constexpr uint32_t kUnder = 4;  // groups under way

BATON_DEVICE size_t FirstOf() { return size_t{simt::block().x} * kLoopThreads + simt::thread(); }

BATON_KERNEL(kLoopThreads) ReadKernel(LoopParams params) {
  const size_t step = size_t{params.num_ctas} * kLoopThreads;
  Vec16 sum = {};
  size_t at = FirstOf();
  for (; at + (kUnder - 1) * step < params.num_vecs; at += kUnder * step) {
    Vec16 values[kUnder];
    BATON_UNROLL
    for (uint32_t u = 0; u < kUnder; ++u) values[u] = simt::load_once(params.from + at + u * step);
    BATON_UNROLL
    for (uint32_t u = 0; u < kUnder; ++u) {
      BATON_UNROLL
      for (uint32_t w = 0; w < 4; ++w) sum.words[w] ^= values[u].words[w];
    }
  }
  for (; at < params.num_vecs; at += step) {
    const Vec16 value = simt::load_once(params.from + at);
    BATON_UNROLL
    for (uint32_t w = 0; w < 4; ++w) sum.words[w] ^= value.words[w];
  }
  params.to[FirstOf()] = sum;
}

BATON_KERNEL(kLoopThreads) CopyKernel(LoopParams params) {
  const size_t step = size_t{params.num_ctas} * kLoopThreads;
  size_t at = FirstOf();
  for (; at + (kUnder - 1) * step < params.num_vecs; at += kUnder * step) {
    Vec16 values[kUnder];
    BATON_UNROLL
    for (uint32_t u = 0; u < kUnder; ++u) values[u] = simt::load_once(params.from + at + u * step);
    BATON_UNROLL
    for (uint32_t u = 0; u < kUnder; ++u) params.to[at + u * step] = values[u];
  }
  for (; at < params.num_vecs; at += step) params.to[at] = simt::load_once(params.from + at);
}

BATON_KERNEL(kLoopThreads) FillKernel(FillParams params) {
  const size_t step = size_t{params.num_ctas} * kLoopThreads;
  for (size_t at = FirstOf(); at < params.num_vecs; at += step) {
    Vec16 value;
    BATON_UNROLL
    for (uint32_t w = 0; w < 4; ++w) {
      uint32_t word = 0;
      BATON_UNROLL
      for (uint32_t half = 0; half < 2; ++half) {
        const float uniform = RandomUniform(params.seed, 8 * at + 2 * w + half);
        const simt::Bf16 element = simt::to_bf16(params.mean + uniform * params.spread);
        word |= uint32_t{element.bits} << (16 * half);
      }
      value.words[w] = word;
    }
    params.to[at] = value;
  }
}

// The grid of every loop.
simt::LaunchConfig GridOf(const char* name, uint32_t num_ctas, void* stream) {
  return {.name = name, .grid = {num_ctas, 1, 1}, .num_threads = kLoopThreads, .stream = stream};
}

absl::Status Read(const LoopParams& params, void* stream) {
  return simt::launch(GridOf("Read", params.num_ctas, stream), ReadKernel, params);
}
absl::Status Copy(const LoopParams& params, void* stream) {
  return simt::launch(GridOf("Copy", params.num_ctas, stream), CopyKernel, params);
}
absl::Status Fill(const FillParams& params, void* stream) {
  return simt::launch(GridOf("Fill", params.num_ctas, stream), FillKernel, params);
}

const MemoryLoops kLoops = {.read = Read, .copy = Copy, .fill = Fill};

}  // namespace
}  // namespace BATON_BODY

const MemoryLoops& BATON_BODY::Loops() { return kLoops; }

}  // namespace baton::kernels::gpu_check
