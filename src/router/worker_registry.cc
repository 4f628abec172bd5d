#include "src/router/worker_registry.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

#include "src/base/limits.h"
#include "src/base/wire_versions.h"
#include "src/base/xxh3.h"

namespace baton::router {

using limits::kDeadUs;
using limits::kFirstFullUs;
using limits::kMaxFullUs;
using limits::kMaxWorkers;
using limits::kSuspectUs;
using obs::RefusalReason;
using scheduler::DecodeLoad;
using scheduler::IsPaired;
using scheduler::kSpeedTrustedUs;
using scheduler::LinkHealth;
using scheduler::LinkUp;
using scheduler::PairingOf;
using scheduler::PrefillLoad;
using scheduler::SharedCores;
using scheduler::WorkerFingerprint;

namespace {

// Speed assumed of a pool of which no worker has measured its own yet, prompt tokens a second: only
// the order between workers matters, and 500 is what one laptop core does with a small model.
constexpr double kAssumedTokensPerSecond = 500.0;

// Indices into kBlockStateNames.
constexpr size_t kFreeIdx = 0;
constexpr size_t kCachedIdx = 1;

uint32_t ReportedFree(const RegisteredWorker& worker) {
  if (worker.load.num_blocks == 0) return worker.description.num_blocks;  // no report yet
  return worker.load.blocks[kFreeIdx] + worker.load.blocks[kCachedIdx];
}

// A worker's speed is trusted for so long after a report changed it. Under light load the worker
// with the highest speed gets every prompt, and nothing would find out that another one, which was
// held up for a while, is as fast again. Of an idle worker an old speed may be too low by half.
constexpr double kMostHeldUp = 1.5;

// The speeds of the workers of one role and model, prompt tokens a second.
struct PoolSpeeds {
  // Assumed for a worker that has not measured its own yet: the mean of the others. A constant
  // would send prompts past a slower worker that holds them in its cache.
  double assumed = kAssumedTokensPerSecond;
  double fastest = 0;
};

PoolSpeeds SpeedsOf(const std::map<LeaseId, RegisteredWorker>& workers, WorkerRole role,
                    std::string_view model_id) {
  PoolSpeeds speeds;
  double sum = 0;
  uint32_t num_measured = 0;
  for (const auto& [lease, worker] : workers) {
    const WorkerDescription& description = worker.description;
    if (description.role != role || description.model->id != model_id) continue;
    const double measured = worker.load.prefill_tokens_per_s;
    if (!(measured > 0)) continue;
    sum += measured;
    speeds.fastest = std::max(speeds.fastest, measured);
    ++num_measured;
  }
  if (num_measured > 0) speeds.assumed = sum / num_measured;
  return speeds;
}

// Takes what `other` has measured into account too.
void Join(const PoolSpeeds& other, PoolSpeeds* speeds) {
  if (speeds->fastest == 0) speeds->assumed = other.assumed;
  speeds->fastest = std::max(speeds->fastest, other.fastest);
}

double SpeedOf(const RegisteredWorker& worker, const PoolSpeeds& pool, int64_t now_us) {
  const double measured = worker.load.prefill_tokens_per_s;
  if (!(measured > 0)) return pool.assumed;
  const bool is_old = worker.IsIdle() && now_us - worker.speed_us >= kSpeedTrustedUs;
  return is_old ? std::clamp(pool.fastest, measured, measured * kMostHeldUp) : measured;
}

// Budgets are named apart within a host.
SharedCores CoresOf(const WorkerDescription& worker) {
  if (worker.core_budget == 0) return {};
  return {.id = Xxh3Hash64(worker.host_id, worker.core_budget), .num_home = worker.home_cores};
}

// The load row of either role.
template <typename Row>
Row CommonRow(const RegisteredWorker& worker, const PoolSpeeds& pool, int64_t now_us) {
  Row row;
  row.tokens_per_s = SpeedOf(worker, pool, now_us);
  row.ready = worker.Usable(now_us);
  row.fingerprint = worker.description.fingerprint;
  row.backlog_s = static_cast<double>(worker.BacklogTokens()) / row.tokens_per_s;
  row.num_waiting = worker.load.waiting;
  row.num_free_blocks = worker.NumFreeBlocks();
  row.num_blocks = worker.description.num_blocks;
  row.block_size = worker.description.block_size;
  row.state_blocks = worker.description.state_blocks;
  row.max_context = worker.description.max_context;
  row.cores = CoresOf(worker.description);
  return row;
}

// New streams of a decode worker. Only what this router placed counts: a report is up to a
// heartbeat old, and places that came free meanwhile would stay empty.
void SetNewStreams(const RegisteredWorker& worker, uint32_t num_prefill_workers, DecodeLoad* row) {
  if (worker.load.batch_limit == 0) return;  // not told
  const uint32_t limit = worker.BatchLimit();
  const uint32_t room = limit + WorkerRegistry::kPromptsAhead * std::max(num_prefill_workers, 1u);
  row->num_new = room - std::min(room, worker.placed.num_sequences);
  row->most_new = std::max(limit / 2, 1u);
}

// The row of a link that is up.
LinkUp RowOf(const LinkHealth& health, uint64_t bytes_per_token, int64_t now_us) {
  LinkUp row;
  row.rests = health.IsLeftAlone(now_us);
  if (health.limit_bytes_per_s() <= 0) return row;
  row.seconds_per_token = static_cast<double>(bytes_per_token) / health.limit_bytes_per_s();
  row.queued_s = static_cast<double>(health.open_bytes()) / health.limit_bytes_per_s();
  return row;
}

// "00000000000000a1 (bf16 block=16)": descriptions can be equal where ids are not.
std::string Named(uint64_t id, std::string_view text) {
  return text.empty() ? fmt::format("{:016x}", id) : fmt::format("{:016x} ({})", id, text);
}

// KV has a way between them.
bool ShareTransport(const WorkerDescription& a, const WorkerDescription& b) {
  return std::find_first_of(a.transports.begin(), a.transports.end(), b.transports.begin(),
                            b.transports.end()) != a.transports.end();
}

// "ranks=2 | ranks=4": the words of each that the other has not.
std::string DifferingWords(const std::string& a, const std::string& b) {
  const auto words = [](const std::string& text) {
    std::istringstream in(text);
    return std::set<std::string>(std::istream_iterator<std::string>(in), {});
  };
  const auto only = [&words](const std::string& in, const std::string& not_in) {
    const std::set<std::string> all = words(in);
    const std::set<std::string> others = words(not_in);
    std::vector<std::string> left;
    std::set_difference(all.begin(), all.end(), others.begin(), others.end(),
                        std::back_inserter(left));
    return left.empty() ? std::string("-") : fmt::format("{}", fmt::join(left, " "));
  };
  return fmt::format("{} | {}", only(a, b), only(b, a));
}

// "weights_id differs: decode-1 has A, prefill-0 has B; what to give them" for the first field that
// differs.
std::optional<Refusal> DifferenceBetween(const WorkerDescription& joining,
                                         const WorkerDescription& present) {
  const WorkerFingerprint& a = joining.fingerprint;
  const WorkerFingerprint& b = present.fingerprint;
  const auto differs = [&](RefusalReason reason, std::string_view field, std::string_view x,
                           std::string_view y, std::string_view remedy) {
    return Refusal{reason,
                   fmt::format("{} differs: {} has {}, {} has {}; give both {}", field,
                               joining.name.worker_id, x, present.name.worker_id, y, remedy)};
  };
  const WireRange wire_a = {a.wire_min, a.wire_max};
  const WireRange wire_b = {b.wire_min, b.wire_max};
  if (CommonWireVersion(wire_a, wire_b) == 0) {
    return differs(RefusalReason::kWireVersion, "wire version", ToString(wire_a), ToString(wire_b),
                   "releases that share one");
  }
  if (a.layout_id != b.layout_id) {
    return differs(RefusalReason::kLayout, "layout_id", Named(a.layout_id, joining.layout_text),
                   Named(b.layout_id, present.layout_text), "one --model, --kv-dtype and --device");
  }
  if (a.weights_id != b.weights_id) {
    return differs(RefusalReason::kWeights, "weights_id", joining.weights_text,
                   present.weights_text, "the same model file or folder");
  }
  if (a.tokenizer_id != b.tokenizer_id) {
    return differs(RefusalReason::kTokenizer, "tokenizer_id", Named(a.tokenizer_id, ""),
                   Named(b.tokenizer_id, ""), "the same tokenizer");
  }
  return std::nullopt;
}

Refusal TakenBy(const RegisteredWorker& present) {
  const WorkerDescription& worker = present.description;
  return {RefusalReason::kWorkerId,
          fmt::format("the worker id {} is taken by another process that lives (pid {}, {}): give "
                      "each worker a --worker-id of its own",
                      worker.name.worker_id, worker.pid, worker.grpc_address)};
}

}  // namespace

uint32_t RegisteredWorker::NumFreeBlocks() const {
  const uint32_t total = description.num_blocks;
  const uint32_t own_free = placed.num_blocks < total ? total - placed.num_blocks : 0;
  return std::min(ReportedFree(*this), own_free);
}

uint32_t RegisteredWorker::BatchLimit() const {
  const uint32_t most = description.max_running;
  return load.batch_limit == 0 ? most : std::min(load.batch_limit, most);
}

bool RegisteredWorker::Usable(int64_t now_us) const {
  return session_up && load.ready && !load.draining && now_us - heard_us < kSuspectUs &&
         now_us >= avoided_until_us;
}

bool RegisteredWorker::IsLinkedTo(const WorkerName& other) const {
  return std::any_of(load.links.begin(), load.links.end(), [&](const LinkView& link) {
    return link.up && link.to == other.worker_id && link.to_incarnation == other.incarnation;
  });
}

void RegisteredWorker::CountRefusal(uint32_t retry_after_ms, int64_t now_us) {
  const int64_t asked_us = int64_t{retry_after_ms} * 1000;
  int64_t& until_us = refusals.full_until_us;
  if (now_us < until_us) {  // of the same time, nothing new
    until_us = std::max(until_us, now_us + asked_us);
    return;
  }
  const int64_t full_us = kFirstFullUs << std::min(refusals.num_refusals, 10u);
  ++refusals.num_refusals;
  until_us = now_us + std::max(std::min(full_us, kMaxFullUs), asked_us);
}

std::optional<Refusal> WorkerRegistry::RefusalFor(const WorkerDescription& worker,
                                                  int64_t now_us) const {
  const bool is_known = std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    return entry.second.description.name.worker_id == worker.name.worker_id;
  });
  if (!is_known && workers_.size() >= kMaxWorkers) {
    return Refusal{RefusalReason::kFull,
                   fmt::format("the router already has {} workers, its limit", kMaxWorkers)};
  }
  for (const auto& [lease, present] : workers_) {
    // An older life of the same worker is about to be dropped and binds nobody.
    if (present.description.name.worker_id == worker.name.worker_id) {
      // Two that live would drop each other for ever.
      const bool is_other = present.description.name.incarnation != worker.name.incarnation;
      if (is_other && now_us - present.heard_us < kSuspectUs) return TakenBy(present);
      continue;
    }
    if (present.description.model->id != worker.model->id) continue;
    std::optional<Refusal> difference = DifferenceBetween(worker, present.description);
    if (difference) return difference;
  }
  return std::nullopt;
}

