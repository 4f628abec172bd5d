// Tests the events of /v1/cluster/events: what each one says, that nothing is told twice, and that
// no client's text or name is in them.
#include "src/api/cluster_diary.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/api/json_value.h"

namespace baton::api {

using obs::RequestEvent;
using router::LinkKind;
using router::LinkView;
using router::ProcessView;
using router::RequestTrace;

namespace {

constexpr int64_t kWallOffsetUs = 1'000'000'000'000;

ClockPair At(int64_t us) { return {.steady_us = us, .wall_unix_us = kWallOffsetUs + us}; }

ProcessView Worker(const std::string& id, const std::string& role) {
  ProcessView view;
  view.worker_id = id;
  view.role = role;
  view.incarnation = "00000000000000aa";
  view.model = role == "router" ? "" : "m";
  view.ready = true;
  if (role != "router") view.kv_blocks = {{"free", 6}, {"bound", 2}};
  if (role == "prefill")
    view.links = {LinkView{.to = "decode-0", .kind = LinkKind::kShm, .up = true}};
  return view;
}

ClusterLook Pair(int64_t us) {
  ClusterLook look;
  look.topology.model = "m";
  look.topology.processes = {Worker("router-0", "router"), Worker("prefill-0", "prefill"),
                             Worker("decode-0", "decode")};
  look.now = At(us);
  return look;
}

// A split request that came at `accepted_us`; each stage takes 1 ms more than the one before.
RequestTrace Split(uint64_t number, int64_t accepted_us) {
  RequestTrace trace;
  trace.uid = {9, number};
  trace.request_id = "a name of the client";
  trace.answer_id = "chatcmpl-0123456789abcdef0123456789abcdef";
  trace.model = "m";
  trace.state = "DECODING";
  trace.num_prompt_tokens = 40;
  trace.num_output_tokens = 11;
  trace.lifetime = obs::RequestLifetime(accepted_us);
  int64_t at_us = accepted_us;
  for (size_t i = 1; i < obs::kNumRequestEvents; ++i) {
    at_us += static_cast<int64_t>(i) * 1000;
    trace.lifetime.Mark(static_cast<RequestEvent>(i), at_us);
  }
  trace.end_us = at_us;  // 36 ms
  trace.stages_us = trace.lifetime.StagesUs();
  trace.timings.disaggregated = true;
  trace.timings.prefill_worker = "prefill-0";
  trace.timings.decode_worker = "decode-0";
  trace.timings.transport = "shm";
  trace.timings.kv_bytes = 4096;
  trace.timings.cached_tokens = 16;
  trace.notes.longest_gap_us = 2500;
  return trace;
}

std::shared_ptr<const RequestTrace> Ended(RequestTrace trace, int status = 200) {
  trace.http_status = status;
  return std::make_shared<const RequestTrace>(std::move(trace));
}

std::shared_ptr<const RequestTrace> Live(RequestTrace trace) { return Ended(std::move(trace), 0); }

// The JSON texts of server-sent events; checks the framing.
std::vector<std::string> EventsOf(const std::string& text) {
  std::vector<std::string> events;
  for (size_t at = 0; at < text.size();) {
    EXPECT_EQ(text.substr(at, 6), "data: ");
    const size_t end = text.find("\n\n", at);
    if (end == std::string::npos) break;
    events.push_back(text.substr(at + 6, end - at - 6));
    JsonValue value;
    router::RequestError error;
    EXPECT_TRUE(ParseJson(events.back(), &value, &error)) << events.back();
    at = end + 2;
  }
  return events;
}

std::vector<std::string> OfType(const std::string& text, const std::string& type) {
  std::vector<std::string> found;
  for (const std::string& event : EventsOf(text)) {
    if (event.find("\"type\":\"" + type + "\"") != std::string::npos) found.push_back(event);
  }
  return found;
}

TEST(ClusterDiaryTest, AClusterEventHasWorkersBlocksLinksAndLiveRequests) {
  ClusterDiary diary;
  ClusterLook look = Pair(5'000'000);
  look.topology.processes[2].draining = true;
  look.traces = {Live(Split(1, 4'964'000))};
  const std::vector<std::string> events = OfType(diary.Add(look), "cluster");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(
      events[0],
      R"({"version":1,"type":"cluster","time_ms":1000005000,"models":"m","ready":true,"workers":[)"
      R"({"id":"prefill-0","role":"prefill","incarnation":"00000000000000aa","model":"m",)"
      R"("ready":true,"draining":false,"running":0,"waiting":0,"blocks":{"free":6,"bound":2},)"
      R"("links":[{"to":"decode-0","transport":"shm","bytes_per_s":0,"up":true,"why":""}]},)"
      R"({"id":"decode-0","role":"decode","incarnation":"00000000000000aa","model":"m",)"
      R"("ready":true,"draining":true,"running":0,"waiting":0,"blocks":{"free":6,"bound":2},)"
      R"("links":[]}],"num_live":1,"num_unplaced":0,"requests":[{"id":"0123456789ab",)"
      R"("state":"DECODING","age_ms":36,"path":"disagg","prefill_worker":"prefill-0",)"
      R"("decode_worker":"decode-0","prompt_tokens":40,"tokens":11,"longest_gap_ms":2.5}],)"
      R"("tokens_per_s":0,"itl_ms":null,"skipped":0})");
}

TEST(ClusterDiaryTest, AnAnswerIsToldOnceWithItsHandoffAndItsStages) {
  ClusterDiary diary;
  diary.Add(Pair(5'000'000));
  ClusterLook look = Pair(5'250'000);
  look.traces = {Ended(Split(1, 5'100'000))};
  const std::string text = diary.Add(look);
  const std::vector<std::string> handoffs = OfType(text, "handoff");
  ASSERT_EQ(handoffs.size(), 1u);
  // Verified 1 + 2 + 3 + 4 + 5 ms after it came; the grant took 4 of them, the transfer 5.
  EXPECT_EQ(handoffs[0],
            R"({"version":1,"type":"handoff","time_ms":1000005115,"id":"0123456789ab",)"
            R"("from":"prefill-0","to":"decode-0","transport":"shm","bytes":4096,"ms":9})");
  const std::vector<std::string> answers = OfType(text, "answer");
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0],
            R"({"version":1,"type":"answer","time_ms":1000005136,"id":"0123456789ab","model":"m",)"
            R"("status":200,"path":"disagg","prefill_worker":"prefill-0",)"
            R"("decode_worker":"decode-0","transport":"shm","kv_bytes":4096,"prompt_tokens":40,)"
            R"("cached_tokens":16,"output_tokens":11,"stages_ms":{"queue":3,"prefill":3,)"
            R"("transfer":9,"wait":6,"first_step":7,"decode":8},"itl_ms":3,)"
            R"("longest_gap_ms":2.5,"resumes":{}})");
  look.now = At(5'500'000);
  EXPECT_EQ(diary.Add(look), "") << "nothing has changed";
  EXPECT_EQ(text.find("a name of the client"), std::string::npos);
  EXPECT_EQ(text.find("cdef0123"), std::string::npos) << "an id is too short to ask by";
}

