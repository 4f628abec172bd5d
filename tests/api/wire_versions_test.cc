// A router among workers of other versions: what they add to messages is passed over, and a session
// speaks the newest version that both know, or there is none.
#include <memory>
#include <string>

#include "gtest/gtest.h"

#include "src/base/limits.h"
#include "src/router/worker_messages.h"
#include "tests/api/router_process_rig.h"

namespace baton::api {

using limits::kMaxPrefixChanges;

namespace {

// The version in the middle of one that can still be spoken and one that cannot yet.
constexpr uint32_t kN = 5;

class WireVersionsTest : public RouterProcessTest {
 protected:
  void StartRouter(const WireRange& wire) {
    process_->Stop();
    RouterConfig config = TestConfig();
    config.wire = wire;
    StartProcess(config);
  }

  // A pair of workers that speak `wire`; true when both were taken.
  bool Join(const ToyWire& wire) {
    decode_ = std::make_unique<ToyWorker>("decode-0", v1::WORKER_ROLE_DECODE);
    prefill_ = std::make_unique<ToyWorker>("prefill-0", v1::WORKER_ROLE_PREFILL);
    decode_->wire = prefill_->wire = wire;
    decode_->Register(process_->grpc_address());
    prefill_->Register(process_->grpc_address(), "decode-0");
    return decode_->refusal.empty() && prefill_->refusal.empty();
  }

  std::string Answer() {
    grpc::ClientContext context;
    v1::ChatCompletionResponse response;
    const grpc::Status status = chat_->ChatCompletion(&context, Chat(5), &response);
    if (!status.ok()) return status.error_message();
    EXPECT_EQ(response.timings().path(), "disagg");
    EXPECT_EQ(response.timings().resumes(), 0u) << "nothing had to be done twice";
    return response.choices(0).message().content();
  }
};

TEST_F(WireVersionsTest, WhatALaterVersionAddsToMessagesIsPassedOver) {
  ASSERT_TRUE(Join({.is_newer = true}));
  ASSERT_TRUE(WaitReady(true));
  EXPECT_EQ(Answer(), "abcde");
  grpc::Status status;
  const std::vector<v1::ChatCompletionChunk> chunks = Stream(Chat(3), &status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  // A finish that this version cannot name is a finish.
  EXPECT_EQ(chunks.back().choices(0).finish_reason(), "length");
  EXPECT_TRUE(IsCounted("malformed", 0));
}

TEST_F(WireVersionsTest, SessionsSpeakTheNewestVersionOfBoth) {
  struct Case {
    ToyWire worker;
    uint32_t version;
  };
  const Case cases[] = {
      {{kN - 1, kN - 1}, kN - 1},  // the release before
      {{kN - 1, kN}, kN},          // this release
      {{kN, kN + 1}, kN},          // the next one
      {{kN, kN + 1, true}, kN},    // with what it adds
      {{1, 1000}, kN},
  };
  for (const Case& c : cases) {
    StartRouter({.min = kN - 1, .max = kN});
    ASSERT_TRUE(Join(c.worker)) << c.worker.min << ".." << c.worker.max << decode_->refusal;
    ASSERT_TRUE(WaitReady(true));
    EXPECT_EQ(Answer(), "abcde");
    EXPECT_EQ(decode_->session_version, c.version) << c.worker.min << ".." << c.worker.max;
    EXPECT_EQ(prefill_->session_version, c.version);
  }
}

TEST_F(WireVersionsTest, WithoutACommonVersionAWorkerIsRefusedCountedAndTold) {
  StartRouter({.min = kN - 1, .max = kN});
  const ToyWire others[] = {{kN - 2, kN - 2}, {kN + 1, kN + 2, true}};
  int num_refused = 0;
  for (const ToyWire& wire : others) {
    EXPECT_FALSE(Join(wire));
    num_refused += 2;
    EXPECT_TRUE(IsCounted("wire_version", num_refused));
    const std::string theirs = std::to_string(wire.min) + ".." + std::to_string(wire.max);
    for (const std::string& part : {theirs, std::string("4..5")}) {
      EXPECT_NE(decode_->refusal.find(part), std::string::npos) << decode_->refusal;
    }
    EXPECT_FALSE(process_->ready());
  }
  ASSERT_TRUE(Join({kN, kN}));
  ASSERT_TRUE(WaitReady(true));
  EXPECT_EQ(Answer(), "abcde");
  EXPECT_TRUE(IsCounted("wire_version", num_refused));
}

// Hours after its hello a worker that sends nonsense loses its registration, which was not refused.
TEST_F(WireVersionsTest, AMalformedReportOfARegisteredWorkerIsNoRefusal) {
  ToyWorker worker("decode-0", v1::WORKER_ROLE_DECODE);
  worker.Register(process_->grpc_address());
  ASSERT_EQ(worker.refusal, "");
  ASSERT_TRUE(WaitReady(true));
  worker.SendPrefix(1, false, kMaxPrefixChanges + 1);
  ASSERT_TRUE(WaitReady(false));
  EXPECT_TRUE(IsCounted("malformed", 0));
  const auto stub = v1::RouterRegistry::NewStub(channel_);
  grpc::ClientContext context;
  const auto lease = stub->Register(&context);
  v1::WorkerReport load;
  load.mutable_load();
  lease->Write(load);
  v1::RouterDirective answer;
  ASSERT_TRUE(lease->Read(&answer));
  EXPECT_NE(answer.ack().refusal().find("before the hello"), std::string::npos);
  EXPECT_TRUE(IsCounted("malformed", 1));
}

// In the middle of an upgrade the router may be the only one whom both of two workers understand.
TEST_F(WireVersionsTest, TwoWorkersWithoutACommonVersionAreNotOfOneModel) {
  StartRouter({.min = kN - 1, .max = kN + 1});
  ToyWorker old("decode-0", v1::WORKER_ROLE_DECODE);
  old.wire = {kN - 1, kN - 1};
  old.Register(process_->grpc_address());
  ASSERT_EQ(old.refusal, "");
  ToyWorker young("prefill-0", v1::WORKER_ROLE_PREFILL);
  young.wire = {kN, kN + 1};
  young.Register(process_->grpc_address(), "decode-0");
  EXPECT_NE(young.refusal.find("wire version differs: prefill-0 has 5..6, decode-0 has 4..4"),
            std::string::npos)
      << young.refusal;
  EXPECT_TRUE(IsCounted("wire_version", 1));
  ASSERT_TRUE(WaitReady(true)) << "what was there goes on";
}

}  // namespace
}  // namespace baton::api