RegisteredWorker& WorkerRegistry::Add(LeaseId lease, WorkerDescription description,
                                      std::unique_ptr<LeaseStream> stream, int64_t now_us) {
  gone_.erase(description.name.worker_id);
  RegisteredWorker& worker = workers_[lease];
  worker.lease = lease;
  worker.description = std::move(description);
  worker.stream = std::move(stream);
  worker.registered_us = now_us;
  worker.heard_us = now_us;
  worker.progress_us = now_us;
  return worker;
}

bool WorkerRegistry::ForgetLongGone(int64_t now_us) {
  return std::erase_if(gone_, [now_us](const auto& entry) {
           return now_us - entry.second.gone_us >= kContextKeptUs;
         }) > 0;
}

std::vector<UnpairedView> WorkerRegistry::NoteUnpaired(RegisteredWorker& worker) {
  std::vector<UnpairedView> unpaired;
  for (auto& [lease, other] : workers_) {
    const bool are_one_pair = other.IsPrefill() != worker.IsPrefill() &&
                              other.description.model->id == worker.description.model->id;
    if (!are_one_pair) continue;
    const WorkerDescription& a = (worker.IsPrefill() ? worker : other).description;
    const WorkerDescription& b = (worker.IsPrefill() ? other : worker).description;
    std::string why;
    if (!IsPaired(PairingOf(a.fingerprint, b.fingerprint))) {
      why = fmt::format("their answers have other bits ({}), and not both have --allow-inexact",
                        DifferingWords(a.numerics_text, b.numerics_text));
    } else if (!ShareTransport(a, b)) {
      why = "they have no --transport in common";
    } else {
      continue;
    }
    if (other.IsPrefill()) other.not_paired.push_back({b.name.worker_id, why});
    unpaired.push_back({other.description.name.worker_id, std::move(why)});
  }
  if (worker.IsPrefill()) worker.not_paired = unpaired;
  return unpaired;
}

