// `baton bench URL`: loads a server and says what it did.
#include <signal.h>

#include <atomic>
#include <cstdio>

#include "nlohmann/json.hpp"

#include "src/base/clock.h"
#include "src/base/print.h"
#include "src/base/version.h"
#include "src/cli/bench_live_line.h"
#include "src/cli/bench_load_flags.h"
#include "src/cli/commands.h"
#include "src/cli/http_client.h"
#include "src/loadgen/html_report.h"
#include "src/loadgen/quantity.h"

namespace baton::cli {

using loadgen::BenchPlan;
using loadgen::ComparedRuns;
using loadgen::Environment;
using loadgen::HtmlPage;
using loadgen::JsonFile;
using loadgen::LoadedServer;
using loadgen::LoadProgress;
using loadgen::MakeReport;
using loadgen::OnTrial;
using loadgen::ParseNumber;
using loadgen::RateRuns;
using loadgen::RateSearchResult;
using loadgen::RateSearchSpec;
using loadgen::ReadEnvironment;
using loadgen::RunComparison;
using loadgen::RunFindMax;
using loadgen::RunReport;
using loadgen::RunResult;
using loadgen::RunSweep;
using loadgen::ToHtml;
using loadgen::ToJson;
using loadgen::ToString;
using loadgen::ToTable;
using loadgen::WriteWholeFile;

namespace {

// Set by SIGINT and SIGTERM: the run ends and what there is is told.
std::atomic<bool> interrupted{false};
std::atomic<int64_t> interrupted_us{0};
// A signal that comes twice at once, from a wrapper and from its group, is one.
constexpr int64_t kSecondSignalUs = 500'000;

// A second signal ends the process.
void OnInterrupt(int number) {
  const int64_t now_us = SystemClock().NowUs();
  if (!interrupted.exchange(true, std::memory_order_relaxed)) {
    interrupted_us.store(now_us, std::memory_order_relaxed);
    return;
  }
  if (now_us - interrupted_us.load(std::memory_order_relaxed) < kSecondSignalUs) return;
  (void)signal(number, SIG_DFL);
  (void)raise(number);
}

// The id of the first model that the server lists; "" when it has no such list.
StatusOr<std::string> FirstModel(const LoadedServer& endpoint) {
  HttpClientRequest request;
  request.url.host = endpoint.target.host;
  request.url.port = endpoint.target.port;
  request.url.target = endpoint.target.base_path + "/v1/models";
  if (!endpoint.target.api_key.empty()) {
    request.headers["Authorization"] = "Bearer " + endpoint.target.api_key;
  }
  BATON_ASSIGN_OR_RETURN(const HttpClientResponse response, HttpCall(request));
  const auto list = nlohmann::json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (response.status != 200 || !list.is_object() || !list.contains("data")) return std::string();
  const auto& data = list["data"];
  if (!data.is_array() || data.empty() || !data[0].is_object()) return std::string();
  const auto id = data[0].find("id");
  return id != data[0].end() && id->is_string() ? id->get<std::string>() : std::string();
}

// One invocation: the plan, the servers, and what is written at the end.
class BenchLoad {
 public:
  BenchLoad(const BenchLoadFlags& f, BenchPlan plan) : f_(f), plan_(std::move(plan)) {
    plan_.stop = &interrupted;
    plan_.on_progress = [this](const LoadProgress& progress) { line_.Show(progress); };
    if (!line_.active()) plan_.on_progress = nullptr;
  }

  int Run(const std::vector<LoadedServer>& endpoints) {
    environment_ = ReadEnvironment(kVersion);
    model_ = endpoints[0].target.model;
    Print("seed {}\n", f_.seed);
    StatusOr<int> code = kExitOk;
    if (endpoints.size() == 2) {
      code = RunCompare(endpoints[0], endpoints[1]);
    } else if (f_.find_max) {
      code = RunMax(endpoints[0]);
    } else if (!f_.sweep.empty()) {
      code = RunRates(endpoints[0]);
    } else {
      code = RunOnce(endpoints[0]);
    }
    line_.Clear();
    if (!code.ok()) {
      const bool usage = absl::IsInvalidArgument(code.status());
      return Fail("bench", code.status(), usage ? kExitUsage : kExitFailure);
    }
    return *code;
  }

