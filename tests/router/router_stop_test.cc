// How the router's thread and its sessions end: nothing that was accepted stays without an end, and
// nothing of gRPC outlives its owner.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

#include "baton/v1/worker.grpc.pb.h"
#include "src/base/thread.h"
#include "src/obs/baton_metrics.h"
#include "src/router/grpc_registry_service.h"
#include "src/router/grpc_worker_session.h"
#include "src/router/router.h"
#include "tests/api/toy_hello.h"
#include "tests/patience.h"
#include "tests/router/fake_cluster.h"
#include "tests/router/recording_sink.h"
#include "tests/router/test_model.h"

namespace baton::router {

using api::FillToyHello;
using obs::BatonMetrics;
using obs::MetricsRegistry;
using obs::RegisterBatonMetrics;

namespace {

using std::chrono::milliseconds;

// For routers that no worker joins.
class NoConnector final : public WorkerConnector {
 public:
  std::unique_ptr<WorkerSession> Connect(SessionRef /*session*/,
                                         const WorkerDescription& /*worker*/) override {
    ADD_FAILURE() << "no worker has joined";
    return nullptr;
  }
};

GenerateRequest AnyRequest() {
  GenerateRequest request;
  request.model = TestModel();
  request.prompt = BytesOf("hi");
  request.sampling.max_tokens = 3;
  request.timeout_us = 60'000'000;
  return request;
}

// False after a minute, or its multiple in a sanitizer build.
bool WaitUntil(const std::function<bool()>& holds) {
  for (int i = 0; i < 60'000 * kPatienceFactor; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

// A listener is called without a lock: whoever changes the readiness meanwhile goes on. Only the
// next listener waits, so that the old one may be destroyed.
TEST(RouterListener, ACallUnderWayKeepsNobodyButTheNextListener) {
  auto inbox = std::make_shared<RouterInbox>();
  NoConnector connector;
  MetricsRegistry registry;
  Router router({}, inbox, &connector, &registry);
  std::atomic<bool> is_called{false};
  std::atomic<bool> may_return{false};
  Thread setter("test-set", [&] {
    router.SetReadyListener([&](bool ready) {
      EXPECT_FALSE(ready);
      is_called = true;
      EXPECT_TRUE(WaitUntil([&] { return may_return.load(); }));
    });
  });
  ASSERT_TRUE(WaitUntil([&] { return is_called.load(); }));
  router.SetNotReady();
  std::atomic<bool> is_replaced{false};
  Thread replacer("test-replace", [&] {
    router.SetReadyListener(nullptr);
    is_replaced = true;
  });
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(is_replaced.load());
  may_return = true;
  setter.Join();
  replacer.Join();
  EXPECT_TRUE(is_replaced.load());
}

// A call under way tells that the router is ready while a stop makes it not ready and takes the
// listener away at once, as a stop without grace does: gRPC health would say "serving" to the end.
TEST(RouterListener, AListenerThatIsTakenAwayHasHeardTheLatestState) {
  auto inbox = std::make_shared<RouterInbox>();
  FakeConnector connector;
  connector.logs["decode-0"] = std::make_shared<WorkerLog>();
  MetricsRegistry registry;
  RouterCoreConfig config;
  config.mode = ServeMode::kAggregated;
  Router router(config, inbox, &connector, &registry);
  inbox->Post([&](RouterCore& core, int64_t now_us) {
    core.OnWorkerHello(LeaseId(1), FakeCluster::Describe("decode-0", WorkerRole::kDecode),
                       std::make_unique<FakeLease>(connector.logs["decode-0"]), now_us);
    core.OnSessionUp(connector.last_session["decode-0"], now_us);
    WorkerLoadReport load;
    load.ready = true;
    core.OnWorkerLoad(LeaseId(1), load, now_us);
  });
  ASSERT_TRUE(WaitUntil([&] { return router.ready(); }));
  std::atomic<bool> is_called{false};
  std::atomic<bool> may_return{false};
  std::vector<bool> heard;
  Thread setter("test-set", [&] {
    router.SetReadyListener([&](bool ready) {
      heard.push_back(ready);
      is_called = true;
      EXPECT_TRUE(WaitUntil([&] { return may_return.load(); }));
    });
  });
  ASSERT_TRUE(WaitUntil([&] { return is_called.load(); }));
  Thread stop("test-stop", [&] {
    router.SetNotReady();
    router.SetReadyListener(nullptr);
  });
  std::this_thread::sleep_for(milliseconds(20));
  may_return = true;
  setter.Join();
  stop.Join();
  EXPECT_FALSE(heard.back());
}

// A start waits for it: not for the next tick of the loop, but for the turn after the change.
TEST(RouterReadiness, TheChangeThatMakesARouterReadyCountsAtOnce) {
  auto inbox = std::make_shared<RouterInbox>();
  FakeConnector connector;
  connector.logs["decode-0"] = std::make_shared<WorkerLog>();
  MetricsRegistry registry;
  RouterCoreConfig config;
  config.mode = ServeMode::kAggregated;
  Router router(config, inbox, &connector, &registry);
  std::atomic<int> seen{-1};
  // A turn takes what was posted before it, so each of these has one of its own.
  inbox->Post([&](RouterCore& core, int64_t now_us) {
    core.OnWorkerHello(LeaseId(1), FakeCluster::Describe("decode-0", WorkerRole::kDecode),
                       std::make_unique<FakeLease>(connector.logs["decode-0"]), now_us);
    inbox->Post([&](RouterCore& later, int64_t later_us) {
      EXPECT_FALSE(router.ready());
      later.OnSessionUp(connector.last_session["decode-0"], later_us);
      WorkerLoadReport load;
      load.ready = true;
      later.OnWorkerLoad(LeaseId(1), load, later_us);
      inbox->Post([&](RouterCore& /*core*/, int64_t /*now_us*/) { seen = router.ready() ? 1 : 0; });
    });
  });
  ASSERT_TRUE(WaitUntil([&] { return seen.load() >= 0; }));
  EXPECT_EQ(seen.load(), 1);
}

// The router's thread is held while requests arrive and the inbox closes: they are accepted, and
// the loop turns no more.
TEST(RouterStop, RequestsPostedAfterTheLastTurnAreFailed) {
  auto inbox = std::make_shared<RouterInbox>();
  NoConnector connector;
  MetricsRegistry registry;
  Router router({}, inbox, &connector, &registry);
  std::atomic<bool> held{false};
  router.GetRequests([&](const std::vector<RequestView>& /*requests*/) {
    held = true;
    EXPECT_TRUE(WaitUntil([&] { return inbox->closed(); }));
  });
  ASSERT_TRUE(WaitUntil([&] { return held.load(); }));
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<RecordingSink>());
    router.Submit(AnyRequest(), sinks.back());
  }
  bool answered = false;
  router.GetTopology([&](const Topology& /*topology*/) { answered = true; });
  router.Stop();
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->error.has_value());
    EXPECT_EQ(sink->error->code, ErrorCode::kDraining);
  }
  EXPECT_TRUE(answered) << "whoever asked waits for an answer";
  EXPECT_EQ(router.num_live(), 0u);
  const auto late = std::make_shared<RecordingSink>();
  router.Submit(AnyRequest(), late);
  ASSERT_TRUE(late->error.has_value());
  EXPECT_EQ(late->error->code, ErrorCode::kDraining);
}