bool WorkerRegistry::Remove(LeaseId lease, int64_t now_us) {
  const auto removed = workers_.find(lease);
  if (removed == workers_.end()) return false;
  const WorkerDescription& description = removed->second.description;
  const std::string worker_id = description.name.worker_id;
  if (description.role == WorkerRole::kDecode && gone_.size() < kMaxWorkers) {
    gone_[worker_id] = {description.model->id, description.max_context, now_us};
  }
  workers_.erase(removed);
  for (auto& [other, worker] : workers_) {
    worker.links.erase(lease);
    std::erase_if(worker.not_paired,
                  [&](const UnpairedView& unpaired) { return unpaired.with == worker_id; });
  }
  return true;
}

RegisteredWorker* WorkerRegistry::Find(LeaseId lease) {
  const auto it = workers_.find(lease);
  return it == workers_.end() ? nullptr : &it->second;
}

const RegisteredWorker* WorkerRegistry::Find(LeaseId lease) const {
  const auto it = workers_.find(lease);
  return it == workers_.end() ? nullptr : &it->second;
}

RegisteredWorker* WorkerRegistry::FindByWorkerId(std::string_view worker_id) {
  for (auto& [lease, worker] : workers_) {
    if (worker.description.name.worker_id == worker_id) return &worker;
  }
  return nullptr;
}

