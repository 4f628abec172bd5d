#include "src/cli/top/top_frame.h"

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

constexpr std::string_view kTopology = R"({"model":"smollm2:135m","processes":[
 {"role":"router","worker_id":"router-0","admin":"h:1","ready":true},
 {"role":"decode","worker_id":"decode-0","incarnation":"02","admin":"h:3","ready":true,
  "kv_blocks":{"free":60,"cached":20,"bound":20},"running":4,"waiting":1,"links":[]},
 {"role":"prefill","worker_id":"prefill-0","incarnation":"01","admin":"h:2","ready":false,
  "kv_blocks":{"free":100},"running":1,"waiting":2,
  "links":[{"to":"decode-0","transport":"shm","bytes_per_s":2500000000,"up":true},
           {"to":"decode-1","transport":"","bytes_per_s":0,"up":false}]}]})";

MetricPage Page(const std::string& text) { return MetricPage::Parse(text).value(); }

TopSnapshot Look(int64_t taken_us, double requests, double tokens, double steps) {
  TopSnapshot snapshot = ReadTopTopology(kTopology).value();
  snapshot.taken_us = taken_us;
  for (TopWorker& worker : snapshot.workers) worker.taken_us = taken_us;
  snapshot.router = Page(fmt::format(
      "baton_requests_total{{code=\"200\"}} {}\nbaton_requests_running 4\n"
      "baton_generation_tokens_total {}\nbaton_stage_seconds_sum{{stage=\"prefill\"}} {}\n"
      "baton_stage_seconds_count{{stage=\"prefill\"}} {}\n",
      requests, tokens, 0.05 * requests, requests));
  snapshot.workers[0].error = "h:2 does not answer";
  snapshot.workers[1].metrics =
      Page(fmt::format("baton_step_seconds_count{{phase=\"decode\"}} {}\n"
                       "baton_step_seconds_sum{{phase=\"decode\"}} {}\nbaton_mbu_ratio 0.61\n"
                       "baton_kv_transfer_bytes_total{{transport=\"shm\"}} {}\n",
                       steps, steps * 0.012, steps * 1e6));
  return snapshot;
}

// The line that begins with the words, or "".
std::string LineOf(const std::vector<FrameLine>& lines, std::string_view start) {
  for (const FrameLine& line : lines) {
    if (line.text.starts_with(start)) return line.text;
  }
  return "";
}

TEST(TopFrameTest, RatesAreThoseBetweenTheLooks) {
  const TopSnapshot before = Look(1'000'000, 10, 1000, 100);
  const TopSnapshot now = Look(3'000'000, 14, 1800, 150);
  const std::vector<FrameLine> lines = TopFrame(&before, now);
  EXPECT_EQ(lines[0].text, "baton top   smollm2:135m   2 workers, 1 ready   over 2.0 s");
  EXPECT_NE(LineOf(lines, "requests").find("running 4  waiting -  good 2.0/s"), std::string::npos);
  EXPECT_NE(LineOf(lines, "tokens").find("generated 400/s"), std::string::npos);
  EXPECT_NE(LineOf(lines, "stage ms").find(" prefill 50.0 "), std::string::npos)
      << LineOf(lines, "stage ms");
  EXPECT_EQ(LineOf(lines, "KV received"), "KV received, MB/s: decode-0 25.0");
}

// The page of a worker that came late, after one that did not answer.
TEST(TopFrameTest, EachPageHasItsOwnTime) {
  const TopSnapshot before = Look(1'000'000, 10, 1000, 100);
  TopSnapshot now = Look(2'000'000, 14, 1400, 200);
  now.workers[1].taken_us = 5'000'000;
  const std::vector<FrameLine> lines = TopFrame(&before, now);
  EXPECT_NE(LineOf(lines, "tokens").find("generated 400/s"), std::string::npos);
  EXPECT_EQ(LineOf(lines, "KV received"), "KV received, MB/s: decode-0 25.0");
}

TEST(TopFrameTest, AWorkersRowHasItsQueuesBlocksAndSteps) {
  const TopSnapshot before = Look(1'000'000, 10, 1000, 100);
  const TopSnapshot now = Look(3'000'000, 14, 1800, 150);
  const std::vector<FrameLine> lines = TopFrame(&before, now);
  const std::string row = LineOf(lines, "decode   decode-0");
  for (const char* part :
       {" yes ", " 4 ", " 25.0 ", " 12.0 ", "[##........]", "20 %", "20/100", " 61 %"}) {
    EXPECT_NE(row.find(part), std::string::npos) << part << " in " << row;
  }
}

