// Sessions of routers with a worker, over real gRPC and with a real engine; only the model is a
// toy.
#include <poll.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

#include "src/base/clock.h"
#include "src/base/limits.h"
#include "src/engine/engine.h"
#include "src/rpc/local_stream.h"
#include "src/worker/session_service.h"
#include "tests/engine/paced_model.h"
#include "tests/proto/unknown_fields.h"

namespace baton::worker {

using kv::KvArena;
using kv::Renew;
using limits::kMaxChoices;
using limits::kMaxQueuedEvents;
using namespace engine;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kIncarnation = 0xabc;

// How a worker's messages come.
enum class Way { kGrpc, kLocal };

// A router's side of one session.
class Client {
 public:
  explicit Client(const std::string& address, Way way = Way::kGrpc) {
    if (way == Way::kLocal) listener_ = rpc::ListenLocal().value();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::WorkerService::NewStub(channel_);
    stream_ = stub_->Session(&context_);
  }

  void Hello(uint64_t incarnation = kIncarnation, uint32_t version = kWireVersions.max) {
    v1::RouterMessage message;
    message.mutable_hello()->set_router_incarnation(5);
    message.mutable_hello()->set_worker_incarnation(incarnation);
    message.mutable_hello()->set_wire_version(version);
    message.mutable_hello()->set_local_stream(listener_.name);
    Write(message);
  }
  void Start(uint64_t uid, uint32_t max_tokens, uint32_t n = 1, uint32_t attempt = 1) {
    v1::RouterMessage message;
    v1::RequestSpec* spec = message.mutable_start_decode()->mutable_spec();
    message.mutable_start_decode()->set_local(true);
    spec->mutable_uid()->set_lo(uid);
    spec->set_attempt(attempt);
    for (const TokenId token : Prompt(uid)) spec->add_tokens(static_cast<uint32_t>(token));
    spec->set_n(n);
    spec->set_deadline_ms(60'000);
    spec->set_tenant("default");
    v1::SamplingParams* sampling = spec->mutable_sampling();
    sampling->set_top_p(1);
    sampling->set_repetition_penalty(1);
    sampling->set_max_tokens(max_tokens);
    sampling->set_ignore_eos(true);
    Write(message);
  }
  void Cancel(uint64_t uid) {
    v1::RouterMessage message;
    message.mutable_cancel()->mutable_uid()->set_lo(uid);
    message.mutable_cancel()->set_attempt(1);
    Write(message);
  }
  void Renew(uint32_t lease_ms) {
    v1::RouterMessage message;
    message.mutable_renew()->set_lease_ms(lease_ms);
    Write(message);
  }
  void Write(v1::RouterMessage message) {
    if (is_newer) AddUnknownFields(&message);
    stream_->Write(message);
  }
  static std::vector<TokenId> Prompt(uint64_t uid) {
    return {static_cast<TokenId>(uid % 60 + 1), 7, 9};
  }

  // Reads until `done` says so or the stream ends; false = it ended.
  bool ReadUntil(const std::function<bool()>& done) {
    v1::WorkerMessage message;
    while (!done()) {
      if (!Next(&message)) return false;
      if (message.has_hello()) ++num_hellos;
      for (const v1::TokenEvent& event : message.step().events()) {
        tokens[event.uid().lo()].push_back(event.token());
      }
      if (message.has_status()) {
        states[message.status().uid().lo()] = message.status();
      }
    }
    return true;
  }
  bool ReadState(uint64_t uid, v1::RequestState state) {
    return ReadUntil([&] { return states.count(uid) > 0 && states[uid].state() == state; });
  }
  bool ReadTokens(uint64_t uid, size_t count) {
    return ReadUntil([&] { return tokens[uid].size() >= count; });
  }
  // The status that the worker ended the session with.
  grpc::Status End() {
    ReadUntil([] { return false; });
    return stream_->Finish();
  }
  // Nobody takes the local stream any more.
  void StopListening() { listener_.fd.reset(); }
  void HalfClose() { stream_->WritesDone(); }
  void Drop() { context_.TryCancel(); }

  bool is_newer = false;  // adds what the worker does not know to each message
  int num_hellos = 0;
  int num_over_grpc = 0;  // messages
  std::map<uint64_t, std::vector<uint32_t>> tokens;
  std::map<uint64_t, v1::RequestStatus> states;

 private:
  static void WaitReadable(int fd) {
    pollfd waits{.fd = fd, .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&waits, 1, 60'000), 1) << "the worker says nothing";
  }
  // The local stream's messages, then those of gRPC; false = both ended.
  bool Next(v1::WorkerMessage* message) {
    if (listener_.fd.valid() && !reader_.has_value()) {
      WaitReadable(listener_.fd.get());
      reader_.emplace(rpc::AcceptLocal(listener_.fd.get()).value());
    }
    while (reader_.has_value() && local_.empty()) {
      WaitReadable(reader_->fd());
      const auto outcome = reader_->Read([this](std::string_view frame) {
        return local_.emplace_back().ParseFromArray(frame.data(), static_cast<int>(frame.size()));
      });
      EXPECT_NE(outcome, rpc::LocalReader::Outcome::kBroken);
      if (outcome == rpc::LocalReader::Outcome::kEnd) break;
    }
    if (local_.empty()) {
      if (!stream_->Read(message)) return false;
      ++num_over_grpc;
      return true;
    }
    *message = std::move(local_.front());
    local_.pop_front();
    return true;
  }

  rpc::LocalListener listener_;
  std::optional<rpc::LocalReader> reader_;
  std::deque<v1::WorkerMessage> local_;  // read and not returned yet
  grpc::ClientContext context_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::RouterMessage, v1::WorkerMessage>> stream_;
};

class SessionTest : public testing::Test {
 protected:
  void StartWorker(int64_t request_lease_us = 60'000'000, size_t max_queued = kMaxQueuedEvents,
                   const WireRange& wire = kWireVersions, const Clock* clock = &SystemClock()) {
    SessionLimits limits{.incarnation = Incarnation(kIncarnation),
                         .prefill = false,
                         .vocab_size = kToyVocab,
                         .max_context = 200};
    limits.max_queued_events = max_queued;
    limits.wire = wire;
    sessions_ = std::make_unique<SessionService>(limits);
    arena_ = *KvArena::Create(ToyLayout(), 2048);
    kv_ = KvStore::OnHost(arena_.get());
    EngineConfig config;
    config.scheduler.max_batch_tokens = 200;
    config.scheduler.max_running = 128;
    config.max_context = 200;
    config.request_lease_us = request_lease_us;
    auto engine = Engine::Create(
        config, {.model = &model_, .kv = kv_.get(), .listener = sessions_.get(), .clock = clock});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    sessions_->set_engine(engine_.get());
    ASSERT_TRUE(engine_->Start().ok());
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(sessions_.get());
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  // Its leases end by clock_, which the test moves.
  void StartWithLease(int64_t request_lease_us) {
    StartWorker(request_lease_us, kMaxQueuedEvents, kWireVersions, &clock_);
  }
  void TearDown() override {
    if (sessions_) sessions_->CloseAll();
    if (server_) server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    if (engine_) engine_->Stop();
  }

  static bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 10'000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }
  // Nothing lives and every block is free.
  bool LedgerClears() {
    return Eventually([this] {
      const EngineSnapshot s = engine_->Snapshot();
      return engine_->IsIdle() && s.num_requests == 0 && s.blocks.num_unheld() == s.blocks.total;
    });
  }
  uint64_t NumOf(RequestState state) {
    return engine_->Snapshot().states[static_cast<size_t>(state)];
  }
  uint32_t NumRequests() { return engine_->Snapshot().num_requests; }

  // The tokens that the toy model gives when it samples greedily.
  static std::vector<uint32_t> Expected(uint64_t uid, size_t count) {
    std::vector<TokenId> sequence = Client::Prompt(uid);
    std::vector<uint32_t> tokens;
    while (tokens.size() < count) {
      const std::vector<float> logits = ToyModel::LogitsAfter(sequence);
      const auto best = std::max_element(logits.begin(), logits.end());
      tokens.push_back(static_cast<uint32_t>(best - logits.begin()));
      sequence.push_back(static_cast<TokenId>(tokens.back()));
    }
    return tokens;
  }

  FakeClock clock_;  // of StartWithLease's engine
  PacedModel model_;
  std::unique_ptr<SessionService> sessions_;
  std::unique_ptr<KvArena> arena_;
  std::unique_ptr<KvStore> kv_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

class SessionWayTest : public SessionTest, public testing::WithParamInterface<Way> {};

INSTANTIATE_TEST_SUITE_P(Ways, SessionWayTest, testing::Values(Way::kGrpc, Way::kLocal));

TEST_P(SessionWayTest, TokensAndStatesOfARequestArrive) {
  StartWorker();
  Client client(address_, GetParam());
  client.Hello();
  client.Start(1, 12);
  client.Start(2, 5);
  ASSERT_TRUE(client.ReadState(1, v1::REQUEST_STATE_FINISHED));
  ASSERT_TRUE(client.ReadState(2, v1::REQUEST_STATE_FINISHED));
  EXPECT_EQ(client.num_hellos, 1);
  EXPECT_EQ(client.tokens[1], Expected(1, 12));
  EXPECT_EQ(client.tokens[2], Expected(2, 5));
  client.HalfClose();
  EXPECT_TRUE(client.End().ok());
  EXPECT_EQ(client.num_over_grpc > 0, GetParam() == Way::kGrpc);
  EXPECT_TRUE(LedgerClears());
}

TEST_F(SessionTest, RouterOfAnotherHostIsAnsweredOverGrpc) {
  StartWorker();
  Client client(address_, Way::kLocal);
  client.StopListening();
  client.Hello();
  client.Start(1, 12);
  ASSERT_TRUE(client.ReadState(1, v1::REQUEST_STATE_FINISHED));
  EXPECT_EQ(client.tokens[1], Expected(1, 12));
}

TEST_F(SessionTest, SessionForAnotherLifeOrWithoutAHelloEnds) {
  StartWorker();
  struct Case {
    const char* word;
    std::function<void(Client&)> open;
  };
  const Case cases[] = {
      {"incarnation", [](Client& c) { c.Hello(kIncarnation + 1); }},
      {"wire version", [](Client& c) { c.Hello(kIncarnation, kWireVersions.max + 1); }},
      {"wire version", [](Client& c) { c.Hello(kIncarnation + 1, kWireVersions.max + 1); }},
      {"no hello", [](Client& c) { c.Start(1, 5); }},
      {"second hello",
       [](Client& c) {
         c.Hello();
         c.Hello();
       }},
  };
  for (const Case& c : cases) {
    Client client(address_);
    c.open(client);
    const grpc::Status status = client.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << c.word;
    EXPECT_NE(status.error_message().find(c.word), std::string::npos) << status.error_message();
  }
  EXPECT_TRUE(LedgerClears());
}

TEST_F(SessionTest, EveryVersionOfTheRangeIsServedAndOthersAreRefusedByName) {
  StartWorker(60'000'000, kMaxQueuedEvents, {.min = 4, .max = 5});
  for (const uint32_t version : {4u, 5u}) {
    Client client(address_);
    client.Hello(kIncarnation, version);
    client.Start(version, 5);
    ASSERT_TRUE(client.ReadState(version, v1::REQUEST_STATE_FINISHED)) << version;
    EXPECT_EQ(client.tokens[version], Expected(version, 5));
  }
  for (const uint32_t version : {0u, 3u, 6u}) {
    Client client(address_);
    client.Hello(kIncarnation, version);
    const grpc::Status status = client.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_EQ(status.error_message(),
              "wire version " + std::to_string(version) + " is not spoken here, only 4..5");
  }
  EXPECT_TRUE(LedgerClears());
}

TEST_F(SessionTest, WhatALaterRouterAddsIsPassedOver) {
  StartWorker();
  Client client(address_);
  client.is_newer = true;
  client.Hello();
  client.Write({});  // of a kind that the worker does not know
  client.Start(1, 12, /*n=*/2);
  client.Renew(60'000);
  ASSERT_TRUE(client.ReadState(1, v1::REQUEST_STATE_FINISHED));
  EXPECT_EQ(client.tokens[1].size(), 24u);
  client.Start(2, 5);
  ASSERT_TRUE(client.ReadState(2, v1::REQUEST_STATE_FINISHED));
  EXPECT_EQ(client.tokens[2], Expected(2, 5));
  model_.step_us = 2'000;
  client.Start(3, 190);
  ASSERT_TRUE(client.ReadTokens(3, 1));
  client.Cancel(3);
  EXPECT_TRUE(client.ReadState(3, v1::REQUEST_STATE_CANCELLED));
  EXPECT_TRUE(LedgerClears());
}

TEST_F(SessionTest, EndOfASessionCancelsItsRequestsAndNoOthers) {
  StartWorker();
  model_.step_us = 2'000;
  Client stays(address_);
  stays.Hello();
  stays.Start(100, 190);
  ASSERT_TRUE(stays.ReadTokens(100, 1));
  for (const bool abrupt : {true, false}) {
    Client leaves(address_);
    leaves.Hello();
    for (uint64_t uid = 1; uid <= 8; ++uid) leaves.Start(uid, 190);
    ASSERT_TRUE(leaves.ReadTokens(8, 1));
    EXPECT_TRUE(Eventually([&] { return NumRequests() == 9; }));
    abrupt ? leaves.Drop() : leaves.HalfClose();
    EXPECT_TRUE(Eventually([&] { return NumRequests() == 1; })) << "abrupt " << abrupt;
    EXPECT_LT(stays.tokens[100].size(), 190u);
  }
  model_.step_us = 0;
  ASSERT_TRUE(stays.ReadState(100, v1::REQUEST_STATE_FINISHED));
  EXPECT_EQ(stays.tokens[100], Expected(100, 190));
  stays.HalfClose();
  EXPECT_TRUE(stays.End().ok());
  EXPECT_TRUE(LedgerClears());
}

TEST_F(SessionTest, CancelEndsOneRequest) {
  StartWorker();
  model_.step_us = 2'000;
  Client client(address_);
  client.Hello();
  client.Start(1, 190);
  client.Start(2, 190);
  ASSERT_TRUE(client.ReadTokens(1, 3));
  client.Cancel(1);
  ASSERT_TRUE(client.ReadState(1, v1::REQUEST_STATE_CANCELLED));
  EXPECT_LT(client.tokens[1].size(), 190u);
  const size_t at_end = client.tokens[1].size();
  client.Cancel(1);     // again, and
  client.Cancel(4711);  // of what never was: nothing
  model_.step_us = 0;
  ASSERT_TRUE(client.ReadState(2, v1::REQUEST_STATE_FINISHED));
  EXPECT_EQ(client.tokens[2], Expected(2, 190));
  EXPECT_EQ(client.tokens[1].size(), at_end) << "nothing follows the end";
  EXPECT_TRUE(LedgerClears());
}

// The engine's inbox takes every cancel, so a flood must end before it.
TEST_F(SessionTest, AFloodOfCancelsStaysOutOfTheEngine) {
  constexpr int kFlood = 5'000;
  StartWorker();
  model_.step_us = 10'000;
  Client stranger(address_);
  stranger.Hello();
  Client client(address_);
  client.Hello();
  client.Start(1, 190);
  ASSERT_TRUE(client.ReadTokens(1, 1));
  for (int i = 0; i < kFlood; ++i) stranger.Cancel(i % 2 == 0 ? 1 : 4711);
  // The worker reads in order: an order that comes after the flood is answered after it.
  stranger.Start(2, 2);
  ASSERT_TRUE(stranger.ReadState(2, v1::REQUEST_STATE_FINISHED));
  EXPECT_EQ(NumOf(RequestState::kCancelled), 0u) << "another session's request was cancelled";
  for (int i = 0; i < 100; ++i) client.Cancel(1);
  ASSERT_TRUE(client.ReadState(1, v1::REQUEST_STATE_CANCELLED));
  EXPECT_LT(engine_->Snapshot().num_events, 100u) << "of " << kFlood << " cancels";
  EXPECT_TRUE(LedgerClears());
}

TEST_F(SessionTest, RequestsOutliveTheirLeaseOnlyWhenRenewed) {
  StartWithLease(/*request_lease_us=*/1'500'000);
  model_.step_us = 10'000;
  Client renews(address_);
  Client forgets(address_);
  renews.Hello();
  forgets.Hello();
  renews.Start(1, 100);
  forgets.Start(2, 100);
  ASSERT_TRUE(renews.ReadTokens(1, 1));
  ASSERT_TRUE(forgets.ReadTokens(2, 1));
  for (int i = 0; i < 4; ++i) {
    const uint64_t num_events = engine_->Snapshot().num_events;
    renews.Renew(1'500);
    ASSERT_TRUE(Eventually([&] { return engine_->Snapshot().num_events > num_events; }));
    clock_.AdvanceMs(500);
  }
  EXPECT_TRUE(
      forgets.ReadUntil([&] { return forgets.states[2].state() >= v1::REQUEST_STATE_FINISHED; }));
  EXPECT_NE(forgets.states[2].state(), v1::REQUEST_STATE_FINISHED);
  EXPECT_LT(forgets.tokens[2].size(), 100u);
  EXPECT_TRUE(renews.ReadState(1, v1::REQUEST_STATE_FINISHED));
  EXPECT_EQ(renews.tokens[1], Expected(1, 100));
  EXPECT_TRUE(LedgerClears());
}

// Nobody renews while nothing runs, so a request that comes just before an old lease ends has a
// lease of its own.
TEST_F(SessionTest, LeaseStartsAnewWithEveryRequest) {
  StartWithLease(/*request_lease_us=*/2'000'000);
  Client client(address_);
  client.Hello();
  client.Start(1, 2);
  ASSERT_TRUE(client.ReadState(1, v1::REQUEST_STATE_FINISHED));
  clock_.AdvanceMs(1'700);
  model_.step_us = 5'000;
  client.Start(2, 100);
  ASSERT_TRUE(client.ReadTokens(2, 1));
  clock_.AdvanceMs(1'000);  // the first lease would have ended; the second has not
  EXPECT_TRUE(
      client.ReadUntil([&] { return client.states[2].state() >= v1::REQUEST_STATE_FINISHED; }));
  EXPECT_EQ(client.states[2].state(), v1::REQUEST_STATE_FINISHED) << client.states[2].message();
  EXPECT_EQ(client.tokens[2], Expected(2, 100));
}

TEST_F(SessionTest, WrongOrderIsRejectedAndTheSessionGoesOn) {
  StartWorker();
  Client client(address_);
  client.Hello();
  v1::RouterMessage bad;
  bad.mutable_start_decode()->set_local(true);
  bad.mutable_start_decode()->mutable_spec()->mutable_uid()->set_lo(1);
  bad.mutable_start_decode()->mutable_spec()->set_attempt(1);
  bad.mutable_start_decode()->mutable_spec()->add_tokens(kToyVocab);
  client.Write(bad);
  ASSERT_TRUE(client.ReadState(1, v1::REQUEST_STATE_REJECTED));
  EXPECT_EQ(client.states[1].code(), 3u);
  EXPECT_NE(client.states[1].message().find("token 64"), std::string::npos);
  v1::RouterMessage other_role;
  other_role.mutable_start_prefill()->mutable_spec()->mutable_uid()->set_lo(2);
  other_role.mutable_start_prefill()->mutable_spec()->set_attempt(1);
  client.Write(other_role);
  ASSERT_TRUE(client.ReadState(2, v1::REQUEST_STATE_REJECTED));
  // Numbers that only the engine can judge.
  client.Start(3, 0);
  ASSERT_TRUE(client.ReadState(3, v1::REQUEST_STATE_REJECTED));
  client.Start(4, 5, 129);
  ASSERT_TRUE(client.ReadState(4, v1::REQUEST_STATE_REJECTED));
  client.Write(v1::RouterMessage());  // a kind of a newer version
  client.Start(5, 5);
  ASSERT_TRUE(client.ReadState(5, v1::REQUEST_STATE_FINISHED));
  EXPECT_EQ(client.tokens[5], Expected(5, 5));
  EXPECT_TRUE(LedgerClears());
}

// By the codec and by the engine; the attempt that runs is not concerned.
TEST_F(SessionTest, RefusedAttemptLeavesTheOneBeforeItCancellable) {
  StartWorker();
  model_.step_us = 2000;
  Client client(address_);
  client.Hello();
  constexpr uint32_t kNoChoice = 0;
  constexpr uint32_t kTooMany = kMaxChoices + 1;
  for (const uint32_t n : {kNoChoice, kTooMany}) {
    const uint64_t uid = 1 + n;
    client.Start(uid, 180);
    ASSERT_TRUE(client.ReadTokens(uid, 2));
    client.Start(uid, 180, n, /*attempt=*/2);
    ASSERT_TRUE(client.ReadState(uid, v1::REQUEST_STATE_REJECTED)) << n;
    client.Cancel(uid);
    EXPECT_TRUE(client.ReadUntil([&] {
      const v1::RequestState state = client.states[uid].state();
      return state == v1::REQUEST_STATE_CANCELLED || state == v1::REQUEST_STATE_FINISHED;
    }));
    EXPECT_EQ(client.states[uid].state(), v1::REQUEST_STATE_CANCELLED) << n;
  }
  EXPECT_TRUE(LedgerClears());
}

TEST_F(SessionTest, DrainingWorkerRejectsForAnotherTry) {
  StartWorker();
  Client client(address_);
  client.Hello();
  client.Start(1, 3);
  ASSERT_TRUE(client.ReadState(1, v1::REQUEST_STATE_FINISHED));
  engine_->BeginDrain();
  client.Start(2, 3);
  ASSERT_TRUE(client.ReadState(2, v1::REQUEST_STATE_REJECTED));
  EXPECT_EQ(client.states[2].code(), 14u);
}

// The queue to a router that stops reading is bounded, and its requests end with it; others do not
// notice.
TEST_P(SessionWayTest, RouterThatDoesNotReadIsCutOff) {
  // Far above what waits for a router that reads: steps are slower than writes.
  constexpr size_t kMaxQueued = 20'000;
  StartWorker(60'000'000, kMaxQueued);
  model_.step_us = 300;
  Client reads(address_, GetParam());
  reads.Hello();
  Client stalls(address_, GetParam());
  stalls.Hello();
  ASSERT_TRUE(stalls.ReadUntil([&] { return stalls.num_hellos == 1; }));
  // 128 choices of 190 tokens each: 24,320 events a request, some 40 bytes an event. The network
  // takes the first few hundred KiB.
  uint64_t uid = 1;
  for (; uid < 40; ++uid) {
    stalls.Start(uid, 190, 128);
    const auto ended = [&] {
      return NumOf(RequestState::kFinished) + NumOf(RequestState::kCancelled) >= uid;
    };
    if (!Eventually(ended) || NumOf(RequestState::kCancelled) > 0) break;
  }
  EXPECT_LT(uid, 40u) << "the session was never cut off";
  EXPECT_TRUE(Eventually([&] { return NumRequests() == 0; })) << "nobody has read a byte yet";
  reads.Start(1000, 190, 128);
  ASSERT_TRUE(reads.ReadState(1000, v1::REQUEST_STATE_FINISHED));
  EXPECT_EQ(reads.tokens[1000].size(), 190u * 128);
  EXPECT_FALSE(stalls.End().ok());
  reads.HalfClose();
  EXPECT_TRUE(reads.End().ok());
  EXPECT_TRUE(LedgerClears());
}

TEST_F(SessionTest, CloseAllEndsEverySession) {
  StartWorker();
  model_.step_us = 2'000;
  Client a(address_);
  Client b(address_);
  a.Hello();
  b.Hello();
  a.Start(1, 190);
  ASSERT_TRUE(a.ReadTokens(1, 1));
  ASSERT_TRUE(b.ReadUntil([&] { return b.num_hellos == 1; }));
  sessions_->CloseAll();
  EXPECT_EQ(a.End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(b.End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(LedgerClears());
}

// A worker that leaves has said everything: the router reads the last token before the end.
TEST_P(SessionWayTest, WhatWaitsIsDeliveredBeforeTheEnd) {
  StartWorker();
  Client slow(address_, GetParam());
  slow.Hello();
  slow.Start(1, 190,
             64);  // half a MB, more than the network takes from a router that does not read
  ASSERT_TRUE(Eventually([&] { return NumOf(RequestState::kFinished) == 1; }));
  sessions_->CloseAll();
  EXPECT_EQ(slow.End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(slow.tokens[1].size(), 190u * 64);
  EXPECT_EQ(slow.states[1].state(), v1::REQUEST_STATE_FINISHED);
  EXPECT_TRUE(Eventually([&] { return sessions_->num_sessions() == 0; }));
}

}  // namespace
}  // namespace baton::worker
