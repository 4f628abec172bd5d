#include "src/cli/ledger_audit.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "src/cli/json_fields.h"

namespace baton::cli {
namespace {

using nlohmann::json;

Status CheckRows(const json& rows) {
  if (!rows.is_array()) return DataLoss("an answer that is no JSON array");
  for (const json& row : rows) {
    if (!row.is_object()) return DataLoss("a row that is no JSON object");
  }
  return OkStatus();
}

const LedgerRequest* FindRequest(const LedgerProcess& process, std::string_view uid) {
  const auto found = std::find_if(process.requests.begin(), process.requests.end(),
                                  [uid](const LedgerRequest& row) { return row.uid == uid; });
  return found == process.requests.end() ? nullptr : &*found;
}

const LedgerProcess* FindWorker(const LedgerLook& look, std::string_view incarnation) {
  const auto found =
      std::find_if(look.workers.begin(), look.workers.end(),
                   [incarnation](const auto& worker) { return worker.incarnation == incarnation; });
  return found == look.workers.end() ? nullptr : &*found;
}

// Why no router answers for a request at a worker; "" = one does.
std::string RouterSide(const LedgerLook& look, const LedgerProcess& worker, std::string_view uid) {
  bool is_known = false;
  for (const LedgerProcess& router : look.routers) {
    const LedgerRequest* row = FindRequest(router, uid);
    if (row == nullptr) continue;
    is_known = true;
    const bool is_placed =
        row->prefill_worker == worker.worker_id || row->decode_worker == worker.worker_id;
    if (is_placed) return {};
  }
  return is_known ? "the router has placed it elsewhere" : "no router knows it";
}

// Why the other end of a hand-off cannot finish it; "" = it can, or there is no hand-off.
std::string PeerSide(const LedgerLook& look, const LedgerBlock& block,
                     const LedgerRequest& request) {
  const bool crosses =
      block.state == "exported" || block.state == "reserved" || block.state == "receiving";
  if (!crosses || request.peer.empty()) return {};
  const LedgerProcess* peer = FindWorker(look, request.peer);
  if (peer == nullptr) return fmt::format("its peer {} is gone", request.peer);
  if (FindRequest(*peer, block.owner) != nullptr) return {};
  return fmt::format("its peer {} does not know it", peer->worker_id);
}

// "" = the block is as it should be.
std::string WhyOrphaned(const LedgerLook& look, const LedgerProcess& worker,
                        const LedgerBlock& block) {
  if (block.refs == 0) return "no reference holds it";
  const LedgerRequest* request = FindRequest(worker, block.owner);
  if (request == nullptr) {
    // Its owner is whoever took it first; another live request may share it.
    if (block.kept && !worker.requests.empty()) return {};
    return "its worker does not know the owner";
  }
  std::string why = RouterSide(look, worker, block.owner);
  return why.empty() ? PeerSide(look, block, *request) : why;
}

}  // namespace

uint64_t LedgerProcess::num_blocks() const {
  uint64_t sum = 0;
  for (const auto& [state, count] : states) sum += count;
  return sum;
}

Status ReadLedgerBlocks(std::string_view text, LedgerProcess* process) {
  const json rows = json::parse(text, nullptr, /*allow_exceptions=*/false);
  BATON_RETURN_IF_ERROR(CheckRows(rows));
  for (const json& row : rows) {
    LedgerBlock block;
    block.index = NumberOf(row, "index");
    block.generation = NumberOf(row, "generation");
    block.state = TextOf(row, "state");
    block.owner = TextOf(row, "request_uid");
    block.refs = NumberOf(row, "refs");
    block.kept = FlagOf(row, "kept");
    if (block.state.empty()) return DataLoss("a block without a state");
    ++process->states[block.state];
    const bool is_held = block.state != "free" && block.state != "cached";
    if (is_held) process->held.push_back(std::move(block));
  }
  return OkStatus();
}

Status ReadLedgerRequests(std::string_view text, LedgerProcess* process) {
  const json rows = json::parse(text, nullptr, /*allow_exceptions=*/false);
  BATON_RETURN_IF_ERROR(CheckRows(rows));
  for (const json& row : rows) {
    LedgerRequest request;
    request.uid = TextOf(row, "request_uid");
    request.age_ms = SignedOf(row, "age_ms");
    request.peer = TextOf(row, "peer");
    request.prefill_worker = TextOf(row, "prefill_worker");
    request.decode_worker = TextOf(row, "worker");
    if (request.uid.empty()) return DataLoss("a request without a request_uid");
    process->requests.push_back(std::move(request));
  }
  return OkStatus();
}

StatusOr<std::vector<LedgerProcess>> ReadLedgerWorkers(std::string_view text) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || !root.contains("processes")) {
    return DataLoss("{} bytes that are no topology", text.size());
  }
  const json& rows = root["processes"];
  BATON_RETURN_IF_ERROR(CheckRows(rows));
  std::vector<LedgerProcess> workers;
  for (const json& row : rows) {
    if (TextOf(row, "role") == "router") continue;
    LedgerProcess worker;
    worker.worker_id = TextOf(row, "worker_id");
    worker.incarnation = TextOf(row, "incarnation");
    worker.admin = TextOf(row, "admin");
    worker.ready = FlagOf(row, "ready");
    if (worker.worker_id.empty() || worker.admin.empty()) {
      return DataLoss("a worker without worker_id or admin address");
    }
    workers.push_back(std::move(worker));
  }
  return workers;
}

std::vector<LedgerSuspect> FindSuspects(const LedgerLook& look) {
  std::vector<LedgerSuspect> suspects;
  for (const LedgerProcess& worker : look.workers) {
    for (const LedgerBlock& block : worker.held) {
      std::string why = WhyOrphaned(look, worker, block);
      if (why.empty()) continue;
      const LedgerRequest* request = FindRequest(worker, block.owner);
      suspects.push_back({.worker_id = worker.worker_id,
                          .incarnation = worker.incarnation,
                          .is_block = true,
                          .block = block,
                          .request_age_ms = request == nullptr ? -1 : request->age_ms,
                          .why = std::move(why)});
    }
    for (const LedgerRequest& request : worker.requests) {
      std::string why = RouterSide(look, worker, request.uid);
      if (why.empty()) continue;
      LedgerSuspect suspect;
      suspect.worker_id = worker.worker_id;
      suspect.incarnation = worker.incarnation;
      suspect.is_block = false;
      suspect.block.owner = request.uid;
      suspect.request_age_ms = request.age_ms;
      suspect.why = std::move(why);
      suspects.push_back(std::move(suspect));
    }
  }
  return suspects;
}

void LedgerAudit::Add(const LedgerLook& look) {
  std::vector<LedgerSuspect> found = FindSuspects(look);
  const auto is_new = [this](const LedgerSuspect& suspect) {
    return std::none_of(suspects_.begin(), suspects_.end(),
                        [&suspect](const auto& earlier) { return earlier.Key() == suspect.Key(); });
  };
  if (!std::exchange(is_first_, false)) std::erase_if(found, is_new);
  suspects_ = std::move(found);
}

}  // namespace baton::cli
