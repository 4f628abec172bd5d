// Roofline: the least time that a step can take on a device, and the first estimate that a
// scheduler starts from until steps were measured. Pure; any thread.
//
// A step is three parts after one another: the products of the layers, their attention, and the
// output layer; and what ranks exchange between them. Each takes the longer of its bytes over the
// memory's bandwidth and its operations over the peak of the tensor cores (Williams, Waterman,
// Patterson, "Roofline", CACM 2009); kernel launches add to them. Weights are read once a step, K
// and V of a position once for each decode row and once for a whole chunk.
//
// Invariants
//  1. StepLimit rises, or stays, with every field of the shape and of the model.
//  2. FirstEstimate predicts no step shorter than StepLimit's total.
#ifndef BATON_SCHEDULER_ROOFLINE_H_
#define BATON_SCHEDULER_ROOFLINE_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "scheduler/step_cost.h"

namespace baton::scheduler {

// The limits of one device. It is one row of the table in roofline.cc, which names the sources.
struct DeviceLimits {
  std::string_view name;    // as its driver calls it: "NVIDIA H200"
  double read_bytes_per_s;  // of its memory
  double bf16_flops_per_s;  // dense, of the tensor cores
  double l2_bytes;          // a working set up to this may be read faster than the memory allows
  double link_bytes_per_s;  // to another device, in one direction
  uint64_t memory_bytes;    // of the data sheet, whose GB are 10^9 bytes here
};

// The share of its limits that a device is trusted with before anything was measured. A share that
// is too small makes the first chunks smaller than they could be. One that is too large makes
// running streams wait.
inline constexpr double kFirstShare = 0.5;

// Every row of the table.
std::span<const DeviceLimits> KnownDevices();
// The row of exactly this name; null for any other. A variant with other memory or clocks has
// another name, and is not guessed.
const DeviceLimits* FindDevice(std::string_view name);

// The cost of a model. One multiplication and addition are two operations.
struct RooflineModel {
  uint32_t num_layers = 0;
  uint64_t layer_weight_bytes = 0;       // read by a layer in every step
  uint64_t layer_flops_per_row = 0;      // of a layer's products
  uint64_t attention_flops_per_key = 0;  // of a layer, for one row and one key
  uint64_t kv_bytes_per_token = 0;       // K and V of all layers
  uint64_t output_weight_bytes = 0;
  uint64_t output_flops_per_row = 0;
  uint32_t num_launches = 0;            // kernels of a step
  uint64_t exchange_bytes_per_row = 0;  // that a rank reads from the others in all layers
};

// The least time of each part of a step, in microseconds.
struct StepTimes {
  double layers_us = 0;
  double attention_us = 0;
  double output_us = 0;
  double launches_us = 0;
  double exchanges_us = 0;  // between ranks, by the link
  double total_us() const {
    return layers_us + attention_us + output_us + launches_us + exchanges_us;
  }
};

// All zeros for a shape without rows. `model.num_launches` = 0 gives the bound of memory and tensor
// cores alone.
StepTimes StepLimit(const DeviceLimits& device, const RooflineModel& model, const StepShape& shape);

// The weights that a StepCost starts from: the sum of bytes and operations instead of the longer of
// the two, at the share of the limits that a first step is trusted to reach.
StepWeights FirstEstimate(const DeviceLimits& device, const RooflineModel& model);

}  // namespace baton::scheduler

#endif  // BATON_SCHEDULER_ROOFLINE_H_
