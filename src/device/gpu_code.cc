#include "src/device/gpu_code.h"

#include <algorithm>
#include <charconv>

#include "fmt/format.h"

namespace baton::device {
namespace {

bool TakeSuffix(std::string_view* text, std::string_view suffix) {
  if (!text->ends_with(suffix)) return false;
  text->remove_suffix(suffix.size());
  return true;
}

bool Serves(std::string_view architecture, ComputeCapability gpu) {
  const bool is_real = TakeSuffix(&architecture, "-real");
  TakeSuffix(&architecture, "-virtual");
  int number = 0;
  const char* const last = architecture.data() + architecture.size();
  const auto [end, error] = std::from_chars(architecture.data(), last, number);
  if (error != std::errc()) return false;
  const int major = number / 10;
  const int minor = number % 10;
  const std::string_view letter(end, static_cast<size_t>(last - end));
  const bool is_family = letter == "f";
  if (!letter.empty() && !is_family) return gpu.major == major && gpu.minor == minor;
  if (gpu.major == major) return gpu.minor >= minor;
  if (is_family) return false;
  // Code for less than sm_90 waits for no launch that it overlaps with, and these overlap.
  constexpr int kOverlapsFrom = 9;
  return !is_real && gpu.major > major && (gpu.major < kOverlapsFrom || major >= kOverlapsFrom);
}

}  // namespace

std::string CudaVersionText(int version) {
  return fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10);
}

std::string_view BuildGpuCode() { return BATON_CUDA_ARCHITECTURES; }

bool GpuCodeServes(std::string_view architectures, ComputeCapability gpu) {
  constexpr std::string_view kBetween = ", ";
  while (!architectures.empty()) {
    const size_t size = std::min(architectures.find(kBetween), architectures.size());
    if (Serves(architectures.substr(0, size), gpu)) return true;
    architectures.remove_prefix(std::min(size + kBetween.size(), architectures.size()));
  }
  return false;
}

bool HasBeenChecked(ComputeCapability gpu) { return gpu.major == 9 && gpu.minor == 0; }

std::string GpuArithmetic(ComputeCapability gpu) {
  return fmt::format("bf16.sm{}{}.1", gpu.major, gpu.minor);
}

}  // namespace baton::device
