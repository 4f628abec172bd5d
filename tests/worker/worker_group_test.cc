// Two workers in this process: what routers are told of them, and how they come and leave.
#include "src/worker/worker_group.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/model/test_model.h"
#include "tests/worker/fake_router.h"

namespace baton::worker {

using device::DeviceKind;
using model::DemoModelPath;

namespace {

class WorkerGroupTest : public testing::Test {
 protected:
  WorkerConfig Config(WorkerRole role) {
    WorkerConfig config;
    config.role = role;
    config.worker_id = std::string(WorkerRoleName(role)) + "-0";
    config.routers = {router_.address()};
    config.model_path = DemoModelPath();
    config.model_id = "smollm2:135m";
    config.device = DeviceKind::kCpu;
    config.max_context = 256;
    config.kv_memory_bytes = 16 << 20;
    config.cluster_secret = "secret";
    return config;
  }
  std::vector<WorkerConfig> Both() {
    return {Config(WorkerRole::kPrefill), Config(WorkerRole::kDecode)};
  }

  FakeRouter router_;
};

TEST_F(WorkerGroupTest, RoutersSeeTwoWorkersThatReachEachOther) {
  const auto group = WorkerGroup::Start(Both());
  ASSERT_TRUE(group.ok()) << group.status();
  const auto has_link = [](const v1::WorkerLoad& load) {
    return load.links_size() == 1 && load.links(0).up();
  };
  ASSERT_TRUE(router_.Wait([&](const FakeRouter& r) {
    return r.hellos.size() == 2 && std::any_of(r.loads.begin(), r.loads.end(), has_link);
  }));
  std::map<v1::WorkerRole, v1::WorkerHello> hellos;
  for (const v1::WorkerHello& hello : router_.hellos) hellos[hello.role()] = hello;
  ASSERT_EQ(hellos.size(), 2u);
  const v1::WorkerHello& p = hellos[v1::WORKER_ROLE_PREFILL];
  const v1::WorkerHello& d = hellos[v1::WORKER_ROLE_DECODE];
  EXPECT_EQ(p.worker().worker_id(), "prefill-0");
  EXPECT_EQ(d.worker().worker_id(), "decode-0");
  EXPECT_NE(p.worker().incarnation(), d.worker().incarnation());
  EXPECT_NE(p.grpc_address(), d.grpc_address());
  EXPECT_NE(p.admin_address(), d.admin_address());
  EXPECT_EQ(p.fingerprint().numerics_id(), d.fingerprint().numerics_id());
  EXPECT_EQ(p.fingerprint().tokenizer_id(), d.fingerprint().tokenizer_id());
  EXPECT_EQ(p.tokenizer(), d.tokenizer());
  for (const v1::WorkerHello* hello : {&p, &d}) {
    EXPECT_EQ(hello->pid(), static_cast<uint32_t>(::getpid()));
    ASSERT_EQ(hello->transports_size(), 1);
    EXPECT_EQ(hello->transports(0), v1::TRANSPORT_KIND_LOCAL);
    EXPECT_EQ(hello->kv_address() + hello->kv_unix(), "") << "no other process can come";
  }
  // Only who prefills names a link, as over every transport.
  for (const v1::WorkerLoad& load : router_.loads) {
    if (load.links_size() == 0) continue;
    EXPECT_EQ(load.links(0).to(), "decode-0");
    EXPECT_EQ(load.links(0).transport(), v1::TRANSPORT_KIND_LOCAL);
    EXPECT_EQ(load.links(0).to_incarnation(), d.worker().incarnation());
  }
}

TEST_F(WorkerGroupTest, AllAreToldBeforeOneLeaves) {
  const auto group = WorkerGroup::Start(Both());
  ASSERT_TRUE(group.ok()) << group.status();
  ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 2; }));
  EXPECT_FALSE((*group)->drain_asked());
  EXPECT_TRUE((*group)->failure().ok());
  const std::atomic<bool> stop_now{false};
  const int64_t start_us = SystemClock().NowUs();
  EXPECT_TRUE((*group)->Drain(&stop_now).ok());
  (*group)->Stop();
  EXPECT_LT(SystemClock().NowUs() - start_us, 30'000'000) << "the timeout is 60 s";
  EXPECT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 0; }));
  EXPECT_EQ(router_.leaving_at_first_end, (std::set<std::string>{"decode-0", "prefill-0"}));
}

TEST_F(WorkerGroupTest, WhatOneIsAskedAllAreAsked) {
  for (const char* asked : {"prefill-0", "decode-0"}) {
    ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 0; }));
    const auto group = WorkerGroup::Start(Both());
    ASSERT_TRUE(group.ok()) << group.status();
    ASSERT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 2; }));
    v1::RouterDirective drain;
    drain.mutable_drain()->set_timeout_ms(1000);
    router_.SendTo(asked, drain);
    for (int i = 0; i < 2000 && !(*group)->drain_asked(); ++i) ::usleep(5000);
    EXPECT_TRUE((*group)->drain_asked()) << asked;
  }
}

TEST_F(WorkerGroupTest, ASecondWorkerThatCannotStartLeavesNoneRunning) {
  std::vector<WorkerConfig> configs = Both();
  configs.back().listen = router_.address();
  const auto group = WorkerGroup::Start(std::move(configs));
  ASSERT_FALSE(group.ok());
  EXPECT_NE(group.status().ToString().find("--listen " + router_.address()), std::string::npos);
  EXPECT_TRUE(router_.Wait([](const FakeRouter& r) { return r.num_streams() == 0; }));
}

}  // namespace
}  // namespace baton::worker