 private:
  StatusOr<int> RunOnce(const LoadedServer& endpoint) {
    const uint64_t seed = plan_.workload.seed;
    BATON_ASSIGN_OR_RETURN(const RunResult result, RunPlan(plan_, endpoint, {seed, seed}));
    line_.Clear();
    const RunReport report = MakeReport(result, plan_.report);
    Print("{}{}{}\n{}", endpoint.url, endpoint.target.model.empty() ? "" : ", ",
          endpoint.target.model, ToTable(report, plan_.report));
    file_.runs.push_back(
        {endpoint.url, plan_.has_rate() ? plan_.arrivals.rate : 0, &result, report});
    BATON_RETURN_IF_ERROR(WriteFiles());
    return Judge(report);
  }

  // A failure says in one line what the table says at length.
  static int Judge(const RunReport& report) {
    if (!report.cut_short.empty()) {
      return Fail("bench", Unavailable("the run was cut short ({}); {} of {} requests were ok",
                                       report.cut_short, report.num_ok(), report.attempted));
    }
    if (report.attempted == 0) {
      return Fail("bench", FailedPrecondition("no request counts: all were --warmup"));
    }
    if (report.num_ok() == 0) {
      return Fail("bench", Unavailable("no request was answered: {}", report.first_error));
    }
    if (!report.void_reasons.empty()) {
      return Fail("bench", FailedPrecondition("the run is void: {}", report.void_reasons.front()));
    }
    return kExitOk;
  }

  OnTrial TrialPrinter() {
    return [this](double rate, const RunReport& report) {
      line_.Clear();
      const std::string share =
          plan_.report.slo ? fmt::format(", goodput {:.1f} %", 100.0 * report.goodput_share) : "";
      Print(stderr, "rate {:.3g}: ttft p50 {:.1f} ms, itl p50 {:.1f} ms, {} of {} ok{}{}\n", rate,
            report.ttft.p50 / 1e3, report.itl.p50 / 1e3, report.num_ok(), report.attempted, share,
            report.void_reasons.empty() ? "" : ", void");
    };
  }

  void TakeRuns(const RateRuns& runs) {
    for (size_t i = 0; i < runs.rates.size(); ++i) {
      file_.runs.push_back({fmt::format("rate {:.3g}", runs.rates[i]), runs.rates[i],
                            &runs.results[i], runs.reports[i]});
    }
  }

  StatusOr<int> RunRates(const LoadedServer& endpoint) {
    BATON_ASSIGN_OR_RETURN(const std::vector<double> rates, SweepRates(f_));
    RateRuns runs;
    const Status swept = RunSweep(plan_, endpoint, rates, TrialPrinter(), runs);
    for (size_t i = 0; i < runs.rates.size(); ++i) {
      Print("rate {:.3g}\n{}\n", runs.rates[i], ToTable(runs.reports[i], plan_.report));
    }
    TakeRuns(runs);
    BATON_RETURN_IF_ERROR(WriteAfter(swept));
    int code = kExitOk;
    for (const RunReport& report : runs.reports) {
      if (code == kExitOk) code = Judge(report);
    }
    return code;
  }

