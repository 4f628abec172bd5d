// The next step of `baton drain`, from what a router and the worker itself show. Pure; any thread.
#ifndef BATON_CLI_DRAIN_STEP_H_
#define BATON_CLI_DRAIN_STEP_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"

#include "src/cli/ledger_audit.h"

namespace baton::cli {

enum class DrainStep : uint8_t {
  kWait,      // it is on its way
  kAskAgain,  // requests would still be sent there: the order was lost with a lease or a router
  kLeft,
};

// `workers` is what the router has registered. A life that is missing there may be frozen, or the
// router may have just started: only when the process is gone too, or its next life is there, has
// it left. `may_be_there` looks for the process; out of reach is not gone.
inline DrainStep NextDrainStep(const std::vector<LedgerProcess>& workers,
                               const LedgerProcess& leaver,
                               absl::FunctionRef<bool()> may_be_there) {
  for (const LedgerProcess& worker : workers) {
    if (worker.worker_id != leaver.worker_id) continue;
    if (worker.incarnation != leaver.incarnation) return DrainStep::kLeft;
    return worker.ready ? DrainStep::kAskAgain : DrainStep::kWait;
  }
  return may_be_there() ? DrainStep::kWait : DrainStep::kLeft;
}

}  // namespace baton::cli

#endif  // BATON_CLI_DRAIN_STEP_H_