TEST(RouterStop, ARefusalIsCountedUnlessItsRequestIsSubmittedAgain) {
  NoConnector connector;
  MetricsRegistry registry;
  Router router({}, std::make_shared<RouterInbox>(), &connector, &registry);
  router.Stop();
  const auto num_counted = [&] {
    uint64_t num = 0;
    for (const obs::Counter* counter : router.metrics().requests_total) num += counter->value();
    return num;
  };
  ASSERT_EQ(num_counted(), 0u);
  for (const bool tries_again : {true, false}) {
    const auto sink = std::make_shared<RecordingSink>();
    sink->tries_again = tries_again;
    router.Submit(AnyRequest(), sink);
    EXPECT_TRUE(sink->error.has_value());
    EXPECT_EQ(num_counted(), tries_again ? 0u : 1u);
  }
}

// A worker that takes sessions and says nothing.
class SilentWorker final : public v1::WorkerService::Service {
 public:
  SilentWorker() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~SilentWorker() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Session(
      grpc::ServerContext* /*context*/,
      grpc::ServerReaderWriter<v1::WorkerMessage, v1::RouterMessage>* stream) override {
    v1::RouterMessage order;
    while (stream->Read(&order)) num_orders.fetch_add(1);
    return grpc::Status::OK;
  }

