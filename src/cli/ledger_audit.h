// The ledger of a cluster, cross-checked: does each KV block that is held have an owner that its
// worker, the other end of its hand-off and a router still know? Pure; any thread.
//
// One look is not atomic: processes are read one after the other while requests come and go. A
// block that a look finds is therefore only a suspect. A suspect that every look of a whole lease
// finds again is an orphan (LedgerAudit).
#ifndef BATON_CLI_LEDGER_AUDIT_H_
#define BATON_CLI_LEDGER_AUDIT_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "src/base/status.h"

namespace baton::cli {

// A row of a worker's /debug/blocks that is neither free nor cached.
struct LedgerBlock {
  uint64_t index = 0;
  uint64_t generation = 0;
  std::string state;
  std::string owner;  // request uid
  uint64_t refs = 0;
  bool kept = false;  // by the prefix cache too: others than its owner may hold it
};

// A row of /debug/requests.
struct LedgerRequest {
  std::string uid;
  int64_t age_ms = 0;
  std::string peer;            // a worker's row: incarnation of the other end; "" = none
  std::string prefill_worker;  // a router's row: where it placed the request; "" = not
  std::string decode_worker;
};

// One process as one look saw it.
struct LedgerProcess {
  std::string worker_id;
  std::string incarnation;
  std::string admin;                       // "host:port"
  bool ready = false;                      // a worker would get a request, says the router
  std::map<std::string, uint64_t> states;  // a worker's blocks by state, all of them
  std::vector<LedgerBlock> held;
  std::vector<LedgerRequest> requests;

  uint64_t num_blocks() const;
};

// All processes as one look saw them.
struct LedgerLook {
  std::vector<LedgerProcess> routers;
  std::vector<LedgerProcess> workers;
};

// A block or a request without an owner, and which side no longer knows it.
struct LedgerSuspect {
  std::string worker_id;
  std::string incarnation;
  bool is_block = true;  // false: a worker's request that no router knows; `block` names its uid
  LedgerBlock block;
  int64_t request_age_ms = -1;  // of the owner at its worker; -1 = that one does not know it
  std::string why;

  // Equal in two looks = the same block of the same allocation. Its fault may have changed: the
  // stream that left the block there has ended elsewhere.
  auto Key() const {
    return std::tie(worker_id, incarnation, is_block, block.index, block.generation, block.owner);
  }
};

// Each fills one process from the JSON of its admin port; DataLoss naming what is wrong with it.
Status ReadLedgerBlocks(std::string_view json, LedgerProcess* process);
Status ReadLedgerRequests(std::string_view json, LedgerProcess* process);
// The workers (not the routers) that /v1/topology names, without blocks and requests.
StatusOr<std::vector<LedgerProcess>> ReadLedgerWorkers(std::string_view json);

// The suspects that one look finds; empty = every held block has its owner.
std::vector<LedgerSuspect> FindSuspects(const LedgerLook& look);

// The suspects of a first look that all looks since have found again.
class LedgerAudit {
 public:
  // Takes a look in.
  void Add(const LedgerLook& look);
  // As the last look saw them; empty = all that was held at the first look has its owner, or has
  // been freed since.
  const std::vector<LedgerSuspect>& suspects() const { return suspects_; }

 private:
  bool is_first_ = true;
  std::vector<LedgerSuspect> suspects_;
};

}  // namespace baton::cli

#endif  // BATON_CLI_LEDGER_AUDIT_H_
