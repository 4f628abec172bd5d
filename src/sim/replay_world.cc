#include "src/sim/replay_world.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "src/sim/sim_workload.h"
#include "src/sim/timed_model.h"

namespace baton::sim {

using engine::EngineConfig;
using kv::KvDtype;
using kv::KvEncoding;
using kv::KvLayout;
using loadgen::kTraceBlockTokens;
using loadgen::RandomDraws;
using loadgen::Summarize;
using loadgen::TraceRow;
using router::GenerateRequest;
using router::ModelInfo;
using router::RouterCoreConfig;
using scheduler::SchedulerConfig;

namespace {

// Layer groups in which KV crosses: about as many as a worker's.
constexpr uint32_t kNumGroups = 4;
constexpr int64_t kBootUs = 3'000'000;
// The way from a client to its router.
constexpr int64_t kClientUs = 100;
// After the last start a run may go on for so long: the time limit of a request, and some.
constexpr int64_t kDrainUs = 700'000'000;
// One of the limits that a worker process gives its engine.
constexpr uint32_t kMaxBatchTokens = 1024;

}  // namespace

KvLayout ReplayLayout(const ReplayWorker& worker) {
  return {.dtype = KvDtype::kBf16,
          .encoding = KvEncoding::kPlain,
          .num_layers = kNumGroups,
          .num_kv_heads = 1,
          .head_dim = 2,
          .block_size = worker.block_tokens,
          .state_blocks = worker.state_blocks};
}

ReplayWorld::ReplayWorld(const ReplayOptions& options)
    : options_(options),
      network_(&events_, 1 + options.num_prefill + options.num_decode, options.seed) {
  fabric_.events = &events_;
  fabric_.network = &network_;
  fabric_.violate = [this](std::string_view kind, std::string text) {
    if (failure_.ok()) failure_ = Internal("{}: {}", kind, text);
  };
  model_ = std::make_shared<ModelInfo>(*SimModelInfo());
  model_->max_context = options.worker.max_context;
  MakeProcesses();
  SetLinks();
}

StatusOr<ReplayReport> ReplayWorld::Run() {
  first_us_ = events_.now_us() + kBootUs;
  while (events_.now_us() < first_us_) events_.RunNext();
  const int64_t prefill_before_us = BusyUs(WorkerRole::kPrefill);
  const int64_t decode_before_us = BusyUs(WorkerRole::kDecode);
  const int64_t last_start_us = options_.rows->empty() ? 0 : options_.rows->back().start_us;
  const int64_t deadline_us = first_us_ + last_start_us + kDrainUs;
  Arrive(0);
  while (failure_.ok() && (!all_made_ || !live_.empty())) {
    if (events_.now_us() > deadline_us) return Internal("{} requests have no end", live_.size());
    events_.RunNext();
  }
  BATON_RETURN_IF_ERROR(failure_);
  const auto elapsed_us = static_cast<double>(std::max<int64_t>(1, last_us_ - first_us_));
  const auto share = [&](WorkerRole role, int64_t before_us, uint32_t num_workers) {
    const auto busy_us = static_cast<double>(BusyUs(role) - before_us);
    return num_workers == 0 ? 0 : busy_us / elapsed_us / num_workers;
  };
  report_.prefill_busy = share(WorkerRole::kPrefill, prefill_before_us, options_.num_prefill);
  report_.decode_busy = share(WorkerRole::kDecode, decode_before_us, options_.num_decode);
  report_.simulated_s = elapsed_us * 1e-6;
  report_.num_events = events_.num_run();
  report_.ttft_ms = Summarize(std::move(ttft_ms_));
  report_.second_ms = Summarize(std::move(second_ms_));
  report_.itl_ms = Summarize(std::move(itl_ms_));
  report_.e2e_ms = Summarize(std::move(e2e_ms_));
  report_.refused_ms = Summarize(std::move(refused_ms_));
  return report_;
}

int64_t ReplayWorld::BusyUs(WorkerRole role) const {
  int64_t sum_us = 0;
  for (const auto& worker : workers_) sum_us += worker->role() == role ? worker->busy_us() : 0;
  return sum_us;
}

void ReplayWorld::MakeProcesses() {
  const uint32_t num_workers = options_.num_prefill + options_.num_decode;
  const auto add = [&](std::string name) {
    const auto index = static_cast<uint32_t>(processes_.size());
    processes_.push_back(
        std::make_unique<SimProcess>(&events_, index, std::move(name), /*drift_ppm=*/0));
    return processes_.back().get();
  };
  RouterCoreConfig config;
  config.mode = options_.mode;
  config.local_max_tokens = options_.local_max_tokens;
  config.cluster_secret = kSimSecret;
  config.probe_seed = StreamSeed(options_.seed, DrawPurpose::kRouter, 0);
  router_ = std::make_unique<SimRouter>(config, &fabric_, add("router-0"));
  fabric_.routers.push_back(router_.get());

  const ReplayWorker& worker = options_.worker;
  for (uint32_t i = 0; i < num_workers; ++i) {
    const bool prefills = i < options_.num_prefill;
    SimWorkerOptions made;
    made.role = prefills ? WorkerRole::kPrefill : WorkerRole::kDecode;
    made.num_blocks = worker.num_blocks;
    made.max_running = SchedulerConfig().max_running;
    made.seed = StreamSeed(options_.seed, DrawPurpose::kWorker, i);
    made.model = model_;
    made.layout = ReplayLayout(worker);
    made.window = worker.window;
    made.max_context = worker.max_context;
    made.slice_wire_bytes = worker.kv_bytes_per_token * worker.block_tokens / kNumGroups;
    made.make_model = [&worker](std::function<void(int64_t us)> spend) {
      return std::make_unique<TimedModel>(TimedModelOptions{.steps = worker.steps,
                                                            .num_layers = kNumGroups,
                                                            .max_rows = kMaxBatchTokens,
                                                            .max_context = worker.max_context},
                                          std::move(spend));
    };
    // As WorkerProcess sets them.
    made.tune = [&worker](EngineConfig* engine) {
      const SchedulerConfig defaults;
      engine->scheduler.max_batch_tokens = kMaxBatchTokens;
      engine->scheduler.max_chunk = defaults.max_chunk;
      engine->scheduler.first_cost = worker.first_cost;
      engine->prefix_cache = worker.prefix_cache;
      engine->hash_bytes_per_turn = EngineConfig().hash_bytes_per_turn;
      engine->max_bound_transfers = EngineConfig().max_bound_transfers;
    };
    const uint32_t number = prefills ? i : i - options_.num_prefill;
    SimProcess* const process = add(fmt::format("{}-{}", prefills ? "prefill" : "decode", number));
    workers_.push_back(std::make_unique<SimWorker>(made, &fabric_, process));
    fabric_.workers.push_back(workers_.back().get());
  }
  router_->Boot();
  for (auto& made : workers_) made->Boot();
}

void ReplayWorld::SetLinks() {
  const uint32_t num_workers = options_.num_prefill + options_.num_decode;
  for (uint32_t from = 1; from <= num_workers; ++from) {
    for (uint32_t to = 1; to <= num_workers; ++to) {
      if (options_.worker.link_bytes_per_s <= 0) continue;
      network_.Channel(from, to).bytes_per_us = options_.worker.link_bytes_per_s * 1e-6;
    }
  }
}

// Equal blocks of a trace at equal places give equal tokens.
std::vector<TokenId> ReplayWorld::Prompt(const TraceRow& row, size_t row_idx) const {
  std::vector<TokenId> prompt;
  prompt.reserve(row.num_input);
  for (size_t block = 0; prompt.size() < row.num_input; ++block) {
    const bool is_shared = block < row.block_ids.size();
    const uint64_t id = is_shared ? row.block_ids[block] : ~SplitMix(row_idx);
    RandomDraws draws(StreamSeed(options_.seed, DrawPurpose::kFill, SplitMix(id) + block));
    const size_t end = std::min<size_t>(row.num_input, prompt.size() + kTraceBlockTokens);
    while (prompt.size() < end) {
      prompt.push_back(static_cast<TokenId>(1 + draws.Below(kSimVocab - 1)));
    }
  }
  return prompt;
}

void ReplayWorld::Arrive(size_t row_idx) {
  if (row_idx == options_.rows->size()) {
    all_made_ = true;
    return;
  }
  events_.At(first_us_ + (*options_.rows)[row_idx].start_us, [this, row_idx] {
    Ask(row_idx);
    Arrive(row_idx + 1);
  });
}

void ReplayWorld::Ask(size_t row_idx) {
  const TraceRow& row = (*options_.rows)[row_idx];
  if (uint64_t{row.num_input} + row.num_output > options_.worker.max_context) {
    ++report_.num_left_out;
    return;
  }
  ++report_.num_requests;
  auto client = std::make_shared<ReplayClient>([this] { return events_.now_us(); },
                                               [this, row_idx](ReplayClient& ended) {
                                                 OnEnd(ended);
                                                 live_.erase(row_idx);
                                               });
  live_[row_idx] = client;
  GenerateRequest request;
  request.model = model_;
  request.prompt = Prompt(row, row_idx);
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = row.num_output;
  RandomDraws draws(StreamSeed(options_.seed, DrawPurpose::kRequest, row_idx));
  const RequestUid uid{draws.NextU64(), draws.NextU64() | 1};
  processes_[0]->Post(events_.now_us() + kClientUs,
                      [this, uid, client, generate = std::move(request)]() mutable {
                        router_->Submit(uid, std::move(generate), client);
                      });
}

void ReplayWorld::OnEnd(const ReplayClient& client) {
  last_us_ = events_.now_us();
  if (client.end() == ReplayClient::End::kRefused) {
    ++report_.num_refused;
    refused_ms_.push_back(static_cast<double>(last_us_ - client.asked_us()) * 1e-3);
  }
  if (client.end() == ReplayClient::End::kFailed) ++report_.num_failed;
  if (client.end() != ReplayClient::End::kFinished) return;
  ++report_.num_finished;
  report_.ends_us.push_back(last_us_ - first_us_);
  if (client.Meets(options_.ttft_us, options_.itl_us)) ++report_.num_met;
  report_.num_prompt_tokens += client.num_prompt();
  report_.num_cached_tokens += client.num_cached();
  report_.num_output_tokens += client.gaps_us().size() + 1;
  ttft_ms_.push_back(static_cast<double>(client.ttft_us()) * 1e-3);
  e2e_ms_.push_back(static_cast<double>(client.e2e_us()) * 1e-3);
  for (size_t i = 0; i < client.gaps_us().size(); ++i) {
    (i == 0 ? second_ms_ : itl_ms_).push_back(static_cast<double>(client.gaps_us()[i]) * 1e-3);
  }
}

}  // namespace baton::sim