  StatusOr<int> RunMax(const LoadedServer& endpoint) {
    RateSearchSpec spec;
    spec.lowest = plan_.arrivals.rate;
    const StatusOr<double> highest = ParseNumber(f_.max_rate);
    if (!highest.ok() || *highest < spec.lowest) {
      return InvalidArgument("--max-rate '{}' is not a rate from {} up", f_.max_rate, spec.lowest);
    }
    spec.highest = *highest;
    RateRuns runs;
    const StatusOr<RateSearchResult> found =
        RunFindMax(plan_, endpoint, spec, TrialPrinter(), runs);
    TakeRuns(runs);
    if (found.ok()) {
      const nlohmann::json answer = {
          {"rate", found->best ? nlohmann::json(*found->best) : nlohmann::json()},
          {"at_highest", found->at_highest}};
      file_.extra_key = "find_max";
      file_.extra_json = answer.dump();
      page_.notes = found->best ? MaxLine(*found) : "";
      if (found->best) Print("{}\n", MaxLine(*found));
    }
    BATON_RETURN_IF_ERROR(WriteAfter(found.status()));
    if (!found->best) {
      return FailedPrecondition("the objective ({}) is not met at the lowest rate, {:g} starts/s",
                                ToString(*plan_.report.slo), spec.lowest);
    }
    return kExitOk;
  }

  std::string MaxLine(const RateSearchResult& found) const {
    return fmt::format("largest rate with {}: {:.3g} starts/s{}", ToString(*plan_.report.slo),
                       *found.best, found.at_highest ? " (the end of the range)" : "");
  }

  StatusOr<int> RunCompare(const LoadedServer& a, const LoadedServer& b) {
    ComparedRuns runs;
    Status compared = RunComparison(plan_, a, b, static_cast<uint32_t>(f_.rounds), runs);
    line_.Clear();
    const Environment after = ReadEnvironment(kVersion);
    if (compared.ok() && !(after == environment_)) {
      compared =
          FailedPrecondition("the environment changed during the comparison: {} before, {} after",
                             ToString(environment_), ToString(after));
    }
    TakeRounds("A", runs.a, runs.reports_a);
    TakeRounds("B", runs.b, runs.reports_b);
    // The pictures lay all rounds of a server over each other.
    const RunResult all_a = Merge(runs.a), all_b = Merge(runs.b);
    page_.runs.push_back({"A " + a.url, 0, &all_a, MergedReport(all_a, runs.reports_a)});
    page_.runs.push_back({"B " + b.url, 0, &all_b, MergedReport(all_b, runs.reports_b)});
    if (compared.ok()) {
      Print("A {}\nB {}\n{}", a.url, b.url, ToTable(runs.comparison));
      file_.extra_key = "comparison";
      file_.extra_json = ToJson(runs.comparison);
      page_.notes = ToTable(runs.comparison);
    }
    BATON_RETURN_IF_ERROR(WriteAfter(compared));
    if (!runs.comparison.void_reasons.empty()) {
      return FailedPrecondition("the comparison is void: {}", runs.comparison.void_reasons.front());
    }
    return kExitOk;
  }

  void TakeRounds(const char* side, const std::vector<RunResult>& rounds,
                  const std::vector<RunReport>& reports) {
    for (size_t i = 0; i < rounds.size(); ++i) {
      file_.runs.push_back({fmt::format("{} round {}", side, i + 1), 0, &rounds[i], reports[i]});
    }
  }

  // Rounds that lie over each other are not as many times as fast: rates are those of a round.
  RunReport MergedReport(const RunResult& all, const std::vector<RunReport>& rounds) const {
    RunReport merged = MakeReport(all, plan_.report);
    for (double RunReport::*rate : {&RunReport::requests_per_s, &RunReport::output_tokens_per_s,
                                    &RunReport::input_tokens_per_s, &RunReport::goodput_per_s}) {
      merged.*rate = 0;
      for (const RunReport& round : rounds) {
        merged.*rate += round.*rate / static_cast<double>(rounds.size());
      }
    }
    return merged;
  }

  static RunResult Merge(const std::vector<RunResult>& rounds) {
    RunResult all;
    for (const RunResult& round : rounds) {
      all.wall_us += round.wall_us;
      all.client_cpu_us += round.client_cpu_us;
      all.records.insert(all.records.end(), round.records.begin(), round.records.end());
      all.start_lag_us.insert(all.start_lag_us.end(), round.start_lag_us.begin(),
                              round.start_lag_us.end());
      all.read_lag_us.insert(all.read_lag_us.end(), round.read_lag_us.begin(),
                             round.read_lag_us.end());
    }
    return all;
  }

