// Keys that a file has now, and had before it changed.
#include "src/api/key_ring.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/api/key_file_rig.h"

namespace baton::api {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string NameOfKey(const KeyRing& ring, std::string_view key) {
  const auto tenant = ring.Find(key);
  return tenant == nullptr ? "" : tenant->name();
}

TEST(KeyRingTest, AKeyHasItsTenantAndNoPartOfItHas) {
  const TestKeyFile file(KeyEntry("a", "key-1") + KeyEntry("b", "key-2") + KeyEntry("a", "key-3"));
  const auto ring = KeyRing::Create(file.path());
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_EQ(NameOfKey(**ring, "key-1"), "a");
  EXPECT_EQ(NameOfKey(**ring, "key-2"), "b");
  EXPECT_EQ((*ring)->Find("key-1"), (*ring)->Find("key-3")) << "one tenant, one use of its limits";
  const std::string digest = HexFromBytes(DigestOfKey("key-1"));
  for (const std::string& wrong : {std::string("key-"), std::string("key-11"), std::string("KEY-1"),
                                   std::string(), digest, std::string("key-1\0", 6)}) {
    EXPECT_EQ(NameOfKey(**ring, wrong), "") << wrong;
  }
}

// Two digests that begin alike for eight bytes cannot be made by hand, so the file is given them.
TEST(KeyRingTest, DigestsThatBeginAlikeAreComparedWhole) {
  std::string near = HexFromBytes(DigestOfKey("key-1"));
  near.back() = near.back() == '0' ? '1' : '0';
  const TestKeyFile file("- {tenant: near, sha256: " + near + "}\n" + KeyEntry("a", "key-1"));
  const auto ring = KeyRing::Create(file.path());
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_EQ(NameOfKey(**ring, "key-1"), "a");
  file.Write("- {tenant: near, sha256: " + near + "}\n");
  (*ring)->Look();
  EXPECT_EQ(NameOfKey(**ring, "key-1"), "");
}

TEST(KeyRingTest, AFileThatIsMissingOrBadDoesNotStart) {
  const TestKeyFile bad("- tenant: a\n");
  EXPECT_THAT(std::string(KeyRing::Create(bad.path()).status().message()),
              HasSubstr("the entry has no sha256"));
  EXPECT_FALSE(KeyRing::Create(bad.path() + ".none").ok());
}

TEST(KeyRingTest, AChangedFileCountsAndABadOneDoesNot) {
  const TestKeyFile file(KeyEntry("a", "old", "requests_per_minute: 1"));
  FakeClock clock;
  const auto made = KeyRing::Create(file.path(), clock);
  ASSERT_TRUE(made.ok()) << made.status();
  KeyRing& ring = **made;
  EXPECT_TRUE(ring.Find("old")->TakeRequest(clock.NowUs()).ok());

  file.Write("- tenant: a\n");
  ring.Look();
  ring.Look();
  EXPECT_EQ(NameOfKey(ring, "old"), "a");
  std::filesystem::remove(file.path());
  ring.Look();
  EXPECT_EQ(NameOfKey(ring, "old"), "a");

  file.Write(KeyEntry("a", "new", "requests_per_minute: 1") + KeyEntry("c", "c"));
  ring.Look();
  EXPECT_EQ(NameOfKey(ring, "old"), "") << "a key that is gone from the file is refused";
  EXPECT_EQ(NameOfKey(ring, "c"), "c");
  EXPECT_FALSE(ring.Find("new")->TakeRequest(clock.NowUs()).ok()) << "another key, the same tenant";
}

TEST(KeyRingTest, MetricsHaveTheTenantsOfTheFile) {
  const TestKeyFile file(KeyEntry("a", "a", "requests_per_minute: 1") + KeyEntry("b", "b"));
  const auto made = KeyRing::Create(file.path());
  ASSERT_TRUE(made.ok()) << made.status();
  KeyRing& ring = **made;
  const int64_t now_us = ring.clock().NowUs();
  (void)ring.Find("a")->TakeRequest(now_us);
  (void)ring.Find("a")->TakeRequest(now_us);
  for (int i = 0; i < 50; ++i) ring.Refused(KeyFault::kUnknown, "GET /v1/models", "192.0.2.1:1");
  const std::string text = ring.MetricsText();
  EXPECT_THAT(text, HasSubstr("tenant=\"a\",limit=\"requests\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("tenant=\"b\",limit=\"tokens\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("reason=\"unknown\"} 50\n")) << "also those that are not logged";
  EXPECT_THAT(text, HasSubstr("baton_tenant_requests_total{role=\"router\",worker=\"router-0\","
                              "model=\"\",tenant=\"b\",code=\"200\"} 0\n"));
  ring.Find("b")->CountAnswered(200);
  ring.Find("b")->CountAnswered(429);
  ring.Find("b")->CountAnswered(429);
  EXPECT_THAT(ring.MetricsText(), HasSubstr("tenant=\"b\",code=\"200\"} 1\n"));
  EXPECT_THAT(ring.MetricsText(), HasSubstr("tenant=\"b\",code=\"429\"} 2\n"));
  file.Write(KeyEntry("b", "b"));
  ring.Look();
  EXPECT_THAT(ring.MetricsText(), HasSubstr("tenant=\"b\",code=\"429\"} 2\n"));
  EXPECT_THAT(ring.MetricsText(), Not(HasSubstr("tenant=\"a\"")));
}

TEST(KeyRingTest, ManyTenantsHaveOneSeriesForTheRest) {
  std::string text;
  for (int i = 0; i < 1'002; ++i) {
    text += KeyEntry("t" + std::to_string(i), std::to_string(i), "requests_per_minute: 1");
  }
  const TestKeyFile file(text);
  const auto made = KeyRing::Create(file.path());
  ASSERT_TRUE(made.ok()) << made.status();
  const int64_t now_us = (*made)->clock().NowUs();
  for (const char* const key : {"1000", "1001"}) {
    (void)(*made)->Find(key)->TakeRequest(now_us);
    (void)(*made)->Find(key)->TakeRequest(now_us);
    (*made)->Find(key)->CountAnswered(200);
  }
  const std::string metrics = (*made)->MetricsText();
  EXPECT_THAT(metrics, HasSubstr("tenant=\"t999\",limit=\"requests\"} 0\n"));
  EXPECT_THAT(metrics, Not(HasSubstr("tenant=\"t1000\"")));
  EXPECT_THAT(metrics, HasSubstr("tenant=\"(other)\",limit=\"requests\"} 2\n"));
  EXPECT_THAT(metrics, HasSubstr("tenant=\"other\",code=\"200\"} 2\n"));
}

TEST(KeyRingTest, AReloadUnderLoadLosesNoKeyThatStays) {
  const TestKeyFile file(KeyEntry("a", "stays") + KeyEntry("b", "old"));
  const auto made = KeyRing::Create(file.path());
  ASSERT_TRUE(made.ok()) << made.status();
  KeyRing& ring = **made;
  std::atomic<bool> is_over{false};
  std::atomic<int> num_missed{0};
  std::atomic<int> num_found{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back([&] {
      while (!is_over.load()) {
        const auto tenant = ring.Find("stays");
        if (tenant == nullptr || tenant->name() != "a") num_missed.fetch_add(1);
        if (tenant != nullptr) (void)tenant->TakeRequest(ring.clock().NowUs());
        (void)ring.Find("old");
        num_found.fetch_add(1);
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    const std::string limit = "requests_per_minute: " + std::to_string(i + 1);
    file.Write(KeyEntry("c" + std::to_string(i), "new") + KeyEntry("a", "stays", limit));
    ring.Look();
    EXPECT_NE(ring.Find("new"), nullptr);
  }
  is_over = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(num_missed.load(), 0);
  EXPECT_GT(num_found.load(), 0);
  EXPECT_EQ(ring.Find("old"), nullptr);
}

// The bound is 20 us; a build with sanitizers on a busy machine gets fifty times that.
TEST(KeyRingTest, AKeyOfTenThousandIsFoundInMicroseconds) {
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += KeyEntry("t", std::to_string(i));
  const TestKeyFile file(text);
  const auto made = KeyRing::Create(file.path());
  ASSERT_TRUE(made.ok()) << made.status();
  constexpr int kNumLooks = 2'000;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kNumLooks; ++i) {
    const auto tenant = (*made)->Find(std::to_string(i * 7));
    if (tenant != nullptr) (void)tenant->TakeRequest(i);
  }
  const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
  RecordProperty("ns_per_key", static_cast<int>(taken.count() * 1000 / kNumLooks));
  EXPECT_LT(taken.count() / kNumLooks, 1000.0);
}

}  // namespace
}  // namespace baton::api
