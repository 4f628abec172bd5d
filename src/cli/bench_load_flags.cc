#include "src/cli/bench_load_flags.h"

#include <cstdlib>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

#include "src/base/open_files.h"
#include "src/base/regular_file.h"
#include "src/cli/http_client.h"
#include "src/loadgen/quantity.h"

namespace baton::cli {

using loadgen::BenchPlan;
using loadgen::CheckWritable;
using loadgen::LoadedServer;
using loadgen::ParseArrivals;
using loadgen::ParseGolden;
using loadgen::ParseLength;
using loadgen::ParseNumber;
using loadgen::ParseSlo;
using loadgen::ParseTimeUs;
using loadgen::ParseWhole;
using loadgen::RandomDraws;
using loadgen::ReadTraceFile;
using loadgen::ScaleTrace;
using loadgen::Settings;
using loadgen::SplitAt;
using loadgen::StreamApi;
using loadgen::TraceScale;
using loadgen::WorkloadSpec;

namespace {

Status Named(std::string_view flag, const Status& status) {
  return WithPrefix(status, absl::string_view(flag.data(), flag.size()));
}

StatusOr<int64_t> FlagTimeUs(std::string_view flag, const std::string& text) {
  StatusOr<int64_t> time_us = ParseTimeUs(text);
  if (!time_us.ok()) return Named(flag, time_us.status());
  return time_us;
}

StatusOr<double> FlagPositive(std::string_view flag, const std::string& text) {
  StatusOr<double> number = ParseNumber(text);
  if (!number.ok() || *number <= 0.0) {
    return InvalidArgument("{}: '{}' is not a number above 0", flag, text);
  }
  return number;
}

// Wide enough for any trace, and narrow enough that times and lengths stay whole numbers.
StatusOr<double> FlagScale(std::string_view flag, const std::string& text) {
  StatusOr<double> scale = ParseNumber(text);
  if (!scale.ok() || *scale < 1e-6 || *scale > 1e4) {
    return InvalidArgument("{}: '{}' is not a number in [0.000001, 10000]", flag, text);
  }
  return scale;
}

// Linux hands out 28,232 local ports by default; some are still closing.
constexpr int64_t kMaxUsers = 20'000;

// One flag at most may say when requests start; without a search one must.
Status CheckStarts(const BenchLoadFlags& f) {
  const int given = (f.rate.empty() ? 0 : 1) + (f.users > 0 ? 1 : 0) + (f.trace.empty() ? 0 : 1);
  const bool search = f.find_max || !f.sweep.empty();
  if (f.find_max && !f.sweep.empty()) {
    return InvalidArgument("--find-max and --sweep cannot be used together");
  }
  if (!f.compare.empty() && search) {
    return InvalidArgument("--compare cannot be used with --find-max or --sweep");
  }
  if (f.find_max && f.slo.empty()) {
    return InvalidArgument("--find-max needs --slo, e.g. --slo ttft=400ms,itl=30ms,goodput=99%");
  }
  if (search && (f.users > 0 || !f.trace.empty())) {
    return InvalidArgument("--find-max and --sweep set the rate: give no --users and no --trace");
  }
  if (search && f.arrivals == "ramp") {
    return InvalidArgument("--find-max and --sweep set the rate: --arrivals ramp has two");
  }
  if (given > 1) return InvalidArgument("give one of --rate, --users and --trace, not {}", given);
  if (given == 0 && !search) {
    return InvalidArgument(
        "say how to load: --rate N (open loop), --users N (closed) or --trace F");
  }
  return OkStatus();
}

// A flag that would change nothing is a mistake: another load would run than was asked for.
Status CheckUnused(const BenchLoadFlags& f) {
  const BenchLoadFlags unset;
  struct Unused {
    std::string_view flag;
    bool is_given;
    bool is_used;
    std::string_view needs;
  };
  const bool is_open = f.users == 0 && f.trace.empty();
  const bool has_lengths = f.trace.empty();
  const Unused flags[] = {
      {"--burstiness", f.burstiness != unset.burstiness,
       is_open && (f.arrivals == "poisson" || f.arrivals == "gamma"), "gamma gaps of --rate"},
      {"--arrivals", f.arrivals != unset.arrivals, is_open, "--rate"},
      {"--rate", !f.rate.empty(), f.sweep.empty(), "no --sweep, which sets it"},
      {"--max-rate", f.max_rate != unset.max_rate, f.find_max, "--find-max"},
      {"--rounds", f.rounds != unset.rounds, !f.compare.empty(), "--compare"},
      {"--input", f.input != unset.input, has_lengths, "no --trace, which has its own lengths"},
      {"--output", f.output != unset.output, has_lengths, "no --trace, which has its own lengths"},
      {"--time-scale", f.time_scale != unset.time_scale, !f.trace.empty(), "--trace"},
      {"--length-scale", f.length_scale != unset.length_scale, !f.trace.empty(), "--trace"},
      {"--spread", f.spread, !f.trace.empty(), "--trace"},
      {"--think", f.think != unset.think, f.turns > 1, "--turns above 1"},
      {"--prefix-groups", f.prefix_groups != unset.prefix_groups, f.shared_prefix > 0,
       "--shared-prefix"},
      {"--golden-every", f.golden_every != unset.golden_every, !f.golden.empty(), "--golden"},
  };
  for (const Unused& entry : flags) {
    if (entry.is_given && !entry.is_used) {
      return InvalidArgument("{} needs {}", entry.flag, entry.needs);
    }
  }
  return OkStatus();
}

// Poisson gaps are gamma gaps of shape 1, so another shape asks for gamma gaps.
std::string_view ArrivalLaw(const BenchLoadFlags& f) {
  const bool has_shape = f.burstiness != BenchLoadFlags().burstiness;
  return has_shape && f.arrivals == "poisson" ? "gamma" : std::string_view(f.arrivals);
}

// Each user holds a connection, and so an open file and a local port.
Status CheckUsers(const BenchLoadFlags& f) {
  constexpr int64_t kOtherFiles = 64;
  const uint64_t files = MaxOpenFiles();
  if (files == kNoOpenFilesLimit || f.users <= static_cast<int64_t>(files) - kOtherFiles) {
    return OkStatus();
  }
  return InvalidArgument(
      "--users {} needs as many open files; this process may have {} (ulimit -Hn)", f.users, files);
}

Status CheckPrompts(const BenchLoadFlags& f) {
  if (!f.trace.empty() && (f.turns > 1 || f.shared_prefix > 0)) {
    return InvalidArgument("--trace has its own lengths: give no --turns and no --shared-prefix");
  }
  if (!f.trace.empty()) {
    BATON_RETURN_IF_ERROR(FlagScale("--time-scale", f.time_scale).status());
    BATON_RETURN_IF_ERROR(FlagScale("--length-scale", f.length_scale).status());
  }
  if (f.token_ids.empty()) return OkStatus();
  if (f.api != "completions") return InvalidArgument("--token-ids needs --api completions");
  if (f.turns > 1) {
    return InvalidArgument("--token-ids has no ids of the answers, which --turns {} needs",
                           f.turns);
  }
  return OkStatus();
}

Status ReadGolden(const BenchLoadFlags& f, WorkloadSpec& workload) {
  constexpr size_t kMaxGoldenBytes = size_t{256} << 20;
  const StatusOr<std::string> text = ReadInput(f.golden, kMaxGoldenBytes);
  if (!text.ok()) return Named(fmt::format("--golden {}", f.golden), text.status());
  BATON_ASSIGN_OR_RETURN(workload.golden, ParseGolden(*text, f.golden));
  workload.golden_every = static_cast<uint64_t>(f.golden_every);
  return OkStatus();
}

Status ReadTrace(const BenchLoadFlags& f, WorkloadSpec& workload) {
  BATON_ASSIGN_OR_RETURN(workload.trace, ReadTraceFile(f.trace));
  TraceScale scale;
  BATON_ASSIGN_OR_RETURN(scale.time, FlagScale("--time-scale", f.time_scale));
  BATON_ASSIGN_OR_RETURN(scale.length, FlagScale("--length-scale", f.length_scale));
  scale.spread = f.spread;
  RandomDraws draws(static_cast<uint64_t>(f.seed));
  ScaleTrace(scale, draws, workload.trace);
  workload.trace_length = scale.length;
  return OkStatus();
}

Status FillWorkload(const BenchLoadFlags& f, WorkloadSpec& workload) {
  workload.api = f.api == "chat" ? StreamApi::kChat : StreamApi::kCompletions;
  BATON_ASSIGN_OR_RETURN(workload.input, ParseLength("--input", f.input));
  BATON_ASSIGN_OR_RETURN(workload.output, ParseLength("--output", f.output));
  workload.num_turns = static_cast<uint32_t>(f.turns);
  workload.shared_prefix = static_cast<uint32_t>(f.shared_prefix);
  workload.prefix_groups = static_cast<uint32_t>(f.prefix_groups);
  workload.ignore_eos = !f.natural_end;
  workload.seed = static_cast<uint64_t>(f.seed);
  if (f.token_ids.empty()) return OkStatus();
  const std::vector<std::string_view> ends = SplitAt(f.token_ids, ':');
  const StatusOr<uint64_t> first = ParseWhole(ends.front(), {0, 10'000'000});
  const StatusOr<uint64_t> last = ParseWhole(ends.back(), {0, 10'000'000});
  if (ends.size() != 2 || !first.ok() || !last.ok() || *first > *last) {
    return InvalidArgument("--token-ids '{}' is not FIRST:LAST", f.token_ids);
  }
  workload.token_ids = {static_cast<uint32_t>(*first), static_cast<uint32_t>(*last)};
  return OkStatus();
}

Status FillTimes(const BenchLoadFlags& f, BenchPlan& plan) {
  BATON_ASSIGN_OR_RETURN(plan.think_us, FlagTimeUs("--think", f.think));
  BATON_ASSIGN_OR_RETURN(plan.timeout_us, FlagTimeUs("--timeout", f.timeout));
  if (plan.timeout_us == 0) return InvalidArgument("--timeout 0 leaves no time for an answer");
  plan.max_sessions = static_cast<uint64_t>(f.requests);
  if (!f.duration.empty()) {
    BATON_ASSIGN_OR_RETURN(plan.duration_us, FlagTimeUs("--duration", f.duration));
    if (plan.duration_us == 0) return InvalidArgument("--duration 0 starts nothing");
  }
  const bool endless = f.trace.empty() && f.requests == 0;
  if (f.duration.empty() && (endless || f.arrivals == "ramp")) plan.duration_us = 30'000'000;
  return OkStatus();
}

std::string YesNo(bool value) { return value ? "yes" : "no"; }

}  // namespace

void DeclareBenchLoad(FlagSet& flags, BenchLoadFlags& f) {
  flags.Add("URL", f.url, "server: http://HOST:PORT or grpc://HOST:PORT; `model` = no server");
  flags.AddChoice("--api", f.api, {"chat", "completions"}, "method of the API");
  flags.Add("--model", f.model, "model to ask; default: the first that the server lists");
  flags.Add("--api-key-env", f.api_key_env, "environment variable that holds the API key");
  flags.Add("--rate", f.rate, "open loop: starts a second; FIRST:LAST for a ramp");
  flags.AddChoice("--arrivals", f.arrivals, {"poisson", "gamma", "fixed", "ramp"},
                  "law of the starts of an open loop");
  flags.Add("--burstiness", f.burstiness, "shape of gamma gaps; 1 = Poisson, below 1 = burstier");
  flags.Add("--users", f.users, {1, kMaxUsers},
            "closed loop: users who each wait for their answer");
  flags.Add("--trace", f.trace, "replay: Mooncake .jsonl or Azure .csv, plain or gzip");
  flags.Add("--time-scale", f.time_scale, "stretches the trace's time; 2 = half the rate");
  flags.Add("--length-scale", f.length_scale, "stretches the trace's lengths");
  flags.Add("--spread", f.spread, "spreads rows of one timestamp up to the next timestamp");
  flags.Add("--duration", f.duration, "no start after it, e.g. 30s, 5m (default 30s)");
  flags.Add("--requests", f.requests, {0, 10'000'000}, "sessions at most; 0 = by duration");
  flags.Add("--input", f.input, "prompt tokens: N, uniform:A:B, lognormal:MEDIAN:SIGMA[:MAX]");
  flags.Add("--output", f.output, "answer tokens, same forms");
  flags.Add("--turns", f.turns, {1, 1000}, "turns of a session; each sends all before it again");
  flags.Add("--think", f.think, "time between an answer and the next turn");
  flags.Add("--shared-prefix", f.shared_prefix, {0, 10'000'000},
            "tokens that all sessions of a group begin with");
  flags.Add("--prefix-groups", f.prefix_groups, {1, 1'000'000}, "number of such groups");
  flags.Add("--token-ids", f.token_ids, "prompts of token ids FIRST:LAST, exact in length");
  flags.Add("--natural-end", f.natural_end, "answers may end early (no ignore_eos)");
  flags.Add("--timeout", f.timeout, "longest wait for a whole answer");
  flags.Add("--warmup", f.warmup, {0, 10'000'000}, "first sessions that are not counted");
  flags.Add("--seed", f.seed, {0, INT64_MAX},
            "of starts, lengths and texts; 0 = a new one, which the result tells");
  flags.Add("--slo", f.slo, "objective: ttft=400ms,itl=30ms,goodput=99% (also tpot, e2e, ...)");
  flags.Add("--find-max", f.find_max, "search the largest rate that meets --slo, from --rate up");
  flags.Add("--max-rate", f.max_rate, "where --find-max ends");
  flags.Add("--sweep", f.sweep, "rates to run one after another, e.g. 1,2,4");
  flags.Add("--compare", f.compare, "URL_A URL_B: interleaved rounds, then a verdict");
  flags.Add("--rounds", f.rounds, {4, 1000}, "rounds of each server with --compare");
  flags.Add("--golden", f.golden, "JSON lines {prompt, max_tokens, text}: answers must match");
  flags.Add("--golden-every", f.golden_every, {1, 1'000'000}, "every so many-th start is golden");
  flags.Add("--json", f.json, "write numbers and raw samples to this file");
  flags.Add("--html", f.html, "write a report with pictures to this file");
}

void DrawSeed(BenchLoadFlags& f) {
  if (f.seed == 0) f.seed = absl::GetCurrentTimeNanos() / 1000 % 1'000'000'000 + 1;
}

StatusOr<BenchPlan> MakePlan(const BenchLoadFlags& f, bool* file_error) {
  *file_error = false;
  BATON_RETURN_IF_ERROR(CheckStarts(f));
  BATON_RETURN_IF_ERROR(CheckUsers(f));
  BATON_RETURN_IF_ERROR(CheckPrompts(f));
  BATON_RETURN_IF_ERROR(CheckUnused(f));
  BenchPlan plan;
  BATON_RETURN_IF_ERROR(FillWorkload(f, plan.workload));
  BATON_RETURN_IF_ERROR(FillTimes(f, plan));
  plan.num_users = static_cast<uint32_t>(f.users);
  if (plan.open() && f.trace.empty()) {
    const std::string rate = f.rate.empty() ? (f.find_max ? "0.5" : "1") : f.rate;
    BATON_ASSIGN_OR_RETURN(plan.arrivals, ParseArrivals(ArrivalLaw(f), rate, f.burstiness));
  }
  plan.report.warmup_sessions = static_cast<uint64_t>(f.warmup);
  plan.report.exact_output = !f.natural_end;
  if (!f.slo.empty()) {
    BATON_ASSIGN_OR_RETURN(plan.report.slo, ParseSlo(f.slo));
  }
  for (const auto& [flag, path] : {std::pair("--json", &f.json), std::pair("--html", &f.html)}) {
    if (path->empty()) continue;
    *file_error = true;
    BATON_RETURN_IF_ERROR(Named(flag, CheckWritable(*path)));
  }
  *file_error = true;
  plan.report.wants_golden = !f.golden.empty();
  if (!f.golden.empty()) BATON_RETURN_IF_ERROR(ReadGolden(f, plan.workload));
  if (!f.trace.empty()) BATON_RETURN_IF_ERROR(ReadTrace(f, plan.workload));
  *file_error = false;
  return plan;
}

StatusOr<LoadedServer> MakeEndpoint(std::string_view url, const BenchLoadFlags& f) {
  LoadedServer endpoint;
  if (url.empty()) {
    return InvalidArgument(
        "URL is missing: HOST:PORT, http://HOST:PORT or grpc://HOST:PORT of a server");
  }
  endpoint.url = std::string(url);
  endpoint.grpc = url.starts_with("grpc://");
  if (url.starts_with("https://") || url.starts_with("grpcs://")) {
    return InvalidArgument(
        "'{}': the load client has no TLS; name the server's plain port ({}://HOST:PORT) or put a "
        "proxy in front",
        url, url.starts_with("https") ? "http" : "grpc");
  }
  if (!endpoint.grpc && !url.starts_with("http://") && url.find("://") != url.npos) {
    return InvalidArgument("'{}' must begin with http:// or grpc://", url);
  }
  const StatusOr<HttpUrl> parsed_or = ParseServer(endpoint.grpc ? url.substr(7) : url);
  if (!parsed_or.ok()) {
    return InvalidArgument("'{}' is no server: HOST:PORT, http://HOST:PORT or grpc://HOST:PORT",
                           url);
  }
  const HttpUrl& parsed = *parsed_or;
  if (endpoint.grpc && parsed.target != "/") {
    return InvalidArgument("'{}': gRPC has no paths; give grpc://HOST:PORT", url);
  }
  endpoint.target.host = parsed.host;
  endpoint.target.port = parsed.port;
  endpoint.target.base_path = BasePathOf(parsed);
  endpoint.target.model = f.model;
  if (f.api_key_env.empty()) return endpoint;
  const char* key = std::getenv(f.api_key_env.c_str());
  if (key == nullptr) return InvalidArgument("--api-key-env {} is not set", f.api_key_env);
  endpoint.target.api_key = key;
  return endpoint;
}

StatusOr<std::vector<double>> SweepRates(const BenchLoadFlags& f) {
  std::vector<double> rates;
  for (const std::string& text : f.sweep) {
    BATON_ASSIGN_OR_RETURN(const double rate, FlagPositive("--sweep", text));
    rates.push_back(rate);
  }
  return rates;
}

Settings ToSettings(const BenchLoadFlags& f, const std::string& model) {
  Settings settings = {{"api", f.api}, {"model", model}, {"seed", std::to_string(f.seed)}};
  if (!f.trace.empty()) {
    settings.push_back({"trace", f.trace});
    settings.push_back({"time_scale", f.time_scale});
    settings.push_back({"length_scale", f.length_scale});
    settings.push_back({"spread", YesNo(f.spread)});
  } else if (f.users > 0) {
    settings.push_back({"users", std::to_string(f.users)});
  } else {
    settings.push_back({"arrivals", std::string(ArrivalLaw(f))});
    settings.push_back({"rate", f.rate.empty() ? absl::StrJoin(f.sweep, ",") : f.rate});
    if (f.find_max) settings.push_back({"max_rate", f.max_rate});
    settings.push_back({"burstiness", f.burstiness});
  }
  if (f.trace.empty()) {
    settings.push_back({"input", f.input});
    settings.push_back({"output", f.output});
  }
  settings.push_back({"token_ids", f.token_ids});
  settings.push_back({"turns", std::to_string(f.turns)});
  settings.push_back({"think", f.think});
  settings.push_back({"shared_prefix", std::to_string(f.shared_prefix)});
  settings.push_back({"prefix_groups", std::to_string(f.prefix_groups)});
  settings.push_back({"duration", f.duration});
  settings.push_back({"requests", std::to_string(f.requests)});
  settings.push_back({"ignore_eos", YesNo(!f.natural_end)});
  settings.push_back({"timeout", f.timeout});
  settings.push_back({"warmup", std::to_string(f.warmup)});
  if (!f.compare.empty()) settings.push_back({"rounds", std::to_string(f.rounds)});
  settings.push_back({"slo", f.slo});
  settings.push_back({"golden", f.golden});
  if (!f.golden.empty()) settings.push_back({"golden_every", std::to_string(f.golden_every)});
  return settings;
}

}  // namespace baton::cli