TEST(ClusterDiaryTest, AHandoffIsToldWhileItsAnswerRunsAndNotAgain) {
  ClusterDiary diary;
  diary.Add(Pair(5'000'000));
  ClusterLook look = Pair(5'250'000);
  look.traces = {Live(Split(1, 5'100'000))};
  std::string text = diary.Add(look);
  EXPECT_EQ(OfType(text, "handoff").size(), 1u);
  EXPECT_EQ(OfType(text, "answer").size(), 0u);
  look.now = At(5'500'000);
  look.traces = {Ended(Split(1, 5'100'000))};
  text = diary.Add(look);
  EXPECT_EQ(OfType(text, "handoff").size(), 0u);
  EXPECT_EQ(OfType(text, "answer").size(), 1u);
}

TEST(ClusterDiaryTest, TheTimeBetweenTokensIsThatOfTheStreamsThatGotSome) {
  ClusterDiary diary;
  ClusterLook look = Pair(5'000'000);
  RequestTrace trace = Split(1, 4'000'000);
  trace.end_us = look.now.steady_us;
  look.traces = {Live(trace)};
  diary.Add(look);
  look = Pair(5'250'000);
  trace.num_output_tokens = 21;
  trace.end_us = look.now.steady_us;
  RequestTrace silent = Split(2, 4'000'000);
  look.traces = {Live(trace), Live(silent)};
  const std::vector<std::string> events = OfType(diary.Add(look), "cluster");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_NE(events[0].find(R"("tokens_per_s":40,"itl_ms":25,)"), std::string::npos) << events[0];
}

