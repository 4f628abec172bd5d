#include "src/cli/trace/why_report.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "scheduler/route_policy.h"
#include "tests/cli/trace/traced_cluster.h"

namespace baton::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(WhyReportTest, StepsAreThoseWhileItWasDecoded) {
  const std::vector<TracePage> pages = TracedCluster();
  const StepsMeanwhile steps = StepsBeside(pages[0].requests[0], pages);
  EXPECT_EQ(steps.num_steps, 2u);
  EXPECT_DOUBLE_EQ(steps.mean_ms, 10.0);
  EXPECT_DOUBLE_EQ(steps.mean_rows, 3.0);
  EXPECT_EQ(steps.num_mixed, 1u);
  EXPECT_EQ(steps.prompt_tokens, 64u);
}

TEST(WhyReportTest, ItNamesEachStageTheLongestAndTheLoad) {
  const std::vector<TracePage> pages = TracedCluster();
  const TracedRequest& request = pages[0].requests[0];
  const std::string text = WhyText(request, StepsBeside(request, pages));
  EXPECT_THAT(text, HasSubstr("request mine (chatcmpl-1) of m ended with status 200 after 100.0 "
                              "ms\n20 prompt tokens (16 cached), 6 tokens out; prefill-0 -> "
                              "decode-0 over shm, 1 MiB of KV\n"));
  EXPECT_THAT(text, HasSubstr("prefill              30.0  30.0 %   its prompt being computed\n"));
  EXPECT_THAT(text, HasSubstr("decode               50.0  50.0 %   its further tokens being "
                              "decoded, one a step  <- longest\n"));
  EXPECT_THAT(text, HasSubstr("It spent 50 % of its time in decode: "));
  EXPECT_THAT(text, HasSubstr("3 other requests ran and 2 waited at the router"));
  EXPECT_THAT(text, HasSubstr("decode-0 ran 4 and had 1 waiting, 10 of 100 blocks free"));
  EXPECT_THAT(text, HasSubstr("It was placed once.\n"));
  EXPECT_THAT(text, HasSubstr("12.0 ms, before token 4"));
  EXPECT_THAT(text, HasSubstr("decode-0 ran 2 steps of 10.0 ms with 3.0 streams each; 1 of them "
                              "also computed 64 prompt tokens.\n"));
}

TEST(WhyReportTest, ALocalPromptSaysWhy) {
  TracedRequest request = TracedCluster()[0].requests[0];
  request.disaggregated = false;
  EXPECT_THAT(WhyText(request, StepsMeanwhile()), HasSubstr("; all of it at decode-0\n"));
  request.route = "decode_hit";
  EXPECT_THAT(WhyText(request, StepsMeanwhile()),
              HasSubstr("; all of it at decode-0 (decode_hit)\n"));
}

TEST(WhyReportTest, ItSaysWhatTheDecodeWorkerHeld) {
  TracedRequest request = TracedCluster()[0].requests[0];
  EXPECT_THAT(WhyText(request, {}), Not(HasSubstr("taken to hold")));
  request.num_held_tokens = 16;
  EXPECT_THAT(WhyText(request, {}),
              HasSubstr("blocks free.\ndecode-0 was taken to hold 16 tokens of the prompt.\n"));
  request.for_prefix = true;
  EXPECT_THAT(WhyText(request, {}), HasSubstr("16 tokens of the prompt, more than a less loaded "
                                              "decode worker.\n"));
  const nlohmann::json root = nlohmann::json::parse(WhyJson(request, {}));
  EXPECT_EQ(root["held_tokens"], 16);
  EXPECT_EQ(root["for_prefix"], true);
}

TEST(WhyReportTest, APairSaysWhyToo) {
  TracedRequest request = TracedCluster()[0].requests[0];
  request.route = "pair";
  EXPECT_THAT(WhyText(request, {}), HasSubstr("Its path has the reason pair: a prefill worker "));
  EXPECT_THAT(WhyText(request, {}), HasSubstr("exactness and room come first, then load, then the "
                                              "predicted time"));
  const nlohmann::json root = nlohmann::json::parse(WhyJson(request, {}));
  EXPECT_EQ(root["route"], "pair");
  EXPECT_EQ(root["placed"], true);
}

TEST(WhyReportTest, EachReasonOfARouteHasWords) {
  TracedRequest request = TracedCluster()[0].requests[0];
  for (size_t i = 0; i < scheduler::kNumRouteReasons; ++i) {
    request.route = scheduler::RouteReasonName(static_cast<scheduler::RouteReason>(i));
    const std::string begin = "Its path has the reason " + request.route + ": ";
    EXPECT_THAT(WhyText(request, {}), HasSubstr(begin)) << "give it words in why_report.cc";
  }
  request.route = "of_a_later_release";
  EXPECT_THAT(WhyText(request, {}), HasSubstr("Its path has the reason of_a_later_release.\n"));
}

