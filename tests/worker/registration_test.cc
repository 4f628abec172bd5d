// A worker's lease with its routers, over real gRPC.
#include "src/worker/registration.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/keepalive.h"
#include "src/base/limits.h"
#include "tests/proto/unknown_fields.h"
#include "tests/tls/test_certs.h"
#include "tests/worker/fake_router.h"

namespace baton::worker {

namespace test = tls::test;
using engine::PrefixJournal;
using kv::ChainFromBytes;

namespace {

class RegistrationTest : public testing::Test {
 protected:
  RegistrationConfig Config(std::vector<std::string> routers) {
    RegistrationConfig config;
    config.routers = std::move(routers);
    config.hello.mutable_worker()->set_worker_id("decode-0");
    config.hello.mutable_worker()->set_incarnation(77);
    config.load = [this] {
      v1::WorkerLoad load;
      load.set_running(running_.load());
      return load;
    };
    config.on_peers = [this](const std::vector<v1::Peer>& peers) {
      std::lock_guard lock(mutex_);
      peer_ids_.clear();
      for (const v1::Peer& peer : peers) peer_ids_.push_back(peer.worker().worker_id());
    };
    config.on_drain = [this](int64_t timeout_ms) { drain_ms_ = timeout_ms; };
    config.on_refused = [this](const Status& why) {
      std::lock_guard lock(mutex_);
      ++num_given_up_;
      given_up_ = why;
    };
    return config;
  }
  void Start(RegistrationConfig config) {
    registration_ = std::make_unique<Registration>(std::move(config));
  }
  static bool Eventually(const std::function<bool()>& condition) {
    const int64_t deadline_us = SystemClock().NowUs() + 20'000'000;
    while (!condition()) {
      if (SystemClock().NowUs() > deadline_us) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  bool Registered() { return registration_->state().ok(); }
  std::vector<std::string> PeerIds() {
    std::lock_guard lock(mutex_);
    return peer_ids_;
  }
  int num_given_up() {
    std::lock_guard lock(mutex_);
    return num_given_up_;
  }
  static v1::RouterDirective Peers(const std::vector<std::string>& ids) {
    v1::RouterDirective directive;
    directive.mutable_peers();
    for (const std::string& id : ids) {
      v1::Peer* peer = directive.mutable_peers()->add_peers();
      peer->mutable_worker()->set_worker_id(id);
      peer->mutable_worker()->set_incarnation(std::hash<std::string>()(id));
    }
    return directive;
  }

  FakeRouter router_;
  std::atomic<uint32_t> running_{0};
  std::atomic<int64_t> drain_ms_{0};
  std::mutex mutex_;  // guards what follows
  std::vector<std::string> peer_ids_;
  int num_given_up_ = 0;
  Status given_up_;
  std::unique_ptr<Registration> registration_;  // last: its thread calls the above
};

// Passes one connection on, byte by byte, until the host behind it "loses its power": the sockets
// stay open and nothing moves any more.
class Relay {
 public:
  explicit Relay(const std::string& target) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    const int target_port = std::stoi(target.substr(target.rfind(':') + 1));
    thread_ = std::thread([this, target_port] { Run(target_port); });
  }
  ~Relay() {
    Freeze();
    for (const int fd : {listener_, near_, far_}) {
      if (fd >= 0) ::close(fd);
    }
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void Freeze() {
    frozen_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  bool WaitReadable(int fd) {
    pollfd entry{fd, POLLIN, 0};
    return ::poll(&entry, 1, 1) > 0;
  }

  void Run(int target_port) {
    while (!WaitReadable(listener_)) {
      if (frozen_) return;
    }
    near_ = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    far_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in target = Loopback(target_port);
    EXPECT_EQ(::connect(far_, reinterpret_cast<const sockaddr*>(&target), sizeof(target)), 0);
    while (!frozen_) {
      Copy(near_, far_);
      Copy(far_, near_);
    }
  }

  void Copy(int from, int to) {
    char bytes[4096];
    if (!WaitReadable(from)) return;
    const ssize_t count = ::recv(from, bytes, sizeof(bytes), 0);
    if (count <= 0) return;
    EXPECT_EQ(::send(to, bytes, static_cast<size_t>(count), MSG_NOSIGNAL), count);
  }

  int listener_ = -1;
  int near_ = -1;
  int far_ = -1;
  int port_ = 0;
  std::atomic<bool> frozen_{false};
  std::thread thread_;
};

// A host that vanishes says nothing, and TCP would wait for it for a quarter of an hour.
TEST_F(RegistrationTest, RouterWhoseHostVanishesIsNoticed) {
  Relay relay(router_.address());
  Start(Config({relay.address()}));
  ASSERT_TRUE(Eventually([&] { return Registered(); }));
  // A living router that has nothing to say is not taken for a dead one.
  // So many reports take longer than two pings that had to wait for their answers.
  constexpr size_t kNumReports = 2 * kKeepaliveTimeMs / limits::kHeartbeatMs + 1;
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.loads.size() > kNumReports; }));
  EXPECT_EQ(router_.num_hellos(), 1u);
  EXPECT_TRUE(Registered());
  relay.Freeze();
  const int64_t start_us = SystemClock().NowUs();
  EXPECT_TRUE(Eventually([&] { return !Registered(); }));
  EXPECT_LT(SystemClock().NowUs() - start_us, 11'000'000);
}

TEST_F(RegistrationTest, HelloComesFirstAndReportsFollowInOrder) {
  running_ = 3;
  Start(Config({router_.address()}));
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.loads.size() >= 4; }));
  ASSERT_TRUE(Eventually([&] { return Registered(); }));
  registration_.reset();
  router_.Die();
  EXPECT_EQ(router_.last_hello.worker().worker_id(), "decode-0");
  EXPECT_EQ(router_.last_hello.worker().incarnation(), 77u);
  ASSERT_EQ(router_.hello_us.size(), 1u);
  EXPECT_GE(router_.load_us[0], router_.hello_us[0]);
  EXPECT_EQ(router_.loads[0].running(), 3u);
  for (size_t i = 1; i < router_.loads.size(); ++i) {
    EXPECT_GT(router_.loads[i].sequence_number(), router_.loads[i - 1].sequence_number());
  }
}