TEST(ClusterDiaryTest, FaultsAndDrainsAreNoticed) {
  ClusterDiary diary;
  ClusterLook look = Pair(5'000'000);
  look.topology.processes.push_back(Worker("decode-1", "decode"));
  EXPECT_TRUE(OfType(diary.Add(look), "notice").empty()) << "the first look tells no news";
  look.now = At(5'250'000);
  look.topology.processes[1].links[0].up = false;
  look.topology.processes[1].links[0].why = "it is slow";
  look.topology.processes[2].draining = true;
  look.topology.processes[2].ready = false;
  look.topology.processes[3].incarnation = "00000000000000bb";
  std::vector<std::string> notices = OfType(diary.Add(look), "notice");
  ASSERT_EQ(notices.size(), 4u);
  EXPECT_EQ(notices[0], R"({"version":1,"type":"notice","time_ms":1000005250,"kind":"link_down",)"
                        R"("worker":"prefill-0","to":"decode-0","why":"it is slow"})");
  EXPECT_NE(notices[1].find(R"("kind":"worker_not_ready","worker":"decode-0")"), std::string::npos);
  EXPECT_NE(notices[2].find(R"("kind":"drain_began","worker":"decode-0")"), std::string::npos);
  EXPECT_NE(notices[3].find(R"("kind":"worker_restarted","worker":"decode-1")"), std::string::npos);
  look = Pair(5'500'000);
  look.topology.processes.pop_back();
  look.topology.processes.push_back(Worker("decode-2", "decode"));
  notices = OfType(diary.Add(look), "notice");
  ASSERT_EQ(notices.size(), 4u);
  EXPECT_NE(notices[0].find(R"("kind":"worker_left","worker":"decode-0")"), std::string::npos);
  EXPECT_NE(notices[1].find(R"("kind":"worker_lost","worker":"decode-1")"), std::string::npos);
  EXPECT_NE(notices[2].find(R"("kind":"link_up")"), std::string::npos);
  EXPECT_NE(notices[3].find(R"("kind":"worker_joined","worker":"decode-2")"), std::string::npos);
}

TEST(ClusterDiaryTest, AStreamThatGoesOnElsewhereIsNoticedWithTheReason) {
  ClusterDiary diary;
  ClusterLook look = Pair(5'000'000);
  RequestTrace trace = Split(1, 4'900'000);
  look.traces = {Live(trace)};
  diary.Add(look);
  look.now = At(5'250'000);
  trace.timings.resumes = 1;
  trace.notes.resumes[0] = 1;
  look.traces = {Live(trace)};
  const std::vector<std::string> notices = OfType(diary.Add(look), "notice");
  ASSERT_EQ(notices.size(), 1u);
  const std::string why(obs::kResumeReasonNames[0]);
  EXPECT_NE(notices[0].find(R"("kind":"placed_again","worker":"decode-0","why":")" + why +
                            R"(","id":"0123456789ab")"),
            std::string::npos)
      << notices[0];
}

TEST(ClusterDiaryTest, ANewViewerIsToldTheStateAndTheLastEvents) {
  ClusterDiary diary;
  ClusterLook look = Pair(5'000'000);
  for (uint64_t i = 0; i < 30; ++i) look.traces.push_back(Ended(Split(i + 1, 4'000'000)));
  diary.Add(look);
  const std::string text = diary.Welcome(At(5'100'000), 250'000);
  const std::vector<std::string> events = EventsOf(text);
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(
      events[0].find(R"({"version":1,"type":"hello","time_ms":1000005100,"server_version":")"), 0u);
  EXPECT_NE(events[0].find(R"("incarnation":"00000000000000aa","interval_ms":250})"),
            std::string::npos);
  EXPECT_NE(events[1].find("\"type\":\"cluster\""), std::string::npos);
  EXPECT_EQ(OfType(text, "answer").size(), ClusterDiary::kMaxFirst);
  EXPECT_LE(events.size(), 2 + ClusterDiary::kMaxPast);
  diary.Clear();
  EXPECT_EQ(EventsOf(diary.Welcome(At(1), 250'000)).size(), 1u);
}

TEST(ClusterDiaryTest, AStormOfAnswersIsCutAndCounted) {
  ClusterDiary diary;
  diary.Add(Pair(5'000'000));
  ClusterLook look = Pair(5'250'000);
  for (uint64_t i = 0; i < ClusterDiary::kMaxPerLook + 10; ++i) {
    look.traces.push_back(Ended(Split(i + 1, 5'100'000)));
  }
  const std::string text = diary.Add(look);
  EXPECT_EQ(OfType(text, "answer").size(), ClusterDiary::kMaxPerLook);
  EXPECT_NE(text.find("\"skipped\":10}"), std::string::npos);
}

TEST(ClusterDiaryTest, AQuietClusterSaysSoNowAndThen) {
  ClusterDiary diary;
  diary.Add(Pair(5'000'000));
  EXPECT_EQ(diary.Add(Pair(5'250'000)), "");
  EXPECT_EQ(OfType(diary.Add(Pair(5'000'000 + ClusterDiary::kQuietUs)), "cluster").size(), 1u);
}

TEST(ClusterDiaryTest, ARouterWithoutWorkersHasAnEmptyList) {
  ClusterDiary diary;
  ClusterLook look = Pair(5'000'000);
  look.topology.processes.resize(1);
  look.topology.processes[0].ready = false;
  look.topology.model = "";
  const std::string text = diary.Add(look);
  EXPECT_NE(text.find(R"("models":"","ready":false,"workers":[],"num_live":0)"), std::string::npos);
}

}  // namespace
}  // namespace baton::api
