// The share of KV that one tenant may hold: who waits, who does not, and what is given back.
#include "src/router/kv_share.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/router/fake_cluster.h"

namespace baton::router {
namespace {

using testing::HasSubstr;

constexpr uint32_t kPromptTokens = 100;

// One decode worker with 64 blocks of 16 tokens; the tenant may hold 256 of these 1024.
class KvShareTest : public testing::Test {
 protected:
  static RouterCoreConfig ShortWait() {
    RouterCoreConfig config;
    config.queue_wait_us = 500'000;
    return config;
  }
  KvShareTest() : cluster_(ShortWait()) {
    tenant_->SetShare(0.25);
    cluster_.JoinPair();
  }
  GenerateRequest Ask(const std::shared_ptr<TenantKv>& tenant, uint32_t num_tokens) {
    GenerateRequest request = cluster_.Request(std::string(num_tokens, 'a'));
    request.kv = tenant;
    return request;
  }
  RequestUid Submit(const std::shared_ptr<TenantKv>& tenant) {
    return cluster_.Submit(Ask(tenant, kPromptTokens));
  }
  size_t NumPlaced() { return cluster_.Log("decode-0").Of(Order::Kind::kDecode).size(); }
  uint64_t Held() { return tenant_->HeldOf(TestModel()->id); }
  void Advance(int64_t us) { cluster_.Advance(us, {"decode-0", "prefill-0"}); }

  FakeCluster cluster_;
  const std::shared_ptr<TenantKv> tenant_ = std::make_shared<TenantKv>();
};

TEST_F(KvShareTest, ATenantWaitsForItsShareAndOthersDoNot) {
  const RequestUid first = Submit(tenant_);
  const RequestUid second = Submit(tenant_);
  EXPECT_EQ(NumPlaced(), 2u);
  EXPECT_EQ(Held(), 2 * kPromptTokens);
  const RequestUid third = Submit(tenant_);
  EXPECT_EQ(NumPlaced(), 2u) << "it waits";
  const RequestUid other = Submit(std::make_shared<TenantKv>());
  const RequestUid keyless = Submit(nullptr);
  EXPECT_EQ(NumPlaced(), 4u) << "nobody waits behind it";
  cluster_.core.Cancel(first);
  EXPECT_EQ(Held(), kPromptTokens);
  Advance(100'000);
  EXPECT_EQ(NumPlaced(), 5u) << "its turn";
  for (const RequestUid uid : {second, third, other, keyless}) cluster_.core.Cancel(uid);
  EXPECT_EQ(Held(), 0u);
}

TEST_F(KvShareTest, WhoWaitsTooLongIsToldOfTheShare) {
  Submit(tenant_);
  Submit(tenant_);
  Submit(tenant_);
  Advance(600'000);
  ASSERT_TRUE(cluster_.sink->error.has_value());
  EXPECT_EQ(cluster_.sink->error->code, ErrorCode::kRateLimited);
  EXPECT_GT(cluster_.sink->error->retry_after_s, 0u);
  EXPECT_THAT(cluster_.sink->error->Message(),
              HasSubstr("kv_share 0.25, 256 of 1024 tokens of KV"));
}

TEST_F(KvShareTest, APromptAboveTheShareIsRefusedAtOnce) {
  cluster_.Submit(Ask(tenant_, 256));
  ASSERT_TRUE(cluster_.sink->error.has_value());
  EXPECT_EQ(HttpStatusOf(cluster_.sink->error->code), 400);
  EXPECT_THAT(cluster_.sink->error->Message(), HasSubstr("kv_share 0.25"));
  cluster_.Submit(Ask(tenant_, 255));
  EXPECT_FALSE(cluster_.sink->ended());
  EXPECT_EQ(NumPlaced(), 1u);
}

TEST_F(KvShareTest, AnotherShareCountsForWhoWaits) {
  Submit(tenant_);
  Submit(tenant_);
  Submit(tenant_);
  EXPECT_EQ(NumPlaced(), 2u);
  tenant_->SetShare(1);
  Advance(100'000);
  EXPECT_EQ(NumPlaced(), 3u);
}

TEST(KvHoldTest, AHoldIsGivenBackOnce) {
  const auto tenant = std::make_shared<TenantKv>();
  const uint64_t& held = tenant->HeldOf("m");
  {
    KvHold hold;
    hold.Grow();
    hold.Begin(tenant, "m", 10);
    hold.Grow();
    EXPECT_EQ(held, 11u);
    hold.Begin(tenant, "m", 5);
    EXPECT_EQ(held, 5u);
    hold.Release();
    hold.Release();
    EXPECT_EQ(held, 0u);
    hold.Begin(tenant, "m", 7);
    EXPECT_EQ(tenant->HeldOf("other"), 0u);
  }
  EXPECT_EQ(held, 0u);
}

}  // namespace
}  // namespace baton::router