// One of megabytes on a slow way takes longer than as many heartbeats as may wait.
TEST_F(RegistrationTest, AHelloThatTakesLongIsNotGivenUp) {
  router_.Hold(true);
  RegistrationConfig config = Config({router_.address()});
  config.hello.set_tokenizer(std::string(size_t{8} << 20, 'x'));
  const auto num_beats = std::make_shared<std::atomic<int>>(0);
  config.load = [num_beats] {
    ++*num_beats;
    return v1::WorkerLoad();
  };
  Start(std::move(config));
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_begun == 1; }));
  ASSERT_TRUE(Eventually([&] { return *num_beats >= 12; }));
  router_.Hold(false);
  ASSERT_TRUE(Eventually([&] { return Registered(); }));
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.loads.size() >= 2; }));
  registration_.reset();
  router_.Die();
  EXPECT_EQ(router_.num_begun, 1u);
}

TEST_F(RegistrationTest, HeartbeatIsTheRoutersChoice) {
  router_.SetHeartbeat(20);
  Start(Config({router_.address()}));
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.loads.size() >= 60; }));
  registration_.reset();
  router_.Die();
  // 59 intervals of 20 ms; at the default of 250 ms they would take 15 s.
  EXPECT_LT(router_.load_us[59] - router_.load_us[0], 10'000'000);
}

