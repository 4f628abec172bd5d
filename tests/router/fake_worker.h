// Workers and connections for tests of RouterCore: they write down what they are told.
#ifndef BATON_TESTS_ROUTER_FAKE_WORKER_H_
#define BATON_TESTS_ROUTER_FAKE_WORKER_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/router/worker_link.h"

namespace baton::router {

// One order that a worker received.
struct Order {
  enum class Kind { kPrefill, kDecode, kEmbedding, kCancel, kRenew };
  Kind kind;
  RequestUid uid;
  uint32_t attempt = 0;
  std::string peer;  // worker id; "" = local
  wire::Prompt prompt;
  wire::SamplingParams sampling;
  uint32_t num_choices = 0;
  uint32_t deadline_ms = 0;
  std::vector<TokenId> replayed;
  std::string tenant;
  SpanIds trace;
  bool is_cacheable = true;
  int32_t priority = 0;
  bool reports_progress = false;
};

// The log of what a fake worker received; it outlives the worker's session.
struct WorkerLog {
  std::vector<Order> orders;
  int num_sessions_opened = 0;
  int num_sessions_closed = 0;
  bool accepted = false;
  std::string refusal;
  bool lease_closed = false;
  std::vector<std::string> peers;  // ids of the last list
  int num_resyncs_asked = 0;
  std::vector<uint32_t> drains_ms;  // time limits of the drains that were asked

  std::vector<Order> Of(Order::Kind kind) const {
    std::vector<Order> found;
    for (const Order& order : orders) {
      if (order.kind == kind) found.push_back(order);
    }
    return found;
  }
};

// Writes orders down.
class FakeSession final : public WorkerSession {
 public:
  explicit FakeSession(std::shared_ptr<WorkerLog> log) : log_(std::move(log)) {
    ++log_->num_sessions_opened;
  }
  ~FakeSession() override { ++log_->num_sessions_closed; }
  void StartPrefill(const PlacementSpec& spec, const WorkerName& decode) override {
    Add(Order::Kind::kPrefill, spec, decode.worker_id);
  }
  void StartDecode(const PlacementSpec& spec, const WorkerName* prefill) override {
    Add(Order::Kind::kDecode, spec, prefill == nullptr ? "" : prefill->worker_id);
  }
  void StartEmbedding(const PlacementSpec& spec) override {
    Add(Order::Kind::kEmbedding, spec, "");
  }
  void Cancel(RequestUid uid, uint32_t attempt) override {
    log_->orders.push_back({Order::Kind::kCancel, uid, attempt, "", {}, {}, 0, 0, {}, ""});
  }
  void Renew(uint32_t /*lease_ms*/) override {
    log_->orders.push_back({Order::Kind::kRenew, {}, 0, "", {}, {}, 0, 0, {}, ""});
  }

 private:
  void Add(Order::Kind kind, const PlacementSpec& spec, std::string peer) {
    log_->orders.push_back({kind,
                            spec.uid,
                            spec.attempt,
                            std::move(peer),
                            *spec.prompt,
                            *spec.sampling,
                            spec.num_choices,
                            spec.deadline_ms,
                            {spec.replayed.begin(), spec.replayed.end()},
                            std::string(spec.tenant),
                            spec.trace,
                            spec.is_cacheable,
                            spec.priority,
                            spec.reports_progress});
  }
  const std::shared_ptr<WorkerLog> log_;
};

class FakeLease final : public LeaseStream {
 public:
  explicit FakeLease(std::shared_ptr<WorkerLog> log) : log_(std::move(log)) {}
  ~FakeLease() override { log_->lease_closed = true; }
  void Accept(uint32_t /*heartbeat_ms*/) override { log_->accepted = true; }
  void Refuse(std::string_view reason) override { log_->refusal = reason; }
  void SendPeers(const std::vector<const WorkerDescription*>& peers) override {
    log_->peers.clear();
    for (const WorkerDescription* peer : peers) log_->peers.push_back(peer->name.worker_id);
  }

  void AskPrefixResync() override { ++log_->num_resyncs_asked; }
  void AskDrain(uint32_t timeout_ms) override { log_->drains_ms.push_back(timeout_ms); }

 private:
  const std::shared_ptr<WorkerLog> log_;
};

class FakeConnector final : public WorkerConnector {
 public:
  std::unique_ptr<WorkerSession> Connect(SessionRef session,
                                         const WorkerDescription& worker) override {
    last_session[worker.name.worker_id] = session;
    return std::make_unique<FakeSession>(logs.at(worker.name.worker_id));
  }
  std::map<std::string, std::shared_ptr<WorkerLog>> logs;
  std::map<std::string, SessionRef> last_session;
};

}  // namespace baton::router

#endif  // BATON_TESTS_ROUTER_FAKE_WORKER_H_
