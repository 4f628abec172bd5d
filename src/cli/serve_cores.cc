#include "src/cli/serve_cores.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "fmt/format.h"

#include "src/base/cpus.h"
#include "src/cli/compute_threads.h"
#include "src/device/device.h"

namespace baton::cli {

using device::CoreBudget;
using device::NumUsableCpus;

namespace {

int64_t TotalThreads(const ServeWorkers& workers) {
  return workers.threads > 0 ? workers.threads : int64_t{NumUsableCpus()};
}

}  // namespace

ThreadShare ShareThreads(const ServeWorkers& workers) {
  const int64_t total = TotalThreads(workers);
  ThreadShare share;
  if (workers.num_prefill == 0) {
    share.decode = std::max<int64_t>(1, total / workers.num_decode);
    return share;
  }
  const int64_t decode_total = std::max<int64_t>(workers.num_decode, total / 3);
  share.decode = std::max<int64_t>(1, decode_total / workers.num_decode);
  share.prefill = std::max<int64_t>(1, (total - decode_total) / workers.num_prefill);
  return share;
}

std::vector<uint32_t> HomeCores(const ServeWorkers& workers) {
  const int64_t total = TotalThreads(workers);
  const int64_t num_workers = workers.num_prefill + workers.num_decode;
  // With fewer threads than workers they oversubscribe the cores already; a lent one would add to
  // that.
  if (num_workers < 2 || total < num_workers) return {};
  const ThreadShare share = ShareThreads(workers);
  std::vector<uint32_t> cores(static_cast<size_t>(workers.num_prefill),
                              NumComputeThreads(share.prefill));
  cores.insert(cores.end(), static_cast<size_t>(workers.num_decode),
               NumComputeThreads(share.decode));
  int64_t left = total - workers.num_prefill * share.prefill - workers.num_decode * share.decode;
  for (size_t i = cores.size() - static_cast<size_t>(workers.num_decode); left > 0; --left) {
    ++cores[i];
    if (++i == cores.size()) i = static_cast<size_t>(workers.num_prefill);
  }
  return cores;
}

std::vector<ServeWorkers> ShareAmongModels(const ServeWorkers& all, size_t num_models) {
  std::vector<ServeWorkers> models(num_models, all);
  if (num_models == 1) return models;
  const auto num = static_cast<int64_t>(num_models);
  const int64_t total = TotalThreads(all);
  for (int64_t i = 0; i < num; ++i) {
    const int64_t share = total / num + (i < total % num ? 1 : 0);
    models[static_cast<size_t>(i)].threads = std::max<int64_t>(1, share);
  }
  return models;
}

std::vector<int> ProcessorsOfCores(size_t num_cores, const std::vector<int>& cpus,
                                   std::optional<double> quota) {
  const auto num_cpus = static_cast<uint32_t>(cpus.size());
  const bool is_one_each = num_cores == num_cpus && CpusWithin(num_cpus, quota) == num_cpus;
  return is_one_each ? cpus : std::vector<int>();
}

StatusOr<std::unique_ptr<CoreBudget>> MakeCoreBudget(const std::vector<ServeWorkers>& models) {
  std::vector<uint32_t> cores;
  for (const ServeWorkers& workers : models) {
    std::vector<uint32_t> own = HomeCores(workers);
    const bool is_alone = models.size() == 1 && workers.num_prefill + workers.num_decode == 1;
    if (own.empty() && is_alone) own = {NumComputeThreads(TotalThreads(workers))};
    // A model that can lend nothing has more workers than threads: cores are short for all.
    if (own.empty()) return std::unique_ptr<CoreBudget>();
    cores.insert(cores.end(), own.begin(), own.end());
  }
  const size_t num_cores = std::accumulate(cores.begin(), cores.end(), size_t{0});
  std::vector<int> cpus = ProcessorsOfCores(num_cores, AffinityCpus(), CpuQuota());
  // Where some are slower, the system knows better who needs a fast one.
  if (!AreAlike(cpus)) cpus.clear();
  if (cores.size() == 1 && (num_cores == 1 || cpus.empty())) return std::unique_ptr<CoreBudget>();
  return CoreBudget::Create(cores, cpus);
}

std::string ThreadsLine(const ServeWorkers& workers, bool lends) {
  const ThreadShare share = ShareThreads(workers);
  const std::string prefill =
      workers.num_prefill > 0
          ? fmt::format("{} a prefill worker, ", NumComputeThreads(share.prefill))
          : "";
  const std::optional<double> quota = CpuQuota();
  return fmt::format("compute threads: {}{} a decode worker ({}{} processors{}){}", prefill,
                     NumComputeThreads(share.decode),
                     workers.threads > 0 ? "as --threads asks; " : "", AffinityCpus().size(),
                     quota ? fmt::format(", a CPU quota of {:.1f}", *quota) : "",
                     lends ? "; a worker without work lends its own" : "");
}

}  // namespace baton::cli
