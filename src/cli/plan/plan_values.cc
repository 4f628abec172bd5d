// A plan as values.yaml of the Helm chart.
#include <algorithm>
#include <string>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "src/base/version.h"
#include "src/cli/json_fields.h"
#include "src/cli/plan/plan_report.h"
#include "src/loadgen/quantity.h"

namespace baton::cli {

using kv::KvDtype;
using kv::KvDtypeName;
using loadgen::FormatUs;
using plan::AggregatedKeepingItl;
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

// A pool of which `need` fills the share kKvPressure. It holds one sequence of the model's whole
// context where that fits.
uint64_t PoolBytes(const PlanReport& report, const PlanMemory& memory, uint64_t need) {
  const auto wanted = static_cast<uint64_t>(static_cast<double>(need) / kKvPressure);
  const uint64_t full = memory.KvBytes(report.model.config.context_length) + memory.kv_block_bytes;
  const uint64_t bytes = Mebibytes(std::max(wanted, full)) * kMebibyte;
  return std::min(bytes, Room(report, memory));
}

// 0 = the model's own fits the pools.
uint64_t MaxContext(const PlanReport& report, const PlanMemory& memory, uint64_t pool_bytes) {
  const uint64_t blocks = pool_bytes / memory.kv_block_bytes;
  const uint64_t besides = uint64_t{memory.state_blocks} + 1;
  const uint64_t fits = blocks > besides ? (blocks - besides) * memory.block_tokens : 0;
  return fits >= report.model.config.context_length ? 0 : fits;
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
    const uint64_t need = (run->batch_p99 + uint64_t{1}) * memory.KvBytes(longest);
    const Pool all{"decode", run->num_workers, PoolBytes(report, memory, need)};
    return HeadText(report, MaxContext(report, memory, all.kv_bytes)) +
           "router:\n  mode: aggregated\n" + PoolText(report, memory, all);
  }
  const Pool prefill{"prefill", end.plan->prefill.num_workers,
                     PoolBytes(report, memory, end.plan->prefill.kv_bytes)};
  const Pool decode{"decode", end.plan->decode.num_workers,
                    PoolBytes(report, memory, end.plan->decode.kv_bytes)};
  const uint64_t smallest = std::min(prefill.kv_bytes, decode.kv_bytes);
  return HeadText(report, MaxContext(report, memory, smallest)) +
         PoolText(report, memory, prefill) + PoolText(report, memory, decode);
}

}  // namespace baton::cli