  // Writes what there is also after an error, which is then the answer.
  Status WriteAfter(const Status& measured) {
    const Status written = file_.runs.empty() ? OkStatus() : WriteFiles();
    return measured.ok() ? written : measured;
  }

  // Both files are tried: a full disk under one does not cost the other.
  Status WriteFiles() {
    Status first = OkStatus();
    page_.title = f_.compare.empty() ? f_.url : f_.compare[0] + " and " + f_.compare[1];
    page_.environment = environment_;
    page_.settings = ToSettings(f_, model_);
    page_.warmup_sessions = plan_.report.warmup_sessions;
    if (page_.runs.empty()) page_.runs = file_.runs;
    if (!f_.json.empty()) {
      file_.environment = environment_;
      file_.settings = page_.settings;
      first = WriteWholeFile(f_.json, ToJson(file_));
    }
    if (!f_.html.empty()) {
      const Status html = WriteWholeFile(f_.html, ToHtml(page_));
      if (first.ok()) first = html;
    }
    return first;
  }

  const BenchLoadFlags& f_;
  BenchPlan plan_;
  LiveLine line_;
  Environment environment_;
  std::string model_;  // that was asked; "" = the only one
  JsonFile file_;
  HtmlPage page_;
};

StatusOr<std::vector<LoadedServer>> MakeEndpoints(const BenchLoadFlags& f) {
  std::vector<std::string> urls = f.compare;
  if (urls.empty()) urls = {f.url};
  if (!f.compare.empty() && (f.compare.size() != 2 || !f.url.empty())) {
    return InvalidArgument("--compare takes two URLs and nothing else does: --compare URL_A URL_B");
  }
  std::vector<LoadedServer> endpoints;
  for (const std::string& url : urls) {
    BATON_ASSIGN_OR_RETURN(LoadedServer endpoint, MakeEndpoint(url, f));
    endpoints.push_back(std::move(endpoint));
  }
  return endpoints;
}

// Also finds out that a server is there before anything is measured.
Status FindModels(std::vector<LoadedServer>& endpoints) {
  for (LoadedServer& endpoint : endpoints) {
    if (endpoint.grpc) continue;
    const StatusOr<std::string> model = FirstModel(endpoint);
    if (!model.ok()) return WithPrefix(model.status(), endpoint.url);
    if (endpoint.target.model.empty()) endpoint.target.model = *model;
  }
  return OkStatus();
}

}  // namespace

int RunBenchLoad(const std::vector<std::string>& args) {
  FlagSet flags(
      "bench",
      "Loads an OpenAI-compatible server or Baton's gRPC API and measures it. `baton bench "
      "model --help`: the forward pass alone, without a server.");
  BenchLoadFlags f;
  DeclareBenchLoad(flags, f);
  if (std::optional<int> code = flags.Parse(args)) return *code;
  DrawSeed(f);
  StatusOr<std::vector<LoadedServer>> endpoints = MakeEndpoints(f);
  if (!endpoints.ok()) return Fail("bench", endpoints.status(), kExitUsage);
  bool file_error = false;
  StatusOr<BenchPlan> plan = MakePlan(f, &file_error);
  if (!plan.ok()) return Fail("bench", plan.status(), file_error ? kExitFailure : kExitUsage);
  if (const StatusOr<std::vector<double>> rates = SweepRates(f); !rates.ok()) {
    return Fail("bench", rates.status(), kExitUsage);
  }
  if (const Status s = FindModels(*endpoints); !s.ok()) return Fail("bench", s, kExitFailure);
  interrupted_us.store(SystemClock().NowUs());  // the handler must not be the first to ask it
  (void)signal(SIGINT, &OnInterrupt);
  (void)signal(SIGTERM, &OnInterrupt);
  return BenchLoad(f, *std::move(plan)).Run(*endpoints);
}

}  // namespace baton::cli
