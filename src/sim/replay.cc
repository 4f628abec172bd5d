#include "src/sim/replay.h"

#include "src/base/check.h"
#include "src/loadgen/arrivals.h"
#include "src/sim/replay_world.h"
#include "src/sim/sim_draws.h"

namespace baton::sim {

using kv::KvLayout;
using loadgen::ArrivalKind;
using loadgen::ArrivalTimes;
using loadgen::RandomDraws;
using loadgen::TraceRow;
using router::ServeMode;

namespace {

constexpr uint32_t kMaxReplayWorkers = 256;

Status Check(const ReplayOptions& options) {
  const ReplayWorker& worker = options.worker;
  const bool splits = options.mode != ServeMode::kAggregated;
  if (splits != (options.num_prefill > 0) || options.num_decode == 0) {
    return InvalidArgument("{} prefill and {} decode workers do not go with this mode",
                           options.num_prefill, options.num_decode);
  }
  if (options.num_prefill + options.num_decode > kMaxReplayWorkers) {
    return ResourceExhausted("{} workers; a replay takes at most {}",
                             options.num_prefill + options.num_decode, kMaxReplayWorkers);
  }
  BATON_RETURN_IF_ERROR(ReplayLayout(worker).Validate());
  if (worker.num_blocks == 0 || worker.max_context < 2 || worker.kv_bytes_per_token == 0) {
    return InvalidArgument("a worker of {} blocks, a context of {} and {} bytes of KV a token",
                           worker.num_blocks, worker.max_context, worker.kv_bytes_per_token);
  }
  if (splits && !(worker.link_bytes_per_s > 0)) {
    return InvalidArgument("the links' speed is not known");
  }
  const uint64_t bytes = ReplayPoolBytes(options);
  if (bytes > kMaxReplayBytes) {
    return ResourceExhausted("{} workers of {} blocks take {} MiB here, more than {}",
                             options.num_prefill + options.num_decode, worker.num_blocks,
                             bytes >> 20, kMaxReplayBytes >> 20);
  }
  return OkStatus();
}

}  // namespace

uint64_t ReplayPoolBytes(const ReplayOptions& options) {
  const KvLayout layout = ReplayLayout(options.worker);
  return uint64_t{options.num_prefill + options.num_decode} * options.worker.num_blocks *
         layout.BlockStride();
}

StatusOr<ReplayReport> Replay(const ReplayOptions& options) {
  BATON_RETURN_IF_ERROR(Check(options));
  return ReplayWorld(options).Run();
}

std::vector<TraceRow> PoissonRows(uint64_t num_requests, double rate_per_s, uint32_t input_tokens,
                                  uint32_t output_tokens, uint64_t seed) {
  RandomDraws draws(StreamSeed(seed, DrawPurpose::kArrivals));
  const auto starts = ArrivalTimes({.kind = ArrivalKind::kPoisson, .rate = rate_per_s},
                                   {.max_count = num_requests}, draws);
  BATON_CHECK(starts.ok(), "{}", starts.status().ToString());
  std::vector<TraceRow> rows;
  rows.reserve(starts->size());
  for (const int64_t start_us : *starts) {
    rows.push_back({start_us, input_tokens, output_tokens, {}});
  }
  return rows;
}

}  // namespace baton::sim
