// The command line of `baton bench URL`: what was typed, and the plan that it means.
#ifndef BATON_CLI_BENCH_LOAD_FLAGS_H_
#define BATON_CLI_BENCH_LOAD_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/cli/flags.h"
#include "src/loadgen/bench_plan.h"
#include "src/loadgen/report_files.h"

namespace baton::cli {

// The flags as they were typed.
struct BenchLoadFlags {
  std::string url;
  std::string api = "chat";
  std::string model;
  std::string api_key_env;
  std::string arrivals = "poisson";
  std::string rate;
  std::string burstiness = "1";
  int64_t users = 0;
  int64_t requests = 0;
  std::string duration;
  std::string trace;
  std::string time_scale = "1";
  std::string length_scale = "1";
  bool spread = false;
  std::string input = "128";
  std::string output = "64";
  int64_t turns = 1;
  std::string think = "0s";
  int64_t shared_prefix = 0;
  int64_t prefix_groups = 1;
  std::string token_ids;
  bool natural_end = false;
  std::string timeout = "600s";
  int64_t warmup = 0;
  int64_t seed = 0;
  std::string slo;
  bool find_max = false;
  std::string max_rate = "1000";
  std::vector<std::string> sweep;
  std::vector<std::string> compare;
  int64_t rounds = 16;
  std::string golden;
  int64_t golden_every = 10;
  std::string json;
  std::string html;
};

void DeclareBenchLoad(FlagSet& flags, BenchLoadFlags& f);

// A seed from the clock in the place of 0, so that two runs do not ask the same text by chance.
void DrawSeed(BenchLoadFlags& f);

// The plan of the flags; files are read. InvalidArgument names the flag; an error that a file
// causes has another code or names the file and the line, and then `*file_error` is true.
StatusOr<loadgen::BenchPlan> MakePlan(const BenchLoadFlags& f, bool* file_error);

// "http://host:port[/base]" or "grpc://host:port". InvalidArgument otherwise; https is refused.
StatusOr<loadgen::LoadedServer> MakeEndpoint(std::string_view url, const BenchLoadFlags& f);

// The rates of --sweep, or an error that names the wrong one.
StatusOr<std::vector<double>> SweepRates(const BenchLoadFlags& f);

// The flags that shape the load and the model that it asks, for the head of a result.
loadgen::Settings ToSettings(const BenchLoadFlags& f, const std::string& model);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_LOAD_FLAGS_H_
