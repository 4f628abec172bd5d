#include "kernels/simt/run_options.h"

#include <algorithm>

#include "fmt/format.h"

#include "kernels/simt/device_memory.h"
#include "kernels/simt/kernel_graph.h"
#include "kernels/simt/run_state.h"
#include "kernels/simt/tensor_core.h"
#include "src/base/status.h"

namespace baton::kernels::simt {
inline namespace runner {
namespace {

// Options and sums of one operating-system thread.
struct ThreadState {
  RunOptions options;
  RunStats stats;
};

ThreadState& State() {
  static thread_local ThreadState state;
  return state;
}

// Refuses a launch that a GPU refuses too.
absl::Status CheckConfig(const LaunchConfig& config) {
  constexpr uint32_t kMaxGridYz = 65535;
  constexpr uint32_t kMaxCtas = 1u << 20;  // the runner's own limit (Epoch)
  const Dim3& grid = config.grid;
  const uint64_t num_ctas = uint64_t{grid.x} * grid.y * grid.z;
  if (num_ctas == 0 || num_ctas > kMaxCtas || grid.y > kMaxGridYz || grid.z > kMaxGridYz) {
    return InvalidArgument("kernel {}: a grid of {} x {} x {} ctas cannot be launched", config.name,
                           grid.x, grid.y, grid.z);
  }
  if (config.num_threads == 0 || config.num_threads > kMaxThreads) {
    return InvalidArgument("kernel {}: {} threads a cta, the range is [1, {}]", config.name,
                           config.num_threads, kMaxThreads);
  }
  if (config.shared_bytes > State().options.max_shared_bytes) {
    return InvalidArgument("kernel {}: {} bytes of shared memory, the limit is {}", config.name,
                           config.shared_bytes, State().options.max_shared_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

void MultiplyBf16(TensorMath math, const Bf16 (*a)[16], const Bf16 (*b)[16], float (*c)[8]) {
  if (math == TensorMath::kFloat) return FloatMultiplyBf16(a, b, c);
  const bool is_ampere = math == TensorMath::kAmpereBits;
  MultiplyBf16(is_ampere ? TensorCore::kAmpere : TensorCore::kHopper, a, b, c);
}

std::string Describe(const RunOptions& options) {
  static constexpr const char* kOrders[] = {"ascending", "descending", "shuffled"};
  static constexpr const char* kLandings[] = {"earliest", "latest", "mixed"};
  return fmt::format(
      "{}, copies {}, seed {}, {} resident ctas", kOrders[static_cast<int>(options.order)],
      kLandings[static_cast<int>(options.landing)], options.seed, options.max_resident_ctas);
}

std::vector<RunOptions> AllOrders(uint32_t num_shuffles, uint64_t seed) {
  std::vector<RunOptions> all;
  for (const Landing landing : {Landing::kEarliest, Landing::kLatest, Landing::kMixed}) {
    RunOptions options;
    options.landing = landing;
    all.push_back(options);
    options.order = Order::kDescending;
    options.max_resident_ctas = 1;
    all.push_back(options);
    options.order = Order::kShuffled;
    for (uint32_t i = 0; i < num_shuffles; ++i) {
      options.seed = seed + i;
      options.max_resident_ctas = 2 + i;
      all.push_back(options);
    }
  }
  return all;
}

void SetRunOptions(const RunOptions& options) { State().options = options; }

ScopedRunOptions::ScopedRunOptions(const RunOptions& options) : previous_(State().options) {
  State().options = options;
}

ScopedRunOptions::~ScopedRunOptions() { State().options = previous_; }

const RunOptions& CurrentRunOptions() { return State().options; }

const RunStats& TotalRunStats() { return State().stats; }

uint32_t calls::MaxSharedBytes() { return State().options.max_shared_bytes; }

absl::Status calls::Run(const LaunchConfig& config, const KernelCall& call) {
  BATON_RETURN_IF_ERROR(CheckConfig(config));
  if (KernelGraph* const graph = KernelGraph::Recording(); graph != nullptr) {
    graph->Append(config, call);
    return absl::OkStatus();
  }
  const FairMutexLock lock(LaunchMutex());
  RunState run(config, call);
  absl::Status outcome = run.Execute();
  RunStats& sum = State().stats;
  ++sum.num_launches;
  sum.most_shared_bytes = std::max(sum.most_shared_bytes, config.shared_bytes);
  sum.num_switches += run.stats().num_switches;
  sum.num_accesses += run.stats().num_accesses;
  sum.num_mma += run.stats().num_mma;
  sum.num_wgmma += run.stats().num_wgmma;
  return outcome;
}

}  // namespace runner
}  // namespace baton::kernels::simt
