#include "src/cli/trace/trace_page.h"

#include "gtest/gtest.h"

#include "tests/cli/trace/traced_cluster.h"

namespace baton::cli {
namespace {

constexpr int64_t kNowUs = 1'700'000'000'000'000;

TEST(TracePageTest, TimesAreUnixTimesWhateverTheSteadyClocksSay) {
  const std::vector<TracePage> pages = TracedCluster();
  EXPECT_EQ(pages[0].requests[0].accepted_us, kNowUs - 1'000'000);
  EXPECT_EQ(pages[0].requests[0].elapsed_us(), 100'000);
  EXPECT_EQ(pages[2].steps[0].end_us, kNowUs - 1'000'000);
  ASSERT_EQ(pages[0].requests[0].stages.size(), 8u);
  EXPECT_EQ(pages[0].requests[0].stages[2].name, "prefill");
  EXPECT_EQ(pages[0].requests[0].stages[2].elapsed_us, 30'000);
  EXPECT_EQ(pages[0].requests[0].decode_load.free_blocks, 10u);
  EXPECT_EQ(pages[0].requests[1].resumes.at("decode_lost"), 1u);
}

TEST(TracePageTest, ARequestIsFoundByEachOfItsNames) {
  const TracePage page = TracedCluster()[0];
  for (const char* name : {"00cd", "other", "chatcmpl-2"}) {
    ASSERT_NE(FindRequest(page, name), nullptr) << name;
    EXPECT_EQ(FindRequest(page, name)->request_uid, "00cd") << name;
  }
  EXPECT_EQ(FindRequest(page, "")->request_uid, "00ab") << "the one that took longest";
  EXPECT_EQ(FindRequest(page, "nobody"), nullptr);
  EXPECT_EQ(FindRequest(TracePage{}, ""), nullptr);
}

TEST(TracePageTest, AnythingElseIsRefusedAndTornFieldsAreNothing) {
  for (const char* text :
       {"", "[]", "{}", "{\"steady_us\":1,\"requests\":{}}", "{\"steady_us\":1,\"steps\":[1]}"}) {
    EXPECT_FALSE(ReadTracePage(text).ok()) << text;
  }
  const auto page = ReadTracePage(
      R"({"steady_us":"x","unix_us":2,"requests":[{"status":"x","stages_us":[1],"load":3,
      "queue_us":7}]})");
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->requests[0].status, 0u);
  EXPECT_EQ(page->requests[0].stages.size(), 8u);
  EXPECT_EQ(page->requests[0].queue_us, 7);
}

}  // namespace
}  // namespace baton::cli
