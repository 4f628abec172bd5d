// RouterCore among workers and clients that a test plays by hand: every order is recorded, every
// event is a call, and the clock stands still until it is moved.
#ifndef BATON_TESTS_ROUTER_FAKE_CLUSTER_H_
#define BATON_TESTS_ROUTER_FAKE_CLUSTER_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/obs/baton_metrics.h"
#include "src/router/router_core.h"
#include "tests/router/fake_worker.h"
#include "tests/router/recording_sink.h"
#include "tests/router/test_model.h"

namespace baton::router {

// A router core with workers and clients; see the file comment.
class FakeCluster {
 public:
  explicit FakeCluster(RouterCoreConfig config = {})
      : metrics(obs::RegisterBatonMetrics(&registry)), core(config, &connector, &metrics) {}

  static WorkerDescription Describe(const std::string& id, WorkerRole role) {
    WorkerDescription worker;
    worker.name = {id, Incarnation(++next_incarnation)};
    worker.role = role;
    worker.fingerprint.layout_id = 1;
    worker.fingerprint.weights_id = 2;
    worker.fingerprint.tokenizer_id = 3;
    worker.fingerprint.numerics_id = 4;
    worker.weights_text = "weights-a";
    worker.layout_text = "bf16 block=16";
    worker.max_context = kTestContext;
    worker.block_size = 16;
    worker.num_blocks = 64;
    worker.max_running = 8;
    worker.transports = {LinkKind::kShm, LinkKind::kTcp};
    worker.model = TestModel();
    return worker;
  }

  // Registers a worker and connects its session; ready unless `ready` is false.
  LeaseId Join(WorkerDescription worker, bool ready = true) {
    const LeaseId lease(next_lease++);
    const std::string id = worker.name.worker_id;
    lives[id] = worker.name.incarnation;
    const uint32_t num_blocks = worker.num_blocks;
    connector.logs[id] = std::make_shared<WorkerLog>();
    leases[id] = lease;
    blocks[id] = num_blocks;
    core.OnWorkerHello(lease, std::move(worker), std::make_unique<FakeLease>(connector.logs[id]),
                       now_us);
    if (!connector.logs[id]->accepted) return lease;
    core.OnSessionUp(connector.last_session[id], now_us);
    if (ready) Report(id);
    return lease;
  }
  void JoinPair() {
    Join(Describe("decode-0", WorkerRole::kDecode));
    Join(Describe("prefill-0", WorkerRole::kPrefill));
    Report("prefill-0", {"decode-0"});
  }

  // A heartbeat; `links` are the decode workers that it is connected to, in their last life that
  // has joined.
  void Report(const std::string& id, const std::vector<std::string>& links = {},
              std::optional<uint32_t> free_blocks = std::nullopt, bool draining = false) {
    WorkerLoadReport load;
    load.ready = true;
    load.draining = draining;
    load.num_blocks = blocks[id];
    load.blocks[0] = free_blocks.value_or(blocks[id]);
    load.blocks[3] = blocks[id] - load.blocks[0];
    for (const std::string& to : links) {
      load.links.push_back({to, lives[to], LinkKind::kShm, 0, true});
    }
    last_links[id] = links;
    core.OnWorkerLoad(leases[id], load, now_us);
  }
  // Moves time; every worker in `alive` sends its heartbeats meanwhile.
  void Advance(int64_t us, const std::vector<std::string>& alive) {
    const int64_t end_us = now_us + us;
    while (now_us < end_us) {
      now_us = std::min(end_us, now_us + 100'000);
      for (const std::string& id : alive) Report(id, last_links[id]);
      core.Tick(now_us);
    }
  }

  GenerateRequest Request(std::string_view prompt, uint32_t max_tokens = 16) {
    GenerateRequest request;
    request.request_id = "test";
    request.model = TestModel();
    request.prompt = BytesOf(prompt);
    request.sampling.max_tokens = max_tokens;
    request.received_us = now_us;
    return request;
  }
  RequestUid Submit(GenerateRequest request) {
    const RequestUid uid{1, next_uid++};
    sink = std::make_shared<RecordingSink>();
    sinks[uid] = sink;
    core.Submit(uid, std::move(request), sink, now_us);
    return uid;
  }

  WorkerLog& Log(const std::string& id) { return *connector.logs.at(id); }
  SessionRef Session(const std::string& id) { return connector.last_session.at(id); }

  static WorkerToken Token(RequestUid uid, uint32_t index, TokenId token,
                           scheduler::FinishReason finish = scheduler::FinishReason::kNone,
                           uint32_t choice = 0) {
    WorkerToken event;
    event.uid = uid;
    event.attempt = 1;
    event.choice = choice;
    event.index = index;
    event.token = token;
    event.finish = finish;
    return event;
  }
  static WorkerToken OfAttempt(uint32_t attempt, WorkerToken token) {
    token.attempt = attempt;
    return token;
  }
  void Tokens(const std::string& id, std::vector<WorkerToken> tokens) {
    core.OnSessionTokens(Session(id), std::move(tokens), now_us);
  }
  // Sends `text` byte by byte from index `first`; `finish` goes with the last one.
  void Text(const std::string& id, RequestUid uid, uint32_t first, std::string_view text,
            scheduler::FinishReason finish = scheduler::FinishReason::kNone) {
    const std::vector<TokenId> bytes = BytesOf(text);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const bool last = i + 1 == bytes.size();
      Tokens(id, {OfAttempt(text_attempt, Token(uid, first + static_cast<uint32_t>(i), bytes[i],
                                                last ? finish : scheduler::FinishReason::kNone))});
    }
  }
  void State(const std::string& id, RequestUid uid, WorkerRequestState state,
             StatusCode code = StatusCode::kOk, uint32_t attempt = 1) {
    WorkerRequestStatus status;
    status.cached_tokens = cached_tokens;
    status.uid = uid;
    status.attempt = attempt;
    status.state = state;
    status.code = code;
    if (state == WorkerRequestState::kVerified) {
      status.kv_bytes = 4096;
      status.transport = LinkKind::kShm;
    }
    core.OnSessionStatus(Session(id), status, now_us);
  }
  // Blocks that the router still counts as placed at a worker: 0 once nothing of it is left.
  uint32_t PlacedBlocks(const std::string& id) {
    return core.registry().Find(leases.at(id))->placed.num_blocks;
  }

  static inline uint64_t next_incarnation = 100;
  int64_t now_us = 1'000'000;
  uint32_t text_attempt = 1;   // of what Text sends
  uint32_t cached_tokens = 0;  // of what State tells
  uint64_t next_lease = 1;
  uint64_t next_uid = 1;
  obs::MetricsRegistry registry;
  obs::BatonMetrics metrics;
  FakeConnector connector;
  std::map<std::string, LeaseId> leases;
  std::map<std::string, Incarnation> lives;
  std::map<std::string, uint32_t> blocks;
  std::map<std::string, std::vector<std::string>> last_links;
  std::shared_ptr<RecordingSink> sink;  // of the last Submit
  std::map<RequestUid, std::shared_ptr<RecordingSink>> sinks;
  RouterCore core;
};

}  // namespace baton::router

#endif  // BATON_TESTS_ROUTER_FAKE_CLUSTER_H_
