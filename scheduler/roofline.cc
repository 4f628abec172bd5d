#include "scheduler/roofline.h"

#include <algorithm>
#include <array>

namespace baton::scheduler {
namespace {

constexpr double kGiga = 1e9;
constexpr double kTera = 1e12;
constexpr double kMebi = 1 << 20;
constexpr uint64_t kGigabytes = 1'000'000'000;

// Peak of the data sheets without sparsity. Links count one direction, half of what is printed.
// Memory is the data sheets' too (B200: 1,440 GB of the system of eight).
constexpr std::array kDevices = {
    // "NVIDIA A100 Tensor Core GPU" data sheet, 80 GB SXM: 2,039 GB/s, 312 TFLOP/s, NVLink 600
    // GB/s; "NVIDIA A100 architecture" white paper: 40 MB of L2.
    DeviceLimits{"NVIDIA A100-SXM4-80GB", 2'039 * kGiga, 312 * kTera, 40 * kMebi, 300 * kGiga,
                 80 * kGigabytes},
    // Copies measured at 3.0 TB/s (data sheet 3.35). "NVIDIA H100 Tensor Core GPU" data sheet, SXM:
    // 1,979 TFLOP/s with sparsity, NVLink 900 GB/s; "H100 architecture" white paper: 50 MB of L2.
    DeviceLimits{"NVIDIA H100 80GB HBM3", 3'000 * kGiga, 989 * kTera, 50 * kMebi, 450 * kGiga,
                 80 * kGigabytes},
    // Measured: copies 4.3 TB/s (data sheet 4.8), products 790 TFLOP/s (data sheet 989). "NVIDIA
    // H200 Tensor Core GPU" data sheet: NVLink 900 GB/s; the die is H100's.
    DeviceLimits{"NVIDIA H200", 4'300 * kGiga, 790 * kTera, 50 * kMebi, 450 * kGiga,
                 141 * kGigabytes},
    // "NVIDIA DGX B200" data sheet, an eighth of the system: 64 TB/s, 36 PFLOP/s with sparsity,
    // NVLink 14.4 TB/s; "Blackwell tuning guide" of the CUDA documentation: 126 MB of L2.
    DeviceLimits{"NVIDIA B200", 8'000 * kGiga, 2'250 * kTera, 126 * kMebi, 900 * kGiga,
                 180 * kGigabytes},
    // "NVIDIA L40S" data sheet: 864 GB/s, 362 TFLOP/s, PCIe 4.0 x16 64 GB/s; "Ada architecture"
    // white paper: 96 MB of L2.
    DeviceLimits{"NVIDIA L40S", 864 * kGiga, 362 * kTera, 96 * kMebi, 32 * kGiga, 48 * kGigabytes},
};

// The time that a kernel in a stream costs beside its own time: 3.8 us for kernels of 2.9 us (A.
// Gray, "Getting Started with CUDA Graphs", NVIDIA technical blog, 2019; a V100, kernels one after
// another).
constexpr double kLaunchUs = 0.9;

// Bytes and operations of one part.
struct Part {
  double bytes;
  double flops;
};

double ReadUs(const DeviceLimits& device, double bytes) {
  return bytes / device.read_bytes_per_s * 1e6;
}
double ComputeUs(const DeviceLimits& device, double flops) {
  return flops / device.bf16_flops_per_s * 1e6;
}
double LinkUs(const DeviceLimits& device, double bytes) {
  return bytes / device.link_bytes_per_s * 1e6;
}
double LimitUs(const DeviceLimits& device, const Part& part) {
  return std::max(ReadUs(device, part.bytes), ComputeUs(device, part.flops));
}

}  // namespace

std::span<const DeviceLimits> KnownDevices() { return kDevices; }

const DeviceLimits* FindDevice(std::string_view name) {
  for (const DeviceLimits& device : kDevices) {
    if (device.name == name) return &device;
  }
  return nullptr;
}

StepTimes StepLimit(const DeviceLimits& device, const RooflineModel& model,
                    const StepShape& shape) {
  const double rows = static_cast<double>(uint64_t{shape.prefill_tokens} + shape.decode_rows);
  if (rows == 0) return {};
  const double layers = model.num_layers;
  const auto as_double = [](uint64_t value) { return static_cast<double>(value); };
  StepTimes times;
  times.layers_us = LimitUs(device, {layers * as_double(model.layer_weight_bytes),
                                     layers * as_double(model.layer_flops_per_row) * rows});
  times.attention_us = LimitUs(
      device,
      {as_double(model.kv_bytes_per_token) * as_double(shape.kv_tokens),
       layers * as_double(model.attention_flops_per_key) * as_double(shape.attention_keys)});
  if (shape.logit_rows > 0) {
    times.output_us =
        LimitUs(device, {as_double(model.output_weight_bytes),
                         as_double(model.output_flops_per_row) * as_double(shape.logit_rows)});
  }
  times.launches_us = kLaunchUs * model.num_launches;
  times.exchanges_us = LinkUs(device, as_double(model.exchange_bytes_per_row) * rows);
  return times;
}

StepWeights FirstEstimate(const DeviceLimits& device, const RooflineModel& model) {
  const double layers = model.num_layers;
  const double weight_bytes = layers * static_cast<double>(model.layer_weight_bytes) +
                              static_cast<double>(model.output_weight_bytes);
  const double row_us = ComputeUs(device, layers * static_cast<double>(model.layer_flops_per_row) +
                                              static_cast<double>(model.output_flops_per_row)) +
                        LinkUs(device, static_cast<double>(model.exchange_bytes_per_row));
  StepWeights out;
  out.fixed_us = (ReadUs(device, weight_bytes) + kLaunchUs * model.num_launches) / kFirstShare;
  // A prompt's rows are charged for logits too, which only the last of them has: the output layer
  // is a fifteenth of an 8B model.
  out.prefill_token_us = row_us / kFirstShare;
  out.decode_row_us = row_us / kFirstShare;
  // A chunk's keys are read once and not once a row. They are charged as if each row read them,
  // which keeps first chunks after long contexts short.
  const Part key = {static_cast<double>(model.kv_bytes_per_token),
                    layers * static_cast<double>(model.attention_flops_per_key)};
  out.key_us = LimitUs(device, key) / kFirstShare;
  return out;
}

}  // namespace baton::scheduler
