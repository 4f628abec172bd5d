#include "src/cli/trace/perfetto.h"

#include <map>
#include <set>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/cli/trace/traced_cluster.h"

namespace baton::cli {
namespace {

using nlohmann::json;

json Events() { return json::parse(PerfettoJson(TracedCluster()))["traceEvents"]; }

std::vector<json> Spans(int pid) {
  std::vector<json> spans;
  for (const json& event : Events()) {
    if (event["ph"] == "X" && event["pid"] == pid) spans.push_back(event);
  }
  return spans;
}

TEST(PerfettoTest, EachProcessHasItsTrack) {
  std::map<int, std::string> names;
  for (const json& event : Events()) {
    if (event["name"] == "process_name")
      names[event["pid"].get<int>()] = event["args"]["name"].get<std::string>();
  }
  const std::map<int, std::string> expected = {
      {1, "router-0 (router)"}, {2, "prefill-0 (prefill)"}, {3, "decode-0 (decode)"}};
  EXPECT_EQ(names, expected);
}

TEST(PerfettoTest, TheStagesFillTheirRequest) {
  int64_t end = -1;
  int64_t sum = 0;
  json whole;
  for (const json& span : Spans(1)) {
    if (span["name"] == "chatcmpl-1") {
      whole = span;
      end = span["ts"].get<int64_t>();
      continue;
    }
    if (whole.is_null() || span["tid"] != whole["tid"]) continue;
    EXPECT_EQ(span["ts"], end) << span;
    EXPECT_GT(span["dur"], 0) << span;
    end = span["ts"].get<int64_t>() + span["dur"].get<int64_t>();
    sum += span["dur"].get<int64_t>();
  }
  EXPECT_EQ(whole["dur"], 100'000);
  EXPECT_EQ(sum, 100'000);
  EXPECT_EQ(whole["args"]["kv_bytes"], 1048576);
}

// Two spans of one row that overlap without one holding the other cannot be drawn.
TEST(PerfettoTest, WhatOverlapsHasRowsOfItsOwn) {
  std::set<int> rows;
  for (const json& span : Spans(1)) rows.insert(span["tid"].get<int>());
  EXPECT_EQ(rows.size(), 2u);
}

TEST(PerfettoTest, AWorkerShowsItsStepsAndWhatItDidForARequest) {
  std::set<std::string> names;
  for (const json& span : Spans(3)) names.insert(span["name"].get<std::string>());
  const std::set<std::string> expected = {"decode step", "mixed step", "first_step chatcmpl-1",
                                          "decode chatcmpl-1"};
  EXPECT_EQ(names, expected);
  for (const json& span : Spans(2)) EXPECT_GE(span["ts"], 0) << span;
}

TEST(PerfettoTest, NothingIsATraceToo) {
  const json root = json::parse(PerfettoJson({}));
  EXPECT_TRUE(root["traceEvents"].empty());
}

}  // namespace
}  // namespace baton::cli