TEST(TopFrameTest, AWorkerThatIsSilentIsShownWithTheReason) {
  const TopSnapshot now = Look(1, 0, 0, 0);
  for (const FrameLine& line : TopFrame(nullptr, now)) {
    if (!line.text.starts_with("prefill  prefill-0")) continue;
    EXPECT_EQ(line.style, LineStyle::kWarning);
    EXPECT_NE(line.text.find("h:2 does not answer"), std::string::npos);
    return;
  }
  FAIL() << "no row of prefill-0";
}

TEST(TopFrameTest, LinksThatAreDownStandOut) {
  const TopSnapshot now = Look(1, 0, 0, 0);
  std::vector<std::string> rows;
  std::vector<LineStyle> styles;
  for (const FrameLine& line : TopFrame(nullptr, now)) {
    if (!line.text.starts_with("prefill-0 ")) continue;
    rows.push_back(line.text);
    styles.push_back(line.style);
  }
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_NE(rows[0].find("2.50"), std::string::npos) << rows[0];
  EXPECT_EQ(styles, (std::vector<LineStyle>{LineStyle::kPlain, LineStyle::kWarning}));
}

// The first frame of a live view, and a worker that was started again between two looks.
TEST(TopFrameTest, WithoutAnEarlierLookThereAreNoRates) {
  const TopSnapshot now = Look(3'000'000, 14, 1800, 150);
  EXPECT_NE(LineOf(TopFrame(nullptr, now), "tokens").find("generated -/s"), std::string::npos);
  TopSnapshot other = Look(1'000'000, 10, 1000, 100);
  other.workers[1].incarnation = "ff";
  EXPECT_EQ(LineOf(TopFrame(&other, now), "decode   decode-0").find(" 25.0 "), std::string::npos);
  EXPECT_EQ(LineOf(TopFrame(&other, now), "KV received"), "");
}

// Shares are of the requests between two looks, and the line is there only with an objective.
TEST(TopFrameTest, ObjectivesHaveTheShareThatMetThem) {
  TopSnapshot before = Look(1'000'000, 10, 1000, 100);
  EXPECT_EQ(LineOf(TopFrame(&before, before), "slo"), "");
  const auto with = [](uint64_t met, uint64_t missed) {
    return ReadTopTopology(
               fmt::format(R"({{"processes":[],"slo":{{"ttft":{{"limit_ms":500,"met":{},)"
                           R"("missed":{},"share":0.5}}}}}})",
                           met, missed))
        .value();
  };
  before.objectives = with(10, 5).objectives;
  TopSnapshot now = Look(3'000'000, 14, 1800, 150);
  now.objectives = with(107, 8).objectives;
  EXPECT_EQ(LineOf(TopFrame(&before, now), "slo"),
            "slo       ttft <= 500 ms met 97 %  refused -/s");
  EXPECT_EQ(LineOf(TopFrame(nullptr, now), "slo"), "slo       ttft <= 500 ms met -  refused -/s");
  now.objectives = with(9, 5).objectives;
  EXPECT_EQ(LineOf(TopFrame(&before, now), "slo"), "slo       ttft <= 500 ms met -  refused -/s")
      << "a router that was started again";
}

TEST(TopFrameTest, AnAnswerThatIsNoTopologyIsAnError) {
  for (const char* text : {"", "[]", "{}", "{\"processes\":3}", "{\"processes\":[1]}"}) {
    EXPECT_EQ(ReadTopTopology(text).status().code(), StatusCode::kDataLoss) << text;
  }
  // Fields of another type are as if they were not there.
  const auto odd = ReadTopTopology(
      R"({"processes":[{"role":7,"kv_blocks":[],"links":{},"running":-1,"ready":"yes"}]})");
  ASSERT_TRUE(odd.ok());
  EXPECT_FALSE(odd->workers[0].ready);
  EXPECT_EQ(odd->workers[0].running, 0u);
}

TEST(TopFrameTest, PaintingCutsAndClears) {
  const std::vector<FrameLine> lines = {{"abcdef", LineStyle::kHead}, {"gh"}, {"ij"}};
  EXPECT_EQ(PaintFrame(lines, {}, false), "abcdef\ngh\nij\n");
  EXPECT_EQ(PaintFrame(lines, {.columns = 3, .rows = 3}, false), "abc\ngh\n");
  EXPECT_EQ(PaintFrame({{"a"}}, {}, true), "a\x1b[K\n\x1b[J");
  EXPECT_EQ(PaintFrame({{"a", LineStyle::kHead}}, {}, true), "\x1b[1ma\x1b[0m\x1b[K\n\x1b[J");
}

TEST(TopFrameTest, NamesCannotSteerTheTerminal) {
  EXPECT_EQ(PaintFrame({{"a\x1b[2J\r\nb"}}, {}, false), "a?[2J??b\n");
}

}  // namespace
}  // namespace baton::cli
