#include "tests/kernels/gpu_check/targets.h"

#include <cmath>

#include "fmt/format.h"

namespace baton::kernels::gpu_check {
namespace {

constexpr double kFlopsPerUs = 790e6;  // of an H200's tensor cores, as measured
constexpr size_t kManyKvBytes = 250'000'000;
constexpr uint32_t kShortContext = 1024;
constexpr uint32_t kSkinnyRows = 32;  // by mma.sync
constexpr uint32_t kSkinnyWgmmaRows = 64;
constexpr double kSkinnyPercent = 85;
constexpr double kSkinnyOutputPercent = 70;

}  // namespace

Target DecodeStepTarget(uint32_t rows, uint32_t context) {
  if (rows == 1 && context == kShortContext) return {.percent = 70};
  if (rows >= 8 && rows <= 64) return {.percent = 80};
  return {};
}

Target PromptTarget(const PromptWork& work) {
  const double share_of_long = work.attends_by_wgmma ? 0.80 : 0.72;
  if (work.tokens == 2048) return {.h200_us = work.flops / (0.75 * kFlopsPerUs)};
  if (work.tokens == 8192) return {.h200_us = work.flops / (share_of_long * kFlopsPerUs)};
  return {};
}

Target DecodeAttentionTarget(const DecodeAttention& attention) {
  if (attention.kv_bytes >= kManyKvBytes) return {.percent = 90};
  if (attention.is_fp8 || attention.context != kShortContext) return {};
  if (attention.rows == 1) return {.h200_us = 7};
  return attention.rows == 8 ? Target{.h200_us = 13} : Target{};
}

Target SkinnyProductTarget(std::string_view product, uint32_t rows, bool allows_wgmma) {
  if (rows > (allows_wgmma ? kSkinnyWgmmaRows : kSkinnyRows)) return {};
  return {.percent = product == "o" ? kSkinnyOutputPercent : kSkinnyPercent};
}

Target PackedProductTarget(uint32_t digit_bits, uint32_t rows) {
  // At 4 bits instructions bind on H200 (gemm_packed.cu).
  return digit_bits == 8 && rows <= kSkinnyRows ? Target{.percent = kSkinnyPercent} : Target{};
}

TargetResult JudgeRatio(double most, double ratio) {
  if (std::isnan(ratio)) {
    return {fmt::format(" (target {:.2f}; the other was not measured)", most), "not judged"};
  }
  const std::string verdict = ratio <= most ? "met" : "missed";
  return {fmt::format(" (target {:.2f}: {})", most, verdict), verdict};
}

TargetResult Judge(const Target& target, const Measured& measured) {
  const auto verdict = [](bool is_met) { return std::string(is_met ? "met" : "missed"); };
  if (target.percent > 0) {
    const std::string words = fmt::format("target {:.0f} %", target.percent);
    if (measured.limit_us <= 0) {
      return {fmt::format(" ({}; the limit was not measured)", words), "not judged"};
    }
    const bool is_met = 100 * measured.limit_us / measured.us >= target.percent;
    return {fmt::format(" ({}: {})", words, verdict(is_met)), verdict(is_met)};
  }
  if (target.h200_us <= 0) return {};
  const std::string words = fmt::format("target of an H200 {:.1f} us", target.h200_us);
  if (measured.product.find("H200") == std::string_view::npos) {
    return {fmt::format(" ({}; this is none)", words), "not judged"};
  }
  const bool is_met = measured.us <= target.h200_us;
  return {fmt::format(" ({}: {})", words, verdict(is_met)), verdict(is_met)};
}

Comparison CompareTimes(double ours_us, double theirs_us) {
  const double ratio = ours_us / theirs_us;
  const bool is_ahead = ratio < 1;
  return {ratio, is_ahead,
          fmt::format("{:.2f} of its time, {}", ratio, is_ahead ? "ahead" : "behind")};
}

}  // namespace baton::kernels::gpu_check
