// The times that the design sets for the shapes of Llama-3.1-8B in bf16, and what a measured one is
// to them. A share of a limit that was measured in the same run is a target on any device; a time
// is an H200's, and elsewhere it is printed for information only. A target that is missed is told,
// and fails nothing: "pass" is about what is right. Pure.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_TARGETS_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_TARGETS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton::kernels::gpu_check {

// 0 = not set.
struct Target {
  double percent = 0;  // of the limit, at least
  double h200_us = 0;  // at most
};

// A step that is recorded: 1 row at 1024 tokens 70 %, 8 to 64 rows 80 %.
Target DecodeStepTarget(uint32_t rows, uint32_t context);
// A prompt of 2048 tokens, or of 8192, at 75 % of 790 TFLOP/s; at 72 % or, with attention by
// wgmma, 80 %.
struct PromptWork {
  uint32_t tokens;
  double flops;
  bool attends_by_wgmma;
};
Target PromptTarget(const PromptWork& work);
// One layer's attention: 90 % where a launch reads 250 MB and more; in bf16 and at 1024 tokens 7 us
// for 1 row and 13 us for 8.
struct DecodeAttention {
  uint32_t rows;
  uint32_t context;
  size_t kv_bytes;
  bool is_fp8;
};
Target DecodeAttentionTarget(const DecodeAttention& attention);
// Few rows: 85 % up to 32, and up to 64 where wgmma may be used; of "o", which has 33 MB, 70 %.
Target SkinnyProductTarget(std::string_view product, uint32_t rows, bool allows_wgmma);
// 85 %, for formats of 8 bits up to 32 rows.
Target PackedProductTarget(uint32_t digit_bits, uint32_t rows);

// An engine's step of 64 rows takes at most 3 % more than its model's; of a hand-over at most a
// tenth of the time of a copy is waited for.
inline constexpr double kEngineStepRatio = 1.03;
inline constexpr double kExposedOfCopy = 0.10;

// A time, and the limit that it is compared with. `product` is what the driver calls the device.
struct Measured {
  double us;
  double limit_us;  // 0 = not measured
  std::string_view product;
};
// The judgement of a time.
struct TargetResult {
  std::string words;    // to stand behind the number; empty where there is no target
  std::string verdict;  // "met", "missed", "not judged"; empty where there is no target
};
TargetResult Judge(const Target& target, const Measured& measured);
// Judges a ratio, on any device. A NaN means that there was nothing to divide by.
TargetResult JudgeRatio(double most, double ratio);

// Our time by that of another program which did the same in the same run.
struct Comparison {
  double ratio;
  bool is_ahead;
  std::string words;  // "0.93 of its time, ahead"
};
Comparison CompareTimes(double ours_us, double theirs_us);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_TARGETS_H_