// A worker with hundreds of links asks as often when they all come up. As many reports that wait
// would look like a router that does not read.
TEST_F(RegistrationTest, ManyReportsAtOnceKeepTheLease) {
  Start(Config({router_.address()}));
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 1; }));
  for (uint32_t i = 1; i <= 20'000; ++i) {
    running_ = i;
    registration_->ReportNow();
  }
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) {
    return !r.loads.empty() && r.loads.back().running() == 20'000;
  })) << "the last state is told in any case";
  EXPECT_TRUE(Eventually([this] { return Registered(); })) << "all of it can precede the answer";
  EXPECT_EQ(router_.num_hellos(), 1u);
}

TEST_F(RegistrationTest, ReportNowDoesNotWaitForTheHeartbeat) {
  router_.SetHeartbeat(1000);
  Start(Config({router_.address()}));
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 1; }));
  running_ = 9;
  const int64_t asked_us = SystemClock().NowUs();
  registration_->ReportNow();
  ASSERT_TRUE(router_.Wait(
      [](const FakeRouter& r) { return !r.loads.empty() && r.loads.back().running() == 9; }));
  EXPECT_LT(SystemClock().NowUs() - asked_us, 900'000);
}

// The router hears all of the prefix cache first, and then changes. It hears all again when it asks
// or when the lease is new.
TEST_F(RegistrationTest, PrefixChangesFollowTheLease) {
  PrefixJournal journal(16);
  journal.OnPrefixChange({{1, 1}, true, 0});
  router_.SetHeartbeat(20);
  RegistrationConfig config = Config({router_.address()});
  config.prefixes = &journal;
  Start(std::move(config));
  const auto num_batches = [](size_t n) {
    return [n](const FakeRouter& r) { return r.prefixes.size() >= n; };
  };
  ASSERT_TRUE(router_.Wait(num_batches(1)));
  journal.OnPrefixChange({{2, 2}, true, 1});
  ASSERT_TRUE(router_.Wait(num_batches(2)));
  v1::RouterDirective resync;
  resync.mutable_resync();
  router_.Send(resync);
  ASSERT_TRUE(router_.Wait(num_batches(3)));
  router_.Die();
  router_.ComeBack();
  ASSERT_TRUE(router_.Wait(num_batches(4)));
  registration_.reset();
  router_.Die();
  const std::vector<v1::PrefixEvents>& told = router_.prefixes;
  ASSERT_EQ(told.size(), 4u) << "nothing is told when nothing changed";
  const auto links = [&told](size_t i) { return ChainFromBytes(told[i].links())->size(); };
  EXPECT_TRUE(told[0].reset());
  EXPECT_EQ(links(0), 1u);
  EXPECT_FALSE(told[1].reset());
  EXPECT_EQ(links(1), 1u);
  EXPECT_EQ(told[1].first_sequence(), told[0].first_sequence() + 1);
  EXPECT_TRUE(told[2].reset());
  EXPECT_EQ(links(2), 2u);
  EXPECT_TRUE(told[3].reset()) << "a new lease knows nothing";
  EXPECT_EQ(links(3), 2u);
}

TEST_F(RegistrationTest, LostLeaseIsTakenAgainFromTheSameLife) {
  Start(Config({router_.address()}));
  ASSERT_TRUE(Eventually([&] { return Registered(); }));
  router_.Die();
  ASSERT_TRUE(Eventually([&] { return !Registered(); }));
  const Status state = registration_->state();
  EXPECT_EQ(state.code(), StatusCode::kUnavailable);
  EXPECT_NE(state.ToString().find(router_.address()), std::string::npos) << state;
  EXPECT_NE(state.ToString().find("does not answer"), std::string::npos) << state;
  router_.ComeBack();
  const int64_t back_us = SystemClock().NowUs();
  ASSERT_TRUE(Eventually([&] { return Registered(); }));
  // The back-off ends at 2 s, gRPC's own at 1 s.
  EXPECT_LT(SystemClock().NowUs() - back_us, 6'000'000);
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.hello_us.size() == 2; }));
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) {
    return r.last_hello.worker().incarnation() == 77;
  })) << "the same incarnation: nothing that runs is void";
  EXPECT_EQ(num_given_up(), 0);
}

