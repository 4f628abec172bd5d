// Idempotency keys on the router's own thread: what a client's Cancel ends, and whose limits hold.
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/router/client_pause.h"
#include "src/router/router.h"
#include "tests/router/fake_cluster.h"

namespace baton::router {

using obs::MetricsRegistry;
using scheduler::FinishReason;

namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr const char* kWorker = "decode-0";

// A router with one decode worker that the test plays, all of it on the router's thread.
class RouterKeysTest : public testing::Test {
 protected:
  static RouterCoreConfig Config() {
    RouterCoreConfig config;
    config.mode = ServeMode::kAggregated;
    config.slow_client_us = 20'000;
    return config;
  }
  RouterKeysTest() : router_(Config(), inbox_, &connector_, &registry_) {
    connector_.logs[kWorker] = std::make_shared<WorkerLog>();
    inbox_->Post([this](RouterCore& core, int64_t now_us) {
      core.OnWorkerHello(LeaseId(1), FakeCluster::Describe(kWorker, WorkerRole::kDecode),
                         std::make_unique<FakeLease>(connector_.logs[kWorker]), now_us);
      core.OnSessionUp(connector_.last_session[kWorker], now_us);
    });
    On([](RouterCore& /*core*/, int64_t /*now_us*/) {});
  }

  // Runs `task` on the router's thread, with the worker's heartbeat before it, and waits for it.
  void On(const std::function<void(RouterCore&, int64_t)>& task) {
    std::promise<void> done;
    inbox_->Post([&](RouterCore& core, int64_t now_us) {
      WorkerLoadReport load;
      load.ready = true;
      load.num_blocks = 64;
      load.blocks[0] = 64;
      core.OnWorkerLoad(LeaseId(1), load, now_us);
      task(core, now_us);
      done.set_value();
    });
    done.get_future().wait();
  }
  // Waits for something that the router's thread does.
  bool Wait(const std::function<bool()>& condition) {
    bool holds = false;
    for (int i = 0; i < 20'000 && !holds; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      On([&](RouterCore& /*core*/, int64_t /*now_us*/) { holds = condition(); });
    }
    return holds;
  }
  RequestUid Ask(const std::shared_ptr<RecordingSink>& sink) {
    auto key = std::make_shared<IdempotencyKey>();
    key->scope = "k";
    GenerateRequest request;
    request.model = TestModel();
    request.prompt = BytesOf("prompt");
    request.sampling.max_tokens = 4;
    request.received_us = SystemClock().NowUs();
    request.key = std::move(key);
    return router_.Submit(std::move(request), sink);
  }
  // The worker says token `index` of what it was told to decode.
  void Say(uint32_t index, char token, FinishReason finish = FinishReason::kNone) {
    On([&](RouterCore& core, int64_t now_us) {
      const auto orders = Orders(Order::Kind::kDecode);
      ASSERT_THAT(orders, SizeIs(1));
      core.OnSessionTokens(connector_.last_session[kWorker],
                           {FakeCluster::Token(orders[0].uid, index, token, finish)}, now_us);
    });
  }
  std::vector<Order> Orders(Order::Kind kind) { return connector_.logs[kWorker]->Of(kind); }

  std::shared_ptr<RouterInbox> inbox_ = std::make_shared<RouterInbox>();
  MetricsRegistry registry_;
  FakeConnector connector_;  // the router's thread
  Router router_;
};

// As gRPC does it: a call that is cut off is cancelled, and says so under its reader's name.
TEST_F(RouterKeysTest, ASlowFirstReaderEndsNothingWhenItsCallIsCutOff) {
  const auto slow = std::make_shared<RecordingSink>();
  slow->buffered = kPauseBytes + 1;
  const auto quick = std::make_shared<RecordingSink>();
  const RequestUid slow_uid = Ask(slow);
  Ask(quick);
  Say(0, 'a');
  ASSERT_TRUE(Wait([&] { return slow->ended(); })) << "within slow_client_us of the router";
  EXPECT_EQ(slow->error->code, ErrorCode::kSlowClient);
  router_.Cancel(slow_uid, CancelCause::kClientLeft);
  Say(1, 'b');
  Say(2, 'c', FinishReason::kLength);
  On([&](RouterCore& /*core*/, int64_t /*now_us*/) {
    EXPECT_TRUE(quick->result.has_value());
    EXPECT_EQ(quick->Text(), "abc");
    EXPECT_THAT(Orders(Order::Kind::kCancel), IsEmpty());
  });
}

TEST_F(RouterKeysTest, ASlowReaderThatWasAloneLeavesItsGenerationTheGrace) {
  const auto slow = std::make_shared<RecordingSink>();
  slow->buffered = kPauseBytes + 1;
  const RequestUid slow_uid = Ask(slow);
  Say(0, 'a');
  ASSERT_TRUE(Wait([&] { return slow->ended(); }));
  router_.Cancel(slow_uid, CancelCause::kClientLeft);
  const auto retry = std::make_shared<RecordingSink>();
  Ask(retry);
  Say(1, 'b', FinishReason::kLength);
  EXPECT_TRUE(Wait([&] { return retry->ended(); }));
  EXPECT_TRUE(retry->result.has_value());
  EXPECT_EQ(retry->Text(), "ab");
}

}  // namespace
}  // namespace baton::router
