// Clients, checks, and the course of a run.
#include "src/sim/sim_world.h"

#include <algorithm>
#include <utility>

namespace baton::sim {

using kv::TransportStats;
using loadgen::RandomDraws;
using obs::kResumeReasonNames;
using obs::kResumeSourceNames;
using router::ErrorCode;
using router::ErrorNameOf;
using router::RouterCore;
using router::RouterCoreConfig;

namespace {

// Requests on their way at most: what comes beyond waits at the client.
constexpr size_t kMaxLive = 768;
// How often a client asks that is refused each time.
constexpr uint32_t kMaxTries = 60;
constexpr int64_t kAskAgainUs = 5'000;
// The way from a client to its router and back.
constexpr int64_t kClientUs = 200;
// A request ends within its own 60 s; a router may have been frozen for 6 s of them, twice.
constexpr int64_t kHungUs = 80'000'000;
constexpr int64_t kLookUs = 1'000'000;
constexpr int64_t kBootUs = 3'000'000;
// Request and KV leases are 10 s; the promise is a lease and 2 s.
constexpr int64_t kLeaseUs = 10'500'000 + 2'000'000;
constexpr int64_t kDrainUs = 200'000'000;
constexpr uint32_t kFillChoices = 8;
constexpr size_t kMaxViolations = 20;

double RateOf(const SimOptions& options) {
  if (options.trace == nullptr || options.trace->empty()) return options.rate;
  const double seconds = static_cast<double>(options.trace->back().start_us) * 1e-6;
  return std::max(1e-3, static_cast<double>(options.trace->size()) / std::max(seconds, 1e-3));
}

int64_t FaultGapUs(const SimOptions& options) {
  return static_cast<int64_t>(options.requests_per_fault / RateOf(options) * 1e6);
}

}  // namespace

SimWorld::SimWorld(const SimOptions& options)
    : options_(options),
      network_(&events_, options.shape.num_processes(), options.seed),
      workload_(options.seed, options.rate, options.trace, options.max_output),
      plan_(options.seed, options.faults, options.shape, FaultGapUs(options)),
      draws_(StreamSeed(options.seed, DrawPurpose::kWorld)) {
  report_.seed = options.seed;
  fabric_.events = &events_;
  fabric_.network = &network_;
  fabric_.violate = [this](std::string_view kind, std::string text) {
    Violate(kind, std::move(text));
  };
  fabric_.mail.set_tamper(options.tamper);
  workload_.set_has_rare_fields(options.has_rare_fields);
  desk_.violate = fabric_.violate;
  desk_.max_silence_us = options.max_silence_us;
  desk_.has_no_faults =
      std::ranges::all_of(options.faults, [](auto weight) { return weight == 0; });
  desk_.has_states = options.has_states;
  desk_.window = options.window;
  desk_.now_us = [this] { return events_.now_us(); };
  MakeProcesses();
}

SimWorld::~SimWorld() {
  // Clients that nobody answered are not told any more.
  for (auto& [number, client] : live_) client->Forget();
}

void SimWorld::MakeProcesses() {
  const ClusterShape& shape = options_.shape;
  for (uint32_t i = 0; i < shape.num_processes(); ++i) {
    const auto drift_ppm = static_cast<int64_t>(draws_.Below(200)) - 100;
    processes_.push_back(
        std::make_unique<SimProcess>(&events_, i, ProcessName(shape, i), drift_ppm));
  }
  RouterCoreConfig config;
  config.cluster_secret = kSimSecret;
  config.max_prefix_entries = 1 << 13;
  for (uint32_t i = 0; i < shape.num_routers; ++i) {
    config.probe_seed = StreamSeed(options_.seed, DrawPurpose::kRouter, i);
    routers_.push_back(std::make_unique<SimRouter>(config, &fabric_, processes_[i].get()));
    fabric_.routers.push_back(routers_.back().get());
  }
  for (uint32_t i = 0; i < shape.num_workers(); ++i) {
    SimWorkerOptions worker;
    worker.role = i < shape.num_prefill ? WorkerRole::kPrefill : WorkerRole::kDecode;
    worker.num_blocks = options_.num_blocks;
    worker.seed = StreamSeed(options_.seed, DrawPurpose::kWorker, i);
    worker.model = SimModelInfo();
    worker.layout = SimLayout(options_.has_states);
    worker.window = options_.window;
    worker.damage_every = options_.damage_every;
    worker.cost.fixed_us = options_.step_us;
    SimProcess* const process = processes_[shape.num_routers + i].get();
    workers_.push_back(std::make_unique<SimWorker>(worker, &fabric_, process));
    fabric_.workers.push_back(workers_.back().get());
  }
  for (auto& router : routers_) router->Boot();
  for (auto& worker : workers_) worker->Boot();
}

void SimWorld::Violate(std::string_view kind, std::string text) {
  ++report_.violations[std::string(kind)];
  if (report_.first_violations.size() >= kMaxViolations) return;
  report_.first_violations.push_back(
      {std::string(kind), std::move(text), events_.now_us(), next_request_, next_fault_});
}

bool SimWorld::RunUntil(const std::function<bool()>& done, int64_t for_us) {
  const int64_t end_us = events_.now_us() + for_us;
  bool in_time = true;
  events_.At(end_us, [] {});  // so that time gets there
  while (!done() && !stopped()) {
    if (events_.now_us() >= end_us) {
      in_time = false;
      break;
    }
    events_.RunNext();
  }
  return in_time;
}

SimReport SimWorld::Run() {
  const auto never = [] { return false; };
  RunUntil(never, kBootUs);
  const bool has_faults = std::any_of(options_.faults.begin(), options_.faults.end(),
                                      [](double weight) { return weight > 0; });
  if (has_faults) FaultNext();
  ready_us_ = events_.now_us();
  ArriveNext();
  LookForHung();
  RunUntil([this] { return is_stalled_ || next_request_ >= options_.num_requests; }, INT64_MAX / 2);
  faults_over_ = true;
  network_.EndFaults();
  if (!RunUntil([this] { return AllAnswered(); }, kDrainUs)) {
    Violate("hung", fmt::format("{} requests have no end", live_.size()));
  }
  RunUntil(never, kLeaseUs);
  CheckAllEmpty();
  FillPools();
  RunUntil(never, kLeaseUs);
  CheckAllEmpty();
  Finish();
  return report_;
}

void SimWorld::Finish() {
  report_.num_requests = next_request_;
  report_.num_tokens = desk_.num_tokens;
  report_.messages = network_.counts();
  report_.num_events = events_.num_run();
  report_.simulated_us = events_.now_us();
  report_.digest = SplitMix(desk_.digest ^ SplitMix(report_.num_events));
  for (const auto& router : routers_) {
    for (size_t r = 0; r < kResumeReasonNames.size(); ++r) {
      for (size_t s = 0; s < kResumeSourceNames.size(); ++s) {
        report_.resumes[r][s] += router->metrics().resumes_total[r][s]->value();
      }
    }
  }
  for (const auto& worker : workers_) {
    report_.num_turns += worker->num_turns();
    const TransportStats stats = worker->transport().Stats();
    for (const uint64_t refused : stats.bad_slices) report_.num_checksum_faults += refused;
  }
}

// ---- Clients.

std::optional<uint32_t> SimWorld::PickRouter() {
  std::vector<uint32_t> ready;
  for (uint32_t i = 0; i < routers_.size(); ++i) {
    const RouterCore* const core = routers_[i]->core();
    if (core != nullptr && core->Ready(processes_[i]->NowUs())) ready.push_back(i);
  }
  if (ready.empty()) return std::nullopt;
  return ready[draws_.Below(ready.size())];
}

void SimWorld::ArriveNext() {
  if (next_request_ >= options_.num_requests) return;
  const std::optional<uint32_t> router = PickRouter();
  if (!router || live_.size() + num_waiting_ >= kMaxLive) {
    if (!router && events_.now_us() - ready_us_ > kHungUs) {
      is_stalled_ = true;
      return Violate("hung", "no router was ready for longer than any fault lasts");
    }
    if (router) ready_us_ = events_.now_us();
    events_.At(events_.now_us() + kAskAgainUs, [this] { ArriveNext(); });
    return;
  }
  ready_us_ = events_.now_us();
  const uint64_t number = next_request_++;
  Ask(workload_.Make(number), *router);
  events_.At(events_.now_us() + workload_.GapUs(number), [this] { ArriveNext(); });
}

void SimWorld::Ask(SimRequest request, uint32_t router, uint32_t num_tries) {
  auto client =
      std::make_shared<SimClient>(request, &desk_, [this](SimClient& ended) { OnEnd(ended); });
  client->asked_us = events_.now_us();
  client->router = router;
  client->num_tries = num_tries;
  client->spec = request;
  live_[request.number] = client;
  SimProcess& process = *processes_[router];
  const int64_t arrives_us = events_.now_us() + kClientUs;
  if (request.cancel_after_us >= 0) {
    const int64_t cancel_us = arrives_us + request.cancel_after_us;
    process.Post(cancel_us, [this, client, router, uid = request.uid] {
      if (client->end() != SimEnd::kNone) return;
      client->set_wants_cancel();
      routers_[router]->Cancel(uid);
    });
  }
  process.Post(arrives_us, [this, client, router, uid = request.uid,
                            generate = std::move(request.request)]() mutable {
    routers_[router]->Submit(uid, std::move(generate), client);
  });
}

void SimWorld::OnEnd(SimClient& client) {
  report_.longest_silence_us = std::max(report_.longest_silence_us, client.longest_silence_us());
  Judge(client);
  live_.erase(client.number());
}

// A client that was refused waits as it was told and asks again, under another name.
bool SimWorld::AskAgain(SimClient& client) {
  if (!client.was_refused() || client.num_tries >= kMaxTries) return false;
  ++report_.num_refused;
  ++num_waiting_;
  auto again = std::make_shared<SimRequest>(std::move(client.spec));
  again->uid.lo = SplitMix(again->uid.lo) | 1;
  AskWhenReady(std::move(again), client.num_tries + 1, client.retry_after_us());
  return true;
}

void SimWorld::AskWhenReady(std::shared_ptr<SimRequest> request, uint32_t num_tries,
                            int64_t after_us) {
  events_.At(events_.now_us() + after_us, [this, request = std::move(request), num_tries] {
    const std::optional<uint32_t> router = PickRouter();
    if (!router) return AskWhenReady(request, num_tries, kAskAgainUs);
    --num_waiting_;
    Ask(std::move(*request), *router, num_tries);
  });
}

void SimWorld::Judge(SimClient& client) {
  if (client.end() == SimEnd::kFinished) {
    ++(filling_ ? report_.num_fills : report_.num_finished);
    if (client.num_resumes() > 0) ++report_.num_resumed;
    return;
  }
  if (client.end() == SimEnd::kLost) {
    ++report_.num_lost;
    return;
  }
  if (client.error() == ErrorCode::kCancelled && client.wants_cancel()) {
    ++report_.num_cancelled;
    return;
  }
  if (AskAgain(client)) return;
  ++report_.failed[static_cast<size_t>(client.error())];
  if (IsFailureAllowed(client)) return;
  Violate("failed", fmt::format("request {} failed after {} ms with {} tokens seen: {}",
                                client.number(), (events_.now_us() - client.asked_us) / 1000,
                                client.num_seen(), ErrorNameOf(client.error())));
}

// The hand-off's specification allows a visible error when workers keep dying under one request, or
// none is left. It allows none without faults, or with faults of data connections alone (slow,
// reset, damaging).
bool SimWorld::IsFailureAllowed(const SimClient& client) const {
  if (filling_) return false;
  const auto happens = [&](FaultKind kind) {
    return options_.faults[static_cast<size_t>(kind)] > 0;
  };
  const bool loses_workers = happens(FaultKind::kKill) || happens(FaultKind::kFreeze) ||
                             happens(FaultKind::kOneWay) || happens(FaultKind::kTwoWay) ||
                             happens(FaultKind::kClockJump);
  switch (client.error()) {
    case ErrorCode::kWorkerLost:
    case ErrorCode::kWorkerFailed:
    case ErrorCode::kDeadlineExceeded:
      return loses_workers;
    default:
      return false;
  }
}

void SimWorld::LookForHung() {
  std::vector<std::shared_ptr<SimClient>> hung;
  for (const auto& [number, client] : live_) {
    if (events_.now_us() - client->asked_us > kHungUs) hung.push_back(client);
  }
  for (const auto& client : hung) {
    Violate("hung", fmt::format("request {} has no end after {} s, {} tokens seen",
                                client->number(), kHungUs / 1'000'000, client->num_seen()));
    client->Forget();
    live_.erase(client->number());
  }
  events_.At(events_.now_us() + kLookUs, [this] { LookForHung(); });
}

// ---- The end.

void SimWorld::CheckAllEmpty() {
  if (stopped()) return;
  for (const auto& worker : workers_) {
    const Status status = worker->CheckEmpty();
    if (!status.ok()) Violate("leak", std::string(status.message()));
  }
  for (const auto& router : routers_) {
    const Status status = router->CheckEmpty();
    if (!status.ok()) Violate("leak", std::string(status.message()));
  }
}

void SimWorld::FillPools() {
  filling_ = true;
  RandomDraws draws(StreamSeed(options_.seed, DrawPurpose::kFill, 1'000'000));
  const uint32_t num_fills = 2 * options_.shape.num_workers();
  for (uint32_t i = 0; i < num_fills && !stopped(); ++i) {
    SimRequest fill;
    fill.number = options_.num_requests + i;
    fill.uid = {draws.NextU64(), draws.NextU64() | 1};
    fill.request.model = SimModelInfo();
    fill.request.num_choices = kFillChoices;
    fill.request.sampling.temperature = 0;
    fill.request.sampling.max_tokens = kSimBlock;
    fill.request.sampling.ignore_eos = true;
    fill.request.timeout_us = 60'000'000;
    const uint32_t blocks_of_choice = options_.has_states ? 2 : 1;
    const uint32_t num_tokens = (options_.num_blocks - kFillChoices * blocks_of_choice) * kSimBlock;
    std::vector<TokenId> prompt;
    for (uint32_t t = 0; t < num_tokens; ++t) {
      prompt.push_back(static_cast<TokenId>(1 + draws.Below(kSimVocab - 1)));
    }
    fill.request.prompt = std::move(prompt);
    Ask(std::move(fill), i % options_.shape.num_routers);
    if (!RunUntil([this] { return AllAnswered(); }, kDrainUs)) {
      return Violate("hung", fmt::format("pool-filling request {} has no end", i));
    }
  }
}

}  // namespace baton::sim