void WorkerRegistry::OnLoad(RegisteredWorker& worker, WorkerLoadReport load, int64_t now_us) {
  worker.heard_us = now_us;
  const bool moved = load.backlog_tokens != worker.load.backlog_tokens ||
                     load.running != worker.load.running || load.waiting != worker.load.waiting ||
                     load.blocks != worker.load.blocks;
  if (moved) worker.progress_us = now_us;
  // The first report tells of another time: this lease may be the next one of a worker that stood
  // still.
  const bool is_first = worker.load.num_blocks == 0;
  const bool has_measured = load.prefill_tokens_per_s != worker.load.prefill_tokens_per_s;
  if (has_measured && !is_first) worker.speed_us = now_us;
  load.draining |= worker.drain_asked;
  if (load.draining && !worker.load.draining) worker.draining_since_us = now_us;
  const bool drain_changed = load.draining != worker.load.draining;
  worker.load = std::move(load);
  worker.num_done_tokens = 0;
  if (drain_changed) SendPeerLists();
}

bool WorkerRegistry::Serves(std::string_view model_id, WorkerRole role) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    const WorkerDescription& description = entry.second.description;
    return description.role == role && description.model->id == model_id &&
           !entry.second.load.draining;
  });
}

bool WorkerRegistry::HasSession(std::string_view model_id, WorkerRole role) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    const WorkerDescription& description = entry.second.description;
    return description.role == role && description.model->id == model_id &&
           entry.second.session_up && !entry.second.load.draining;
  });
}

std::vector<LeaseId> WorkerRegistry::Dead(int64_t now_us) const {
  std::vector<LeaseId> dead;
  for (const auto& [lease, worker] : workers_) {
    if (now_us - worker.heard_us >= kDeadUs) dead.push_back(lease);
  }
  return dead;
}

