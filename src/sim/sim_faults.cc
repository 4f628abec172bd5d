#include "src/sim/sim_faults.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "fmt/format.h"

namespace baton::sim {

using loadgen::RandomDraws;

namespace {

constexpr std::array<std::string_view, kNumFaultKinds> kNames = {
    "kill", "freeze", "one-way", "two-way", "delay", "duplicate", "reorder",
    "flip", "slow",   "memory",  "clock",   "drain", "flap"};

// A router is hit this often by what hits processes; most of a cluster are workers.
constexpr double kRouterShare = 0.08;

// How long each kind lasts, microseconds: [shortest, longest], short ones more often.
struct Span {
  double low_us;
  double high_us;
};
constexpr std::array<Span, kNumFaultKinds> kLasts = {{
    {200'000, 2'000'000},   // kill: until the process is started again
    {20'000, 6'000'000},    // freeze: around the 2 s after which a worker is taken for dead
    {20'000, 6'000'000},    // one-way
    {20'000, 6'000'000},    // two-way
    {100'000, 2'000'000},   // delay
    {100'000, 2'000'000},   // duplicate
    {100'000, 2'000'000},   // reorder
    {100'000, 2'000'000},   // flip
    {100'000, 20'000'000},  // slow: beyond all leases of a hand-off
    {50'000, 3'000'000},    // memory
    {1, 2},                 // clock: at once
    {200'000, 2'000'000},   // drain: from its end until it is started again
    {500'000, 12'000'000},  // flap
}};

}  // namespace

std::string_view FaultKindName(FaultKind kind) { return kNames[static_cast<size_t>(kind)]; }

StatusOr<FaultWeights> ParseFaults(std::string_view text) {
  FaultWeights weights{};
  if (text == "none") return weights;
  if (text == "all") {
    weights.fill(1);
    return weights;
  }
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ',');
  for (const std::string& part : parts) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    size_t kind = 0;
    while (kind < kNumFaultKinds && kNames[kind] != name) ++kind;
    if (kind == kNumFaultKinds) {
      return InvalidArgument("--faults: '{}' is no kind of fault; choose all, none or of {}", name,
                             fmt::join(kNames, ", "));
    }
    double weight = 1;
    if (equals != std::string::npos &&
        (!absl::SimpleAtod(part.substr(equals + 1), &weight) || !(weight >= 0 && weight <= 1e6))) {
      return InvalidArgument("--faults: the weight in '{}' is no number from 0 to 1000000", part);
    }
    weights[kind] = weight;
  }
  return weights;
}

std::string ProcessName(const ClusterShape& shape, uint32_t process) {
  if (shape.IsRouter(process)) return fmt::format("router-{}", process);
  const uint32_t worker = shape.Worker(process);
  if (worker < shape.num_prefill) return fmt::format("prefill-{}", worker);
  return fmt::format("decode-{}", worker - shape.num_prefill);
}

std::string SimFault::ToString(const ClusterShape& shape) const {
  const std::string at = ProcessName(shape, a);
  const std::string link = b == a ? at : at + " > " + ProcessName(shape, b);
  return fmt::format("{} {} {} {} ms, {:.3g}", index, FaultKindName(kind), link, for_us / 1000,
                     size);
}

FaultKind FaultPlan::DrawKind(RandomDraws& draws) const {
  double sum = 0;
  for (const double weight : weights_) sum += weight;
  double left = draws.Uniform() * sum;
  size_t last = 0;
  for (size_t kind = 0; kind < kNumFaultKinds; ++kind) {
    if (weights_[kind] <= 0) continue;
    last = kind;
    left -= weights_[kind];
    if (left < 0) break;
  }
  return static_cast<FaultKind>(last);
}

// Data faults happen between a prefill and a decode worker; the others there or between a router
// and a worker.
void FaultPlan::DrawLink(RandomDraws& draws, SimFault* fault) const {
  const bool is_data = fault->kind == FaultKind::kDuplicate || fault->kind == FaultKind::kReorder ||
                       fault->kind == FaultKind::kBitFlip || fault->kind == FaultKind::kFlap;
  const uint32_t first_decode = shape_.num_routers + shape_.num_prefill;
  if (is_data || Happens(draws, 0.5)) {
    fault->a = shape_.num_routers + static_cast<uint32_t>(draws.Below(shape_.num_prefill));
    fault->b = first_decode + static_cast<uint32_t>(draws.Below(shape_.num_decode));
  } else {
    fault->a = static_cast<uint32_t>(draws.Below(shape_.num_routers));
    fault->b = shape_.num_routers + static_cast<uint32_t>(draws.Below(shape_.num_workers()));
  }
  if (Happens(draws, 0.5)) std::swap(fault->a, fault->b);
}

void FaultPlan::DrawSize(RandomDraws& draws, SimFault* fault) const {
  switch (fault->kind) {
    case FaultKind::kDelay:
      fault->size = LogUniform(draws, 500, 300'000);  // us at most
      break;
    case FaultKind::kDuplicate:
      fault->size = LogUniform(draws, 100, 3'000'000);
      break;
    case FaultKind::kReorder:
      fault->size = LogUniform(draws, 100, 50'000);
      break;
    case FaultKind::kBitFlip:
      fault->size = 0.05 + 0.35 * draws.Uniform();  // share of the messages
      break;
    case FaultKind::kSlowLink:
      fault->size = LogUniform(draws, 10, 3'000);  // times slower
      break;
    case FaultKind::kMemory:
      fault->size = 0.5 + 0.5 * draws.Uniform();  // share of what is available
      break;
    case FaultKind::kClockJump:
      fault->size = LogUniform(draws, 1'000, 15'000'000);  // us forward
      break;
    case FaultKind::kFlap:
      fault->size = LogUniform(draws, 20'000, 2'000'000);  // us between two resets
      break;
    case FaultKind::kDrain:
      fault->size = Happens(draws, 0.5) ? 1 : 0;  // whether a router asks
      break;
    default:
      break;
  }
}

SimFault FaultPlan::Get(uint32_t index) const {
  RandomDraws draws(StreamSeed(seed_, DrawPurpose::kFault, index));
  SimFault fault;
  fault.index = index;
  fault.after_us = static_cast<int64_t>(draws.Exponential() * static_cast<double>(gap_us_));
  fault.kind = DrawKind(draws);
  const Span& lasts = kLasts[static_cast<size_t>(fault.kind)];
  fault.for_us = LogUniformUs(draws, lasts.low_us, lasts.high_us);
  const bool at_process = fault.kind == FaultKind::kKill || fault.kind == FaultKind::kFreeze ||
                          fault.kind == FaultKind::kClockJump;
  const bool at_worker = fault.kind == FaultKind::kMemory || fault.kind == FaultKind::kDrain;
  if (at_worker || (at_process && !Happens(draws, kRouterShare))) {
    fault.a = fault.b =
        shape_.num_routers + static_cast<uint32_t>(draws.Below(shape_.num_workers()));
  } else if (at_process) {
    fault.a = fault.b = static_cast<uint32_t>(draws.Below(shape_.num_routers));
  } else {
    DrawLink(draws, &fault);
  }
  DrawSize(draws, &fault);
  return fault;
}

}  // namespace baton::sim
