// Recorded traces replayed in simulation, with faults.
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "src/base/log.h"
#include "src/loadgen/trace_reader.h"
#include "src/sim/sim_world.h"

namespace baton::sim {

using loadgen::RandomDraws;
using loadgen::ReadTraceFile;
using loadgen::ScaleTrace;
using loadgen::TraceRow;

namespace {

// Runs every row of a trace of tests/data.
SimReport Replay(const std::string& file, double time_scale) {
  EXPECT_TRUE(InitLog({.role = "sim", .level = LogLevel::kOff}).ok());
  auto rows = ReadTraceFile("tests/data/" + file);
  EXPECT_TRUE(rows.ok()) << rows.status();
  RandomDraws draws(1);
  ScaleTrace({.time = time_scale, .spread = true}, draws, *rows);
  SimOptions options;
  options.trace = &*rows;
  options.num_requests = rows->size();
  options.faults = *ParseFaults("delay,reorder,flip,memory");
  options.requests_per_fault = 10;
  SimWorld world(options);
  return world.Run();
}

TEST(SimTraceTest, MooncakeRowsAreAllAnswered) {
  const SimReport report = Replay("mooncake_excerpt.jsonl", 0.5);
  EXPECT_TRUE(report.ok()) << report.ToTable();
  EXPECT_EQ(report.num_requests, 60u);
  EXPECT_EQ(report.num_finished + report.num_cancelled, 60u);
  EXPECT_GT(report.NumFaults(), 0u);
}

TEST(SimTraceTest, AzureRowsAreAllAnswered) {
  const SimReport report = Replay("azure_excerpt.csv", 0.1);
  EXPECT_TRUE(report.ok()) << report.ToTable();
  EXPECT_EQ(report.num_requests, 120u);
  EXPECT_EQ(report.num_finished + report.num_cancelled, 120u);
}

TEST(SimTraceTest, EqualBlocksOfATraceGiveEqualTokens) {
  std::vector<TraceRow> rows(3);
  rows[0] = {0, 1024, 4, {1, 2}};
  rows[1] = {10, 1536, 4, {1, 2, 3}};
  rows[2] = {20, 1024, 4, {9, 2}};
  const SimWorkload workload(1, 1, &rows);
  const wire::Prompt a = workload.Make(0).request.prompt;
  const wire::Prompt b = workload.Make(1).request.prompt;
  const wire::Prompt c = workload.Make(2).request.prompt;
  ASSERT_LT(a.size(), b.size());
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin()));
  EXPECT_NE(a, c);
}

}  // namespace
}  // namespace baton::sim