RouteTable WorkerRegistry::TableFor(std::string_view model_id, int64_t now_us,
                                    SpeedPools pools) const {
  RouteTable table;
  absl::flat_hash_map<std::string_view, uint32_t> decode_rows;
  table.prefill.reserve(workers_.size());
  table.prefill_leases.reserve(workers_.size());
  table.decode.reserve(workers_.size());
  table.decode_leases.reserve(workers_.size());
  decode_rows.reserve(workers_.size());
  PoolSpeeds decode_speeds = SpeedsOf(workers_, WorkerRole::kDecode, model_id);
  PoolSpeeds prefill_speeds = SpeedsOf(workers_, WorkerRole::kPrefill, model_id);
  if (pools == SpeedPools::kBoth) {
    const PoolSpeeds of_decode = decode_speeds;
    Join(prefill_speeds, &decode_speeds);
    Join(of_decode, &prefill_speeds);
  }
  const auto num_prefill_workers =
      static_cast<uint32_t>(std::count_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
        const RegisteredWorker& worker = entry.second;
        return worker.IsPrefill() && worker.description.model->id == model_id &&
               worker.Usable(now_us);
      }));
  for (const auto& [lease, worker] : workers_) {
    const WorkerDescription& description = worker.description;
    if (worker.IsPrefill() || description.model->id != model_id) continue;
    DecodeLoad row = CommonRow<DecodeLoad>(worker, decode_speeds, now_us);
    row.window_blocks = worker.description.window_blocks;
    const uint32_t placed = worker.placed.num_sequences;
    row.num_running = std::max(worker.load.running, placed);
    // A report is up to a heartbeat old: in that time prompts of other streams were computed.
    row.num_streams = std::max(worker.load.running, worker.placed.num_streams);
    row.step_s = static_cast<double>(worker.load.step_us) * 1e-6;
    row.num_waiting = std::max(row.num_waiting, worker.placed.num_prompts);
    // A request with more choices than the worker runs at once must still get in when it is alone.
    const uint32_t max_running = description.max_running;
    row.num_slots = placed == 0 ? UINT32_MAX : max_running - std::min(max_running, placed);
    if (now_us < worker.refusals.full_until_us) row.num_slots = 0;
    SetNewStreams(worker, num_prefill_workers, &row);
    decode_rows[description.name.worker_id] = static_cast<uint32_t>(table.decode.size());
    table.decode.push_back(row);
    table.decode_leases.push_back(lease);
  }
  for (const auto& [lease, worker] : workers_) {
    const WorkerDescription& description = worker.description;
    if (!worker.IsPrefill() || description.model->id != model_id) continue;
    const uint32_t prefill_idx = static_cast<uint32_t>(table.prefill.size());
    PrefillLoad row = CommonRow<PrefillLoad>(worker, prefill_speeds, now_us);
    row.num_waiting = std::max(row.num_waiting, worker.num_requests);
    row.num_slots = kMaxPrefillsInFlight - std::min(kMaxPrefillsInFlight, worker.num_requests);
    if (now_us < worker.refusals.full_until_us) row.num_slots = 0;
    table.prefill.push_back(row);
    table.prefill_leases.push_back(lease);
    for (const LinkView& link : worker.load.links) {
      const auto it = decode_rows.find(link.to);
      if (!link.up || it == decode_rows.end()) continue;
      // A connection to a former life may be reported for a while after the next has registered.
      const RegisteredWorker* decode = Find(table.decode_leases[it->second]);
      if (link.to_incarnation != decode->description.name.incarnation) continue;
      const auto health = worker.links.find(decode->lease);
      LinkUp up;
      if (health != worker.links.end()) {
        up = RowOf(health->second, description.kv_bytes_per_token, now_us);
      }
      up.prefill_idx = prefill_idx;
      up.decode_idx = it->second;
      table.links.push_back(up);
    }
  }
  return table;
}

void WorkerRegistry::SendPeerLists() {
  for (auto& [lease, worker] : workers_) {
    if (!worker.IsPrefill() && !worker.load.draining) continue;
    std::vector<const WorkerDescription*> peers;
    for (const auto& [other_lease, other] : workers_) {
      if (other.IsPrefill() || other.description.model->id != worker.description.model->id) {
        continue;
      }
      if (!worker.IsPrefill() && (other_lease == lease || other.load.draining)) continue;
      if (!IsPaired(PairingOf(worker.description.fingerprint, other.description.fingerprint)) ||
          !ShareTransport(worker.description, other.description)) {
        continue;
      }
      peers.push_back(&other.description);
    }
    worker.stream->SendPeers(peers);
  }
}

std::vector<std::shared_ptr<const ModelInfo>> WorkerRegistry::Models() const {
  std::map<std::string, ModelInfo> models;
  std::map<std::string, uint32_t> embedding_contexts;  // of the prefill workers that give vectors
  for (const auto& [lease, worker] : workers_) {
    const ModelInfo& info = *worker.description.model;
    const uint32_t max_context = worker.IsPrefill() ? 0 : worker.description.max_context;
    if (worker.IsPrefill() && info.embedding_size > 0) {
      uint32_t& context = embedding_contexts[info.id];
      context = std::max(context, worker.description.max_context);
    }
    const auto [it, inserted] = models.try_emplace(info.id, info);
    ModelInfo& model = it->second;
    model.max_context = inserted ? max_context : std::max(model.max_context, max_context);
    model.created_unix_s = std::min(model.created_unix_s, info.created_unix_s);
    // One of an older release says nothing.
    model.embedding_size = std::max(model.embedding_size, info.embedding_size);
    if (model.embedding_refusal.empty()) model.embedding_refusal = info.embedding_refusal;
  }
  std::vector<std::shared_ptr<const ModelInfo>> result;
  for (auto& [id, model] : models) {
    // Without a decode worker nothing can be generated; vectors need none.
    if (model.max_context == 0) model.max_context = embedding_contexts[id];
    if (model.max_context == 0) continue;
    for (const auto& [worker_id, gone] : gone_) {
      if (gone.model_id == id) model.max_context = std::max(model.max_context, gone.max_context);
    }
    result.push_back(std::make_shared<const ModelInfo>(std::move(model)));
  }
  return result;
}

}  // namespace baton::router