  const std::string& address() const { return address_; }
  std::atomic<int> num_orders{0};

 private:
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

// Streams share the inbox. Once nobody else holds it, no stream and no channel is left for one of
// gRPC's threads to destroy. This is true whether the end of a stream still reached the inbox or
// not.
TEST(RouterStop, ConnectorTakesItsStreamsAlong) {
  SilentWorker worker;
  for (const bool closed_first : {true, false}) {
    auto inbox = std::make_shared<RouterInbox>();
    auto connector = std::make_unique<GrpcWorkerConnector>(inbox, Incarnation(1));
    WorkerDescription description;
    description.grpc_address = worker.address();
    description.fingerprint.wire_max = 1;
    const int before = worker.num_orders;
    std::vector<std::unique_ptr<WorkerSession>> sessions;
    for (int i = 0; i < 3; ++i) sessions.push_back(connector->Connect(SessionRef{}, description));
    ASSERT_TRUE(WaitUntil([&] { return worker.num_orders >= before + 3; }));
    if (closed_first) inbox->Close();
    sessions.clear();
    connector.reset();
    std::vector<RouterTask> tasks;
    inbox->Take(0, &tasks);
    EXPECT_EQ(tasks.size(), closed_first ? 0u : 3u) << "ends that the router is told";
    tasks.clear();
    EXPECT_EQ(inbox.use_count(), 1);
  }
}

// A worker that floods the router with reports waits; none of them is lost.
TEST(RouterInboxBound, ReportsOfOneWorkerWaitInItsStream) {
  constexpr int kReports = 300;
  auto inbox = std::make_shared<RouterInbox>();
  GrpcRegistryService registry(inbox, Incarnation(1));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&registry);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto stub = v1::RouterRegistry::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  SilentWorker worker;
  std::thread flood([&] {
    grpc::ClientContext context;
    const auto lease = stub->Register(&context);
    v1::WorkerReport report;
    FillToyHello({"decode-0", v1::WORKER_ROLE_DECODE, worker.address(), "w"},
                 report.mutable_hello());
    lease->Write(report);
    for (int i = 0; i < kReports; ++i) {
      report.mutable_load()->set_sequence_number(static_cast<uint64_t>(i) + 1);
      lease->Write(report);
    }
    lease->WritesDone();
    v1::RouterDirective directive;
    while (lease->Read(&directive)) {
    }
    lease->Finish();
  });
  // Nobody takes anything out meanwhile. The more time the stream has, the sharper the test.
  std::this_thread::sleep_for(milliseconds(300));
  {
    GrpcWorkerConnector connector(inbox, Incarnation(1));
    MetricsRegistry metrics_registry;
    const BatonMetrics metrics = RegisterBatonMetrics(&metrics_registry);
    RouterCore core({}, &connector, &metrics);
    std::vector<RouterTask> tasks;
    size_t most = 0;
    size_t total = 0;
    const int64_t give_up_us = SystemClock().NowUs() + 20'000'000;
    while (total < kReports + 2 && SystemClock().NowUs() < give_up_us) {
      inbox->Take(SystemClock().NowUs() + 10'000, &tasks);
      most = std::max(most, tasks.size());
      total += tasks.size();
      for (RouterTask& task : tasks) task(core, SystemClock().NowUs());
    }
    flood.join();
    // A few more: the session with the worker has messages and ends of its own.
    EXPECT_LE(most, 20u);
    EXPECT_GE(total, kReports + 2u) << "the hello, every report, the end";
    inbox->Close();
  }
  server->Shutdown();
}

}  // namespace
}  // namespace baton::router