TEST(WhyReportTest, ARefusalIsNoWaitInTheQueue) {
  TracedRequest request;
  request.status = 429;
  request.error = "The server's --slo ttft is 20 ms; try again later.";
  request.end_us = 300;
  request.stages = {{"admit", 300}, {"decode", 0}};
  const std::string text = WhyText(request, {});
  EXPECT_THAT(text, Not(HasSubstr("admit")));
  EXPECT_THAT(text, Not(HasSubstr("%")));
  EXPECT_THAT(text, HasSubstr("It was never placed: it ended 0.3 ms after it came.\n"));
  EXPECT_EQ(nlohmann::json::parse(WhyJson(request, {}))["placed"], false);
}

TEST(WhyReportTest, ARefusalAfterAWaitInTheQueueKeepsItsStages) {
  TracedRequest request;
  request.status = 503;
  request.end_us = 10'000'300;
  request.queue_us = 10'000'000;
  request.stages = {{"admit", 10'000'300}, {"decode", 0}};
  const std::string text = WhyText(request, {});
  EXPECT_THAT(text, HasSubstr("admit             10000.3 100.0 %   a place: the router's queue"));
  EXPECT_THAT(text, HasSubstr("It spent 100 % of its time in admit"));
  EXPECT_THAT(text, HasSubstr("It was never placed: it waited 10000.0 ms in the queue, and ended "
                              "10000.3 ms after it came.\n"));
  EXPECT_EQ(nlohmann::json::parse(WhyJson(request, {}))["queue_ms"], 10'000.0);
}

TEST(WhyReportTest, OneThatWaitsForItsPlaceIsNotPlacedYet) {
  TracedRequest request;
  request.state = "QUEUED";
  request.end_us = 1000;
  request.stages = {{"admit", 1000}};
  EXPECT_THAT(WhyText(request, {}), HasSubstr("It was not placed yet."));
  EXPECT_THAT(WhyText(request, {}), HasSubstr("It spent 100 % of its time in admit"));
}

TEST(WhyReportTest, OneThatLivesAndWasPlacedAgainSaysSo) {
  const std::vector<TracePage> pages = TracedCluster();
  const std::string text = WhyText(pages[0].requests[1], {});
  EXPECT_THAT(text, HasSubstr("lives (PREFILLING) after 40.0 ms"));
  EXPECT_THAT(text, HasSubstr("placed 3 times, 1 of them after a fault or a planned move: "
                              "decode_lost 1, and waited 7.0 ms"));
  EXPECT_THAT(text, Not(HasSubstr("Meanwhile")));
}

TEST(WhyReportTest, ARefusalIsToldInTheWordsOfTheClient) {
  TracedRequest request;
  request.status = 429;
  request.error =
      "A request that comes now would wait about 2.0 s for its first token, and the "
      "server's --slo ttft is 500 ms; try again later.\x1b[2J";
  EXPECT_THAT(WhyText(request, {}), HasSubstr("Its client was told: A request that comes now"));
  EXPECT_THAT(WhyText(request, {}), HasSubstr("--slo ttft is 500 ms"));
  EXPECT_THAT(WhyText(request, {}), Not(HasSubstr("\x1b")));
  EXPECT_EQ(nlohmann::json::parse(WhyJson(request, {}))["error"], request.error);
}

TEST(WhyReportTest, ANameThatSteersATerminalDoesNot) {
  TracedRequest request;
  request.request_id = "\x1b[2J";
  EXPECT_THAT(WhyText(request, {}), Not(HasSubstr("\x1b")));
  EXPECT_THAT(WhyText(request, {}), HasSubstr("It was not placed yet."));
}

TEST(WhyReportTest, JsonSharesSumToOne) {
  const std::vector<TracePage> pages = TracedCluster();
  const TracedRequest& request = pages[0].requests[0];
  const nlohmann::json root = nlohmann::json::parse(WhyJson(request, StepsBeside(request, pages)));
  EXPECT_EQ(root["longest"], "decode");
  EXPECT_EQ(root["end_to_end_ms"], 100.0);
  double sum = 0;
  for (const auto& stage : root["stages"]) sum += stage["share"].get<double>();
  EXPECT_NEAR(sum, 1.0, 1e-9);
  EXPECT_EQ(root["load"]["decode"]["running"], 4);
  EXPECT_EQ(root["steps"]["num_steps"], 2);
}

}  // namespace
}  // namespace baton::cli