TEST_F(RegistrationTest, RouterThatEndsEveryStreamIsAskedWithGrowingPauses) {
  router_.Answer(false);
  Start(Config({router_.address()}));
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.hello_us.size() >= 5; }));
  registration_.reset();
  router_.Die();
  // Pauses of at least 100, 200, 400, 800 ms; a busy machine only lengthens them.
  int64_t least_us = 100'000;
  for (size_t i = 1; i < 5; ++i, least_us *= 2) {
    EXPECT_GE(router_.hello_us[i] - router_.hello_us[i - 1], least_us) << "before try " << i;
  }
}

TEST_F(RegistrationTest, RefusalIsNamedAskedAgainAndFinallyFinal) {
  const std::string why = "layout_id differs: decode-0 has a (x), prefill-0 has b (x)";
  router_.Refuse(why);
  RegistrationConfig config = Config({router_.address()});
  config.refused_retry_us = 50'000;
  config.refused_give_up_us = 1'000'000;
  const int64_t start_us = SystemClock().NowUs();
  Start(std::move(config));
  ASSERT_TRUE(Eventually([&] {
    return registration_->state().ToString().find(why) != std::string::npos;
  })) << registration_->state();
  EXPECT_NE(registration_->state().ToString().find(router_.address()), std::string::npos);
  ASSERT_TRUE(Eventually([&] { return num_given_up() > 0; }));
  EXPECT_GE(SystemClock().NowUs() - start_us, 1'000'000);
  EXPECT_GE(router_.num_hellos(), 3u) << "it asked again before it gave up";
  const size_t num_hellos = router_.num_hellos();
  ASSERT_TRUE(Eventually([&] { return router_.num_hellos() >= num_hellos + 4; }));
  EXPECT_EQ(num_given_up(), 1) << "it asks on, and says it once";
  EXPECT_EQ(given_up_.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(given_up_.ToString().find(why), std::string::npos) << given_up_;
}

TEST_F(RegistrationTest, RefusedWorkerJoinsOnceTheOthersAreGone) {
  router_.Refuse("weights_id differs");
  RegistrationConfig config = Config({router_.address()});
  config.refused_retry_us = 50'000;
  config.refused_give_up_us = 60'000'000;
  Start(std::move(config));
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.hello_us.size() >= 2; }));
  EXPECT_FALSE(Registered());
  router_.Refuse("");
  ASSERT_TRUE(Eventually([&] { return Registered(); }));
  EXPECT_EQ(num_given_up(), 0);
}

TEST_F(RegistrationTest, OneRouterThatAcceptsIsEnough) {
  FakeRouter refusing;
  refusing.Refuse("wire version differs");
  RegistrationConfig config = Config({refusing.address(), router_.address()});
  config.refused_retry_us = 20'000;
  config.refused_give_up_us = 100'000;
  Start(std::move(config));
  ASSERT_TRUE(Eventually([&] { return Registered() && refusing.num_hellos() >= 20; }));
  EXPECT_EQ(num_given_up(), 0);
  // A router that does not answer may accept later, so that is no ground to give up either.
  router_.Die();
  const size_t before = refusing.num_hellos();
  ASSERT_TRUE(Eventually([&] { return !Registered() && refusing.num_hellos() >= before + 20; }));
  EXPECT_EQ(num_given_up(), 0);
  const std::string state = registration_->state().ToString();
  EXPECT_NE(state.find("wire version differs"), std::string::npos) << state;
  EXPECT_NE(state.find("does not answer"), std::string::npos) << state;
}

