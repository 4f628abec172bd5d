// A plan as values.yaml of the Helm chart.
#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "src/base/version.h"
#include "src/cli/plan/plan_report.h"
#include "src/loadgen/quantity.h"

namespace baton::cli {

using kv::KvDtype;
using kv::KvDtypeName;
using loadgen::FormatUs;
using plan::AggregatedKeepingItl;
using plan::ClusterPlan;
using plan::kMemoryShare;
using plan::PlanMemory;

namespace {

constexpr uint64_t kMebibyte = uint64_t{1} << 20;
// The chart scales decode workers at this share of their blocks in use (autoscaling.target).
constexpr double kKvPressure = 0.7;
// The chart asks for 320 MiB beside weights and KV.
constexpr uint64_t kProcessBytes = 512 * kMebibyte;
// Host memory of a process with a GPU, beside the model's files: the driver and staging buffers.
constexpr uint64_t kHostMebibytes = 4096;

uint64_t Mebibytes(uint64_t bytes) { return (bytes + kMebibyte - 1) / kMebibyte; }

// A string as YAML takes it, which is also how JSON writes it.
std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

// One pool of workers.
struct Pool {
  std::string role;
  uint32_t num_workers = 0;
  uint64_t kv_bytes = 0;
};

// The memory that weights leave, in whole MiB; no limit where the memory's size is not known.
uint64_t Room(const PlanReport& report, const PlanMemory& memory) {
  if (memory.device_bytes == 0) return ~uint64_t{0};
  const double room = kMemoryShare * static_cast<double>(memory.device_bytes) -
                      static_cast<double>(std::max(memory.weight_bytes, report.model.file_bytes));
  return room <= 0 ? 0 : static_cast<uint64_t>(room) / kMebibyte * kMebibyte;
}

// Bytes that one sequence of the model's whole context needs, and a block.
uint64_t ContextBytes(const PlanReport& report, const PlanMemory& memory, std::string_view role) {
  const uint64_t num_tokens = report.model.config.context_length;
  const uint64_t bytes =
      role == "prefill" ? memory.KvBytes(num_tokens) : memory.HeldKvBytes(num_tokens);
  return bytes + memory.kv_block_bytes;
}

// The pool of `num_workers` of which `need` fills the share kKvPressure. It holds one sequence of
// the model's whole context where that fits.
Pool PoolOf(const PlanReport& report, const PlanMemory& memory, const Pool& need) {
  const auto wanted = static_cast<uint64_t>(static_cast<double>(need.kv_bytes) / kKvPressure);
  const uint64_t full = ContextBytes(report, memory, need.role);
  const uint64_t bytes = Mebibytes(std::max(wanted, full)) * kMebibyte;
  return {need.role, need.num_workers, std::min(bytes, Room(report, memory))};
}

// The longest context that the pools hold; 0 = the model's own.
uint64_t MaxContext(const PlanReport& report, const PlanMemory& memory,
                    std::span<const Pool> pools) {
  uint64_t least = UINT64_MAX;
  for (const Pool& pool : pools) {
    if (pool.kv_bytes >= ContextBytes(report, memory, pool.role)) continue;
    const uint64_t blocks = pool.kv_bytes / memory.kv_block_bytes;
    const uint64_t besides = uint64_t{memory.state_blocks} + 1;
    least = std::min(least, blocks > besides ? (blocks - besides) * memory.block_tokens : 0);
  }
  return least >= report.model.config.context_length ? 0 : least;
}

std::string GpuText(const PlanReport& report) {
  const uint64_t size = std::max<uint64_t>(1, Mebibytes(report.model.file_bytes));
  return fmt::format(
      "  device: cuda\n"
      "  gpu: {{count: 1, memory: {}MiB}}\n"
      "  # Of the host: 3 and 4 times the model's files, as in profiles/1p1d.yaml, and 4 GiB.\n"
      "  resources:\n"
      "    requests: {{memory: {}Mi}}\n"
      "    limits: {{memory: {}Mi}}\n"
      "  # No spare GPU to surge onto: the old pod drains first.\n"
      "  update: {{maxSurge: 0, maxUnavailable: 1}}\n"
      "  tolerations: [{{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}}]\n",
      report.device.memory_bytes / kMebibyte, 3 * size + kHostMebibytes, 4 * size + kHostMebibytes);
}

std::string CpuText(const PlanReport& report, const PlanMemory& memory, const Pool& pool) {
  const uint64_t bytes =
      std::max(memory.weight_bytes, report.model.file_bytes) + pool.kv_bytes + kProcessBytes;
  const uint32_t threads = std::max(1u, report.device.measured->num_threads);
  return fmt::format(
      "  device: cpu\n"
      "  threads: {}\n"
      "  resources:\n"
      "    requests: {{cpu: \"{}\", memory: {}Mi}}\n"
      "    limits: {{memory: {}Mi}}\n",
      threads, threads, Mebibytes(bytes), Mebibytes(bytes));
}

std::string PoolText(const PlanReport& report, const PlanMemory& memory, const Pool& pool) {
  std::string text = fmt::format("{}:\n  replicas: {}\n  kvMemory: {}MiB\n", pool.role,
                                 pool.num_workers, pool.kv_bytes / kMebibyte);
  return text + (report.device.limits != nullptr ? GpuText(report) : CpuText(report, memory, pool));
}

std::string HeadText(const PlanReport& report, uint64_t max_context) {
  const std::string& name = report.model.file_name;
  const bool is_path = !name.empty() && name.front() != '.' &&
                       name.find_first_of(" \t\r\n\f\v") == std::string::npos;
  std::string text = fmt::format(
      "# baton plan: {:.4g} requests a second of {} tokens with answers of {}, TTFT {}, ITL "
      "{}.\n# Step times {}. {}\n",
      report.load.rate_per_s, report.load.input_tokens, report.load.output_tokens,
      FormatUs(report.objective.ttft_us), FormatUs(report.objective.itl_us),
      report.device.limits != nullptr ? "from half of the device's limits: measure before you rely"
                                      : "at the slow end of what was measured",
      VerdictText(report, report.cautious));
  if (report.device.limits != nullptr) {
    text += fmt::format("image:\n  tag: {}-cuda\n", kVersion);
  }
  text += fmt::format(
      "model:\n  source: hostPath # a folder of every node; or pvc, pull, image\n  path: {}\n"
      "  size: {}MiB\n",
      Quoted(is_path ? name : ""), std::max<uint64_t>(1, Mebibytes(report.model.file_bytes)));
  const KvDtype kv_dtype = report.device.kv_dtype();
  if (max_context > 0 || kv_dtype != KvDtype::kBf16) text += "worker:\n";
  if (kv_dtype != KvDtype::kBf16) text += fmt::format("  kvDtype: {}\n", KvDtypeName(kv_dtype));
  if (max_context > 0) text += fmt::format("  maxContext: {}\n", max_context);
  return text;
}

}  // namespace

StatusOr<std::string> PlanValues(const PlanReport& report) {
  const PlanEnd& end = report.cautious;
  if (!end.plan.ok()) return WithPrefix(end.plan.status(), end.name);
  const PlanMemory& memory = end.input.memory;
  const uint64_t longest = uint64_t{report.load.input_tokens} + report.load.output_tokens;
  if (!end.aggregated.split_helps) {
    if (end.aggregated.fewest_workers == 0) {
      return FailedPrecondition("{}", VerdictText(report, end));
    }
    const auto run = AggregatedKeepingItl(end.input, end.aggregated.fewest_workers);
    const uint64_t need = (run->batch_p99 + uint64_t{1}) * memory.HeldKvBytes(longest);
    const Pool all = PoolOf(report, memory, {"decode", run->num_workers, need});
    return HeadText(report, MaxContext(report, memory, {&all, 1})) +
           "router:\n  mode: aggregated\n" + PoolText(report, memory, all);
  }
  const ClusterPlan& plan = *end.plan;
  const std::array<Pool, 2> pools = {
      PoolOf(report, memory, {"prefill", plan.prefill.num_workers, plan.prefill.kv_bytes}),
      PoolOf(report, memory, {"decode", plan.decode.num_workers, plan.decode.kv_bytes})};
  return HeadText(report, MaxContext(report, memory, pools)) + PoolText(report, memory, pools[0]) +
         PoolText(report, memory, pools[1]);
}

}  // namespace baton::cli
