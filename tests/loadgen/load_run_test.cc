// Whole runs against the toy server: every word and every error, over real sockets.
#include <netinet/in.h>
#include <sys/resource.h>

#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/loadgen/http_streams.h"
#include "src/loadgen/load_loop.h"
#include "src/loadgen/run_report.h"
#include "tests/loadgen/toy_server.h"

namespace baton::loadgen {
namespace {

using testing::HasSubstr;

RunResult RunAgainst(int port, WorkloadSpec workload_spec, LoadSpec load) {
  auto streams = HttpStreams::Create({.host = "127.0.0.1", .port = std::to_string(port)});
  BATON_CHECK(streams.ok());
  const Workload workload(std::move(workload_spec));
  return LoadLoop(SystemClock(), **streams, workload, std::move(load)).Run();
}

WorkloadSpec Short(uint32_t num_output) {
  WorkloadSpec spec;
  spec.input = {.low = 16, .max = 16};
  spec.output = {.low = num_output, .max = num_output};
  return spec;
}

// Ten starts, 10 ms apart.
LoadSpec TenStarts() {
  LoadSpec load;
  for (int64_t i = 0; i < 10; ++i) load.starts_us.push_back(10'000 * i);
  return load;
}

TEST(LoadRunTest, AnOpenLoopKeepsItsPlanAndItsSamples) {
  ToyServer server({.ttft_us = 30'000, .itl_us = 4'000});
  const RunResult result = RunAgainst(server.port(), Short(6), TenStarts());
  ASSERT_EQ(result.records.size(), 10u);
  for (size_t i = 0; i < 10; ++i) {
    const RequestRecord& record = result.records[i];
    ASSERT_TRUE(record.ok()) << record.error;
    EXPECT_EQ(record.intended_us, 10'000 * static_cast<int64_t>(i));
    EXPECT_GE(record.sent_us, record.intended_us);
    ASSERT_EQ(record.token_us.size(), 6u);
    // The toy never answers early; how late this machine makes it is not this test's matter.
    EXPECT_GE(*TtftUs(record), 30'000);
    EXPECT_GE(record.token_us[5] - record.sent_us, 50'000);
    EXPECT_TRUE(std::is_sorted(record.token_us.begin(), record.token_us.end()));
    EXPECT_GE(record.end_us, record.token_us.back());
    EXPECT_EQ(record.facts.completion_tokens, 6u);
    EXPECT_EQ(record.facts.cached_tokens, 3u);
    EXPECT_EQ(record.facts.stages->queue_ms, 1.5);
    EXPECT_EQ(TtftServerUs(record), 31'500);
  }
  EXPECT_EQ(result.start_lag_us.size(), 10u);
  EXPECT_GE(result.read_lag_us.size(), 10u);
  EXPECT_EQ(result.cut_short, "");
}

TEST(LoadRunTest, RequestsOverlapInAnOpenLoopAndNotInAClosedOneOfOneUser) {
  ToyServer server({.ttft_us = 40'000, .itl_us = 1'000});
  const RunResult open = RunAgainst(server.port(), Short(4), TenStarts());
  EXPECT_LT(open.records[1].sent_us, open.records[0].end_us);
  LoadSpec closed;
  closed.num_users = 1;
  closed.max_sessions = 5;
  const RunResult one = RunAgainst(server.port(), Short(4), closed);
  ASSERT_EQ(one.records.size(), 5u);
  for (size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(one.records[i].intended_us, one.records[i - 1].end_us);
    EXPECT_GE(one.records[i].sent_us, one.records[i - 1].end_us);
  }
}

TEST(LoadRunTest, AClosedLoopEndsWithItsDurationAndWaitsForAnswers) {
  ToyServer server({.ttft_us = 20'000, .itl_us = 1'000});
  LoadSpec load;
  load.num_users = 4;
  load.duration_us = 200'000;
  const RunResult result = RunAgainst(server.port(), Short(4), load);
  EXPECT_GT(result.records.size(), 4u);
  std::set<uint64_t> sessions;
  for (const RequestRecord& record : result.records) {
    EXPECT_TRUE(record.ok()) << record.error;
    EXPECT_LT(record.intended_us, 200'000);
    sessions.insert(record.session_idx);
  }
  EXPECT_EQ(sessions.size(), result.records.size());
}

TEST(LoadRunTest, TurnsCarryTheAnswersBeforeThem) {
  ToyServer server({.ttft_us = 2'000, .itl_us = 500});
  WorkloadSpec spec = Short(3);
  spec.num_turns = 3;
  spec.shared_prefix = 5;
  LoadSpec load;
  load.starts_us = {0, 1'000};
  load.think_us = 20'000;
  const RunResult result = RunAgainst(server.port(), spec, load);
  server.Stop();
  ASSERT_EQ(result.records.size(), 6u);
  for (const RequestRecord& record : result.records) {
    ASSERT_TRUE(record.ok()) << record.error;
    if (record.turn_idx == 0) continue;
    for (const RequestRecord& before : result.records) {
      if (before.session_idx != record.session_idx) continue;
      if (before.turn_idx + 1 != record.turn_idx) continue;
      EXPECT_EQ(record.intended_us, before.end_us + 20'000);
    }
  }
  // The last turn of a session: prefix, then user, assistant, user, assistant, user.
  const std::string& last = server.bodies().back();
  EXPECT_THAT(last, HasSubstr("[{\"role\":\"system\""));
  size_t answers = 0;
  for (size_t at = 0; (at = last.find("\"content\":\" w0 w1 w2\"", at)) != std::string::npos;
       ++at) {
    ++answers;
  }
  EXPECT_EQ(answers, 2u);
  const auto system = [](const std::string& body) { return body.substr(0, body.find("user")); };
  EXPECT_EQ(system(server.bodies()[0]), system(server.bodies()[1]));
}

// A fault of the toy and what the run must call it.
struct FaultCase {
  ToyFault fault;
  RequestOutcome outcome;
  std::string error;
};

TEST(LoadRunTest, EveryFaultIsACountedErrorWithItsReason) {
  for (const FaultCase& c : {
           FaultCase{ToyFault::kMalformedEvent, RequestOutcome::kMalformed, "no JSON object"},
           {ToyFault::kBareJson, RequestOutcome::kMalformed, "is no field"},
           {ToyFault::kErrorEvent, RequestOutcome::kServerError, "worker died"},
           {ToyFault::kBreakOff, RequestOutcome::kBrokeOff, "in the middle"},
           {ToyFault::kNoDone, RequestOutcome::kBrokeOff, "without [DONE]"},
           {ToyFault::kStatus503, RequestOutcome::kHttpError, "status 503: too busy"},
           {ToyFault::kNotStreamed, RequestOutcome::kMalformed, "no event stream"},
           {ToyFault::kSilent, RequestOutcome::kTimedOut, "within 400 ms"},
       }) {
    SCOPED_TRACE(c.error);
    ToyServer server({.ttft_us = 2'000, .itl_us = 500, .fault = c.fault, .fault_every = 3});
    LoadSpec load = TenStarts();
    load.timeout_us = 400'000;
    const RunResult result = RunAgainst(server.port(), Short(6), load);
    const RunReport report = MakeReport(result, {});
    EXPECT_EQ(report.attempted, 10u);
    EXPECT_EQ(report.num_ok(), 7u);
    EXPECT_EQ(report.by_outcome[static_cast<size_t>(c.outcome)], 3u);
    EXPECT_THAT(report.first_error, HasSubstr(c.error));
    EXPECT_EQ(report.num_met, 7u);
  }
}

TEST(LoadRunTest, ALoadWhoseWorkDiffersIsVoid) {
  ToyServer server(
      {.ttft_us = 2'000, .itl_us = 500, .fault = ToyFault::kShortAnswer, .fault_every = 5});
  const RunReport report = MakeReport(RunAgainst(server.port(), Short(6), TenStarts()), {});
  EXPECT_EQ(report.wrong_work, 2u);
  EXPECT_THAT(report.void_reasons, testing::Contains(HasSubstr("2 of 10 answers have other")));
}

TEST(LoadRunTest, AWrongGoldenAnswerVoidsTheRun) {
  WorkloadSpec spec = Short(4);
  spec.golden = {{"What?", ToyServer::Text(5), 5}};
  spec.golden_every = 2;
  {
    ToyServer server({.ttft_us = 2'000, .itl_us = 500});
    const RunReport report = MakeReport(RunAgainst(server.port(), spec, TenStarts()), {});
    EXPECT_EQ(report.golden_asked, 5u);
    EXPECT_EQ(report.golden_wrong, 0u);
  }
  ToyServer server(
      {.ttft_us = 2'000, .itl_us = 500, .fault = ToyFault::kWrongText, .fault_every = 10});
  const RunReport report = MakeReport(RunAgainst(server.port(), spec, TenStarts()), {});
  EXPECT_EQ(report.golden_wrong, 1u);
  EXPECT_THAT(report.void_reasons, testing::Contains(HasSubstr("1 of 5 golden prompts")));
}

TEST(LoadRunTest, GoldenPromptsThatNobodyAnsweredVoidTheRun) {
  WorkloadSpec spec = Short(4);
  spec.golden = {{"What?", ToyServer::Text(5), 5}};
  const auto reasons = [&spec](ToyFault fault, bool wants_golden) {
    ToyServer server({.ttft_us = 2'000, .itl_us = 500, .fault = fault, .fault_every = 2});
    LoadSpec one_by_one;
    one_by_one.num_users = 1;
    one_by_one.max_sessions = 10;
    const RunResult result = RunAgainst(server.port(), spec, one_by_one);
    return testing::PrintToString(MakeReport(result, {.wants_golden = wants_golden}).void_reasons);
  };
  // More sessions than the run has, then golden ones that all fail.
  spec.golden_every = 11;
  EXPECT_THAT(reasons(ToyFault::kNone, true), HasSubstr("none of 10 requests was an answered"));
  EXPECT_THAT(reasons(ToyFault::kNone, false), testing::Not(HasSubstr("golden")));
  spec.golden_every = 2;
  EXPECT_THAT(reasons(ToyFault::kStatus503, true),
              HasSubstr("none of 10 requests was an answered"));
  EXPECT_THAT(reasons(ToyFault::kNone, true), testing::Not(HasSubstr("golden")));
}

TEST(LoadRunTest, AStreamWithoutEndIsEndedAsMalformed) {
  ToyServer server(
      {.ttft_us = 1'000, .itl_us = 100, .fault = ToyFault::kEndless, .fault_every = 10});
  const RunResult result = RunAgainst(server.port(), Short(6), TenStarts());
  const RunReport report = MakeReport(result, {});
  EXPECT_EQ(report.num_ok(), 9u);
  EXPECT_EQ(report.by_outcome[static_cast<size_t>(RequestOutcome::kMalformed)], 1u);
  EXPECT_THAT(report.first_error, HasSubstr("more than 76 pieces"));
  for (const RequestRecord& record : result.records) EXPECT_LE(record.token_us.size(), 76u);
}

// A protocol whose answers are the test's: all of one come from the first Poll after its start.
class ScriptedStreams final : public StreamBackend {
 public:
  struct Answer {
    std::vector<std::string> pieces;
    StreamEnd end;
    bool ends = true;  // false: it goes on until it is cancelled
  };
  explicit ScriptedStreams(Answer answer) : answer_(std::move(answer)) {}

  std::string Encode(std::string_view, const StreamRequest&) const override { return "request"; }
  void Start(uint64_t id, std::string, StreamSink&) override { started_.push_back(id); }
  void Cancel(uint64_t id) override { cancelled.push_back(id); }
  void Poll(int64_t, StreamSink& sink) override {
    const int64_t now_us = SystemClock().NowUs();
    for (const uint64_t id : std::exchange(started_, {})) {
      for (const std::string& piece : answer_.pieces) sink.OnText(id, now_us, piece);
      StreamEnd end = answer_.end;
      end.at_us = now_us;
      if (answer_.ends) sink.OnEnd(id, std::move(end));
    }
  }

  std::vector<uint64_t> cancelled;

 private:
  const Answer answer_;
  std::vector<uint64_t> started_;
};

TEST(LoadRunTest, AnAnswerOfMoreThanWasAskedForIsMalformed) {
  const std::string large(1'000'000, 'x');
  const struct {
    const char* what;
    std::vector<std::string> pieces;
    bool ends;
    std::string error;  // "" = ok
  } cases[] = {
      {"as many bytes as two tokens may have", {std::string(67'584, 'x')}, true, ""},
      {"one byte more", {std::string(67'585, 'x')}, true, "more than 67584 bytes of text"},
      {"large pieces, no end", {large, large, large}, false, "more than 67584 bytes of text"},
      {"many pieces", std::vector<std::string>(69, "x"), true, "more than 68 pieces of text"},
  };
  for (const auto& c : cases) {
    WorkloadSpec spec = Short(2);
    spec.num_turns = 2;  // the first turn's answer is kept
    const Workload workload(spec);
    ScriptedStreams streams({.pieces = c.pieces, .end = {}, .ends = c.ends});
    LoadSpec load;
    load.starts_us = {0};
    const RunResult result = LoadLoop(SystemClock(), streams, workload, load).Run();
    ASSERT_GE(result.records.size(), 1u) << c.what;
    const RequestRecord& record = result.records[0];
    const bool is_ok = c.error.empty();
    EXPECT_EQ(record.outcome, is_ok ? RequestOutcome::kOk : RequestOutcome::kMalformed) << c.what;
    EXPECT_THAT(record.error, HasSubstr(c.error)) << c.what;
    EXPECT_EQ(streams.cancelled.size(), c.ends ? 0u : 1u) << c.what;
  }
}

TEST(LoadRunTest, AnErrorIsKeptAsFarAsItTells) {
  StreamEnd end;
  end.outcome = RequestOutcome::kServerError;
  end.error = std::string(4'000'000, 'e');
  ScriptedStreams streams({.pieces = {}, .end = end});
  const Workload workload(Short(2));
  LoadSpec load;
  load.starts_us = {0};
  const RunResult result = LoadLoop(SystemClock(), streams, workload, load).Run();
  EXPECT_EQ(result.records.at(0).error, std::string(4096, 'e'));
}

TEST(LoadRunTest, ACloseThatCrossesARequestIsTriedAgainAndALateOneIsAnError) {
  LoadSpec load;
  load.num_users = 1;
  load.max_sessions = 2;
  {
    ToyServer server({.ttft_us = 1'000, .fault = ToyFault::kCloseUnanswered, .fault_every = 2});
    const RunResult result = RunAgainst(server.port(), Short(1), load);
    server.Stop();
    EXPECT_TRUE(result.records.at(1).ok()) << result.records[1].error;
    EXPECT_EQ(server.bodies().size(), 3u);
  }
  // The server had the request for 700 ms: sending it again would hide a failure.
  ToyServer server({.ttft_us = 700'000, .fault = ToyFault::kCloseUnanswered, .fault_every = 2});
  const RunResult result = RunAgainst(server.port(), Short(1), load);
  server.Stop();
  EXPECT_TRUE(result.records.at(0).ok()) << result.records[0].error;
  EXPECT_EQ(result.records.at(1).outcome, RequestOutcome::kBrokeOff);
  EXPECT_EQ(server.bodies().size(), 2u);
}

TEST(LoadRunTest, WantOfFilesIsTheClientsErrorAndNotAGoneServer) {
  ToyServer server({.ttft_us = 1'000, .itl_us = 100});
  auto streams = HttpStreams::Create({.host = "127.0.0.1", .port = std::to_string(server.port())});
  ASSERT_TRUE(streams.ok());
  const Workload workload(Short(2));
  LoadSpec load;
  load.starts_us.assign(30, 0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = 3, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const RunResult result = LoadLoop(SystemClock(), **streams, workload, load).Run();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const RunReport report = MakeReport(result, {});
  EXPECT_EQ(report.by_outcome[static_cast<size_t>(RequestOutcome::kLocalError)], 30u);
  EXPECT_THAT(report.first_error, HasSubstr("Too many open files"));
  EXPECT_EQ(report.cut_short, "");
  EXPECT_THAT(report.void_reasons,
              testing::Contains(HasSubstr("30 of 30 requests failed on the client's own machine")));
}

TEST(HttpStreamsTest, TheFirstAddressThatAnswersIsTaken) {
  ToyServer server({});
  const auto address = [](int port) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(static_cast<uint16_t>(port));
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    SocketAddress bytes(sizeof in);
    std::memcpy(bytes.data(), &in, sizeof in);
    return bytes;
  };
  const SocketAddress here = address(server.port()), nobody = address(9);
  EXPECT_EQ(*FirstReachable({nobody, here}), here);
  EXPECT_EQ(*FirstReachable({here, nobody}), here);
  EXPECT_EQ(*FirstReachable({nobody}), nobody);
  EXPECT_THAT(std::string(FirstReachable({nobody, nobody}).status().message()),
              HasSubstr("none of 2 addresses answers: Connection refused"));
}

TEST(LoadRunTest, AServerThatGoesAwayLeavesPartialResults) {
  ToyServer server({.ttft_us = 2'000, .itl_us = 500, .gone_after = 6});
  LoadSpec load;
  for (int64_t i = 0; i < 500; ++i) load.starts_us.push_back(5'000 * i);
  const RunResult result = RunAgainst(server.port(), Short(4), load);
  const RunReport report = MakeReport(result, {});
  EXPECT_GE(report.num_ok(), 1u);
  EXPECT_LE(report.num_ok(), 6u);
  EXPECT_LT(report.attempted, 60u);
  EXPECT_THAT(report.cut_short, HasSubstr("the server was gone"));
  EXPECT_THAT(report.cut_short, HasSubstr("Connection refused"));
}

TEST(LoadRunTest, AServerThatIsGoneAtTheEndIsNoticedHoweverFewRequestsAreLeft) {
  ToyServer server({.ttft_us = 2'000, .itl_us = 500, .gone_after = 7});
  const RunReport report = MakeReport(RunAgainst(server.port(), Short(4), TenStarts()), {});
  EXPECT_GE(report.num_ok(), 1u);
  EXPECT_EQ(report.attempted, 10u);
  EXPECT_THAT(report.cut_short, HasSubstr("the server was gone at the end"));
}

TEST(LoadRunTest, AnInterruptEndsTheRunWithWhatThereIs) {
  ToyServer server({.ttft_us = 2'000, .itl_us = 500, .fault = ToyFault::kSilent, .fault_every = 4});
  std::atomic<bool> stop{false};
  LoadSpec load = TenStarts();
  load.stop = &stop;
  load.on_progress = [&stop](const LoadProgress& progress) {
    if (progress.ended >= 5) stop.store(true);
  };
  const RunResult result = RunAgainst(server.port(), Short(4), load);
  EXPECT_EQ(result.cut_short, "interrupted");
  EXPECT_EQ(result.records.size(), 10u);
}

TEST(LoadRunTest, ConnectionsAreReusedAndAClosedOneIsReplaced) {
  ToyServer server(
      {.ttft_us = 1'000, .itl_us = 200, .fault = ToyFault::kBreakOff, .fault_every = 4});
  LoadSpec load;
  load.num_users = 2;
  load.max_sessions = 40;
  const RunReport report = MakeReport(RunAgainst(server.port(), Short(4), load), {});
  EXPECT_EQ(report.num_ok(), 30u);
  EXPECT_EQ(report.by_outcome[static_cast<size_t>(RequestOutcome::kBrokeOff)], 10u);
}

TEST(RunReportTest, AClientThatLagsVoidsTheRun) {
  RunResult result;
  RequestRecord record;
  record.outcome = RequestOutcome::kOk;
  record.sent_us = 0;
  record.token_us = {100'000, 110'000};
  record.end_us = 110'000;
  record.want_output = 2;
  for (int i = 0; i < 200; ++i) result.records.push_back(record);
  result.start_lag_us.assign(200, 990.0);
  result.read_lag_us.assign(400, 10.0);
  EXPECT_THAT(MakeReport(result, {}).void_reasons, testing::IsEmpty());
  // Two of 200 are within the p99; three are not.
  result.start_lag_us[0] = result.start_lag_us[1] = 50'000.0;
  EXPECT_THAT(MakeReport(result, {}).void_reasons, testing::IsEmpty());
  result.start_lag_us[2] = 1'001.0;
  EXPECT_THAT(MakeReport(result, {}).void_reasons,
              testing::ElementsAre(HasSubstr("lag p99 1.00 ms (starting) is above 1 %")));
}

TEST(RunReportTest, GoodputCountsErrorsAgainstItself) {
  RunResult result;
  for (int i = 0; i < 10; ++i) {
    RequestRecord record;
    record.intended_us = 0;
    record.sent_us = 0;
    record.outcome = i < 6 ? RequestOutcome::kOk : RequestOutcome::kBrokeOff;
    record.token_us = {i < 3 ? 50'000 : 500'000};
    record.end_us = 2'000'000;
    record.want_output = 1;
    result.records.push_back(record);
  }
  ReportSpec spec;
  spec.slo = *ParseSlo("ttft=100ms,goodput=50%");
  const RunReport report = MakeReport(result, spec);
  EXPECT_EQ(report.num_met, 3u);
  EXPECT_EQ(report.goodput_share, 0.3);
  EXPECT_EQ(report.goodput_per_s, 1.5);
  EXPECT_EQ(report.output_tokens_per_s, 3.0) << "tokens of streams that broke off are not counted";
  EXPECT_THAT(ToTable(report, spec), HasSubstr("30.0 % of attempted"));
  EXPECT_THAT(ToTable(report, spec), HasSubstr("not met"));
}

}  // namespace
}  // namespace baton::loadgen