TEST_F(RegistrationTest, PeersAreTheUnionOfWhatTheRoutersName) {
  FakeRouter other;
  Start(Config({router_.address(), other.address()}));
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 1; }));
  ASSERT_TRUE(other.Wait([](const FakeRouter& r) { return r.num_streams() == 1; }));
  router_.Send(Peers({"decode-1", "decode-2"}));
  other.Send(Peers({"decode-2", "decode-3"}));
  const std::vector<std::string> all = {"decode-1", "decode-2", "decode-3"};
  EXPECT_TRUE(Eventually([&] { return PeerIds() == all; }));
  router_.Send(Peers({}));
  const std::vector<std::string> rest = {"decode-2", "decode-3"};
  EXPECT_TRUE(Eventually([&] { return PeerIds() == rest; }));
  other.Die();
  other.ComeBack();
  // The worker has noticed the loss: it says hello again.
  ASSERT_TRUE(other.Wait([](const FakeRouter& r) { return r.hello_us.size() == 2; }));
  EXPECT_EQ(PeerIds(), rest) << "running hand-offs do not need the router that named the peer";
}

// A router of a later version: its directives hold more, and there are kinds of them that this
// worker does not know.
TEST_F(RegistrationTest, WhatALaterRouterAddsIsPassedOver) {
  Start(Config({router_.address()}));
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 1; }));
  v1::RouterDirective unknown;
  AddUnknownFields(&unknown);
  router_.Send(unknown);
  v1::RouterDirective peers = Peers({"decode-0", "decode-1"});
  for (v1::Peer& peer : *peers.mutable_peers()->mutable_peers()) {
    peer.add_transports(static_cast<v1::TransportKind>(kUnknownValue));
  }
  AddUnknownFields(&peers);
  router_.Send(peers);
  EXPECT_TRUE(Eventually([&] { return PeerIds().size() == 2; }));
  v1::RouterDirective drain;
  drain.mutable_drain()->set_timeout_ms(1234);
  AddUnknownFields(&drain);
  router_.Send(drain);
  EXPECT_TRUE(Eventually([&] { return drain_ms_ == 1234; }));
  EXPECT_TRUE(Registered());
  EXPECT_EQ(router_.num_hellos(), 1u) << "the lease was kept";
}

TEST_F(RegistrationTest, DrainDirectiveArrives) {
  Start(Config({router_.address()}));
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 1; }));
  v1::RouterDirective directive;
  directive.mutable_drain()->set_timeout_ms(1234);
  router_.Send(directive);
  EXPECT_TRUE(Eventually([&] { return drain_ms_ == 1234; }));
}

TEST_F(RegistrationTest, LeavingEndsTheStreams) {
  Start(Config({router_.address()}));
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 1; }));
  registration_.reset();
  EXPECT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 0; }));
}

TEST_F(RegistrationTest, NobodyListeningIsNoReasonToHang) {
  router_.Die();
  Start(Config({router_.address()}));
  // With the reason of a try that has failed.
  EXPECT_TRUE(Eventually([&] {
    return registration_->state().message().find("does not answer: ") != std::string::npos;
  })) << registration_->state();
  const int64_t start_us = SystemClock().NowUs();
  registration_.reset();
  EXPECT_LT(SystemClock().NowUs() - start_us, 5'000'000);
}

TEST_F(RegistrationTest, ACertificateOfTheClusterOpensTheLease) {
  const test::TempFolder folder;
  const test::TestAuthority authority;
  const test::TestAuthority stranger;
  FakeRouter router(authority.Issue(folder, "router"));
  RegistrationConfig config = Config({router.address()});
  config.tls = stranger.Issue(folder, "foreign");
  Start(std::move(config));
  // The reason is in /readyz and the log.
  ASSERT_TRUE(Eventually([&] {
    return registration_->state().message().find("CERTIFICATE_VERIFY_FAILED") !=
               std::string::npos ||
           registration_->state().message().find("certificate verify failed") != std::string::npos;
  })) << registration_->state();
  EXPECT_EQ(router.num_hellos(), 0u);
  config = Config({router.address()});
  config.tls = authority.Issue(folder, "worker");
  Start(std::move(config));
  EXPECT_TRUE(Eventually([&] { return Registered(); })) << registration_->state();
}

}  // namespace
}  // namespace baton::worker
