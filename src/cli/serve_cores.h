// How `serve` shares out the compute threads of --threads among its workers, and the core budget by
// which those that have nothing to compute lend theirs. Any thread.
#ifndef BATON_CLI_SERVE_CORES_H_
#define BATON_CLI_SERVE_CORES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/device/core_budget.h"

namespace baton::cli {

// The workers of one model of a server, and the threads of all of them together.
struct ServeWorkers {
  int64_t num_prefill = 1;
  int64_t num_decode = 1;
  int64_t threads = 0;  // 0 = one per processor
};

// The workers of each of `num_models` models, when `all.threads` are shared equally: what is left
// over goes to the first models, and each model has at least one.
std::vector<ServeWorkers> ShareAmongModels(const ServeWorkers& all, size_t num_models);

// Compute threads of each worker of a role.
struct ThreadShare {
  int64_t prefill = 1;
  int64_t decode = 1;
};

// Decode is bound by memory, so one thread in three goes there and the rest to prefill; every
// worker has at least one.
ThreadShare ShareThreads(const ServeWorkers& workers);

// Cores of each member of the budget: the prefill workers, then the decode workers. Each has its
// share; threads that the shares leave over belong to the decode workers in turn. Empty when
// nothing can be lent: one worker, or not more threads than workers need to have one each.
std::vector<uint32_t> HomeCores(const ServeWorkers& workers);

// The processor of each of `num_cores` cores: those of `cpus`, the processors that this server may
// use, when there are just as many and `quota` gives them whole. Else none: then the system has a
// processor to choose, or none to give. Pure.
std::vector<int> ProcessorsOfCores(size_t num_cores, const std::vector<int>& cpus,
                                   std::optional<double> quota);

// The budget of the workers of all models, one model's after the other's. Null when it would serve
// for nothing: no core can be lent, and, of one worker, no thread is kept on a processor. Fails as
// CoreBudget::Create.
StatusOr<std::unique_ptr<device::CoreBudget>> MakeCoreBudget(
    const std::vector<ServeWorkers>& models);

// "compute threads: 1 a prefill worker, 1 a decode worker (2 processors, a CPU quota of 1.0); a
// worker without work lends its own".
std::string ThreadsLine(const ServeWorkers& workers, bool lends);

}  // namespace baton::cli

#endif  // BATON_CLI_SERVE_CORES_H_
