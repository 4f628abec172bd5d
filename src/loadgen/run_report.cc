#include "src/loadgen/run_report.h"

#include <algorithm>
#include <cmath>

#include "src/loadgen/quantity.h"

namespace baton::loadgen {
namespace {

// Samples of each word over all counted records.
struct Samples {
  std::vector<double> ttft, ttft_sent, ttft_server, second_token, itl, tpot, e2e;
  std::array<double, kNumStages> stage_ms{};
  uint64_t num_staged = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  bool any_cached = false;
};

void Keep(std::vector<double>& list, std::optional<double> value) {
  if (value) list.push_back(*value);
}

void TakeSamples(const RequestRecord& record, Samples& samples) {
  Keep(samples.ttft, TtftUs(record));
  Keep(samples.ttft_sent, TtftSentUs(record));
  Keep(samples.ttft_server, TtftServerUs(record));
  Keep(samples.second_token, SecondTokenUs(record));
  Keep(samples.tpot, TpotUs(record));
  Keep(samples.e2e, E2eUs(record));
  const std::vector<double> gaps = ItlUs(record);
  samples.itl.insert(samples.itl.end(), gaps.begin(), gaps.end());
  // Tokens of an answer that nobody got do not count as throughput.
  if (record.ok()) samples.output_tokens += record.NumOutput();
  samples.prompt_tokens += record.facts.prompt_tokens.value_or(0);
  samples.cached_tokens += record.facts.cached_tokens.value_or(0);
  samples.any_cached |= record.facts.cached_tokens.has_value();
  if (!record.facts.stages) return;
  ++samples.num_staged;
  for (size_t i = 0; i < kNumStages; ++i) samples.stage_ms[i] += StageMs(*record.facts.stages, i);
}

bool WrongWork(const RequestRecord& record, bool exact_output) {
  if (!record.ok() || record.golden_idx) return false;
  const auto& facts = record.facts;
  if (record.want_input > 0 && facts.prompt_tokens && *facts.prompt_tokens != record.want_input) {
    return true;
  }
  return exact_output && facts.completion_tokens && *facts.completion_tokens != record.want_output;
}

void TakeSummaries(const Samples& samples, RunReport& report) {
  report.ttft = Summarize(samples.ttft);
  report.ttft_sent = Summarize(samples.ttft_sent);
  report.ttft_server = Summarize(samples.ttft_server);
  report.second_token = Summarize(samples.second_token);
  report.itl = Summarize(samples.itl);
  report.tpot = Summarize(samples.tpot);
  report.e2e = Summarize(samples.e2e);
  for (size_t i = 0; i < kNumStages && samples.num_staged > 0; ++i) {
    report.stage_mean_ms[i] = samples.stage_ms[i] / static_cast<double>(samples.num_staged);
  }
  if (samples.any_cached && samples.prompt_tokens > 0) {
    report.cached_share =
        static_cast<double>(samples.cached_tokens) / static_cast<double>(samples.prompt_tokens);
  }
}

void TakeRates(const Samples& samples, double first_us, double last_us, RunReport& report) {
  report.wall_s = std::max(0.0, last_us - first_us) / 1e6;
  if (report.attempted > 0) {
    report.goodput_share =
        static_cast<double>(report.num_met) / static_cast<double>(report.attempted);
  }
  if (report.wall_s <= 0.0) return;
  report.requests_per_s = static_cast<double>(report.num_ok()) / report.wall_s;
  report.output_tokens_per_s = static_cast<double>(samples.output_tokens) / report.wall_s;
  report.input_tokens_per_s = static_cast<double>(samples.prompt_tokens) / report.wall_s;
  report.goodput_per_s = static_cast<double>(report.num_met) / report.wall_s;
}

void FindVoid(RunReport& report) {
  if (report.attempted == 0) report.void_reasons.push_back("no request was counted");
  if (report.golden_missing) {
    report.void_reasons.push_back(
        fmt::format("none of {} requests was an answered golden prompt: the answers are unchecked",
                    report.attempted));
  }
  const uint64_t local = report.by_outcome[static_cast<size_t>(RequestOutcome::kLocalError)];
  if (local > 0) {
    report.void_reasons.push_back(fmt::format(
        "{} of {} requests failed on the client's own machine", local, report.attempted));
  }
  if (report.golden_wrong > 0) {
    report.void_reasons.push_back(fmt::format("{} of {} golden prompts had a wrong answer; {}",
                                              report.golden_wrong, report.golden_asked,
                                              report.first_golden_error));
  }
  if (report.wrong_work > 0) {
    report.void_reasons.push_back(
        fmt::format("{} of {} answers have other token counts than the workload declares",
                    report.wrong_work, report.num_ok()));
  }
  const std::string lag = LagComplaint(report.start_lag, report.read_lag, report.ttft);
  if (!lag.empty()) report.void_reasons.push_back(lag);
}

std::string Row(std::string_view name, const Summary& s) {
  if (s.count == 0) return "";
  return fmt::format("{:<15}{:>9}{:>12}{:>12}{:>12}{:>12}{:>12}\n", name, s.count, FormatUs(s.mean),
                     FormatUs(s.p50), FormatUs(s.p90), s.p99_holds() ? FormatUs(s.p99) : "-",
                     FormatUs(s.max));
}

std::string CountsLine(const RunReport& report) {
  std::string line =
      fmt::format("requests       {} attempted, {} ok", report.attempted, report.num_ok());
  for (size_t i = 0; i < kNumOutcomes; ++i) {
    const auto outcome = static_cast<RequestOutcome>(i);
    if (outcome == RequestOutcome::kOk || report.by_outcome[i] == 0) continue;
    line += fmt::format(", {} {}", report.by_outcome[i], OutcomeName(outcome));
  }
  if (report.golden_asked > 0) {
    line += fmt::format("; golden {} of {} right", report.golden_asked - report.golden_wrong,
                        report.golden_asked);
  }
  return line + "\n";
}

}  // namespace

RunReport MakeReport(const RunResult& result, const ReportSpec& spec) {
  RunReport report;
  Samples samples;
  double first_us = INFINITY, last_us = 0;
  for (const RequestRecord& record : result.records) {
    if (record.session_idx < spec.warmup_sessions) continue;
    ++report.attempted;
    ++report.by_outcome[static_cast<size_t>(record.outcome)];
    if (!record.ok() && report.first_error.empty()) report.first_error = record.error;
    if (record.golden_idx && record.ok()) ++report.golden_asked;
    if (record.golden_wrong && report.golden_wrong++ == 0) report.first_golden_error = record.error;
    if (WrongWork(record, spec.exact_output)) ++report.wrong_work;
    if (spec.slo ? MeetsSlo(*spec.slo, record) : record.ok() && !record.golden_wrong) {
      ++report.num_met;
    }
    TakeSamples(record, samples);
    first_us = std::min(first_us, static_cast<double>(record.intended_us));
    last_us = std::max(last_us, static_cast<double>(record.end_us));
  }
  report.cut_short = result.cut_short;
  report.golden_missing = spec.wants_golden && report.golden_asked == 0;
  TakeSummaries(samples, report);
  TakeRates(samples, first_us, last_us, report);
  report.start_lag = Summarize(result.start_lag_us);
  report.read_lag = Summarize(result.read_lag_us);
  if (result.wall_us > 0) {
    report.client_cores =
        static_cast<double>(result.client_cpu_us) / static_cast<double>(result.wall_us);
  }
  FindVoid(report);
  return report;
}

std::string LagComplaint(const Summary& start_lag, const Summary& read_lag, const Summary& ttft) {
  const double start_us = start_lag.count > 0 ? start_lag.p99 : 0.0;
  const double read_us = read_lag.count > 0 ? read_lag.p99 : 0.0;
  const double lag_us = std::max(start_us, read_us);
  if (ttft.count == 0 || lag_us <= kMaxLagShare * ttft.p50) return "";
  return fmt::format("the client's own lag p99 {} ({}) is above {:g} % of ttft p50 {}",
                     FormatUs(lag_us), start_us >= read_us ? "starting" : "reading",
                     100.0 * kMaxLagShare, FormatUs(ttft.p50));
}

std::string ToTable(const RunReport& report, const ReportSpec& spec) {
  std::string text = CountsLine(report);
  text += fmt::format(
      "throughput     {:.2f} requests/s, {:.1f} output tokens/s, {:.1f} s; client {:.2f} cores\n",
      report.requests_per_s, report.output_tokens_per_s, report.wall_s, report.client_cores);
  text += fmt::format("{:<15}{:>9}{:>12}{:>12}{:>12}{:>12}{:>12}\n", "", "samples", "mean", "p50",
                      "p90", "p99", "max");
  text += Row("ttft", report.ttft) + Row("ttft (sent)", report.ttft_sent) +
          Row("ttft (server)", report.ttft_server) + Row("second_token", report.second_token) +
          Row("itl", report.itl) + Row("tpot", report.tpot) + Row("e2e", report.e2e) +
          Row("lag (start)", report.start_lag) + Row("lag (read)", report.read_lag);
  if (report.stage_mean_ms[0]) {
    text += "stages (mean) ";
    for (size_t i = 0; i < kNumStages; ++i) {
      text += fmt::format(" {} {:.1f} ms", StageName(i), *report.stage_mean_ms[i]);
    }
    text += '\n';
  }
  if (report.cached_share) {
    text +=
        fmt::format("cached         {:.1f} % of the prompt tokens\n", 100.0 * *report.cached_share);
  }
  if (spec.slo) {
    text += fmt::format("goodput        {:.2f} requests/s, {:.1f} % of attempted ({}): {}\n",
                        report.goodput_per_s, 100.0 * report.goodput_share, ToString(*spec.slo),
                        report.goodput_share >= spec.slo->goodput ? "met" : "not met");
  }
  if (!report.first_error.empty()) {
    text += fmt::format("first error    {}\n", report.first_error);
  }
  if (!report.cut_short.empty()) text += fmt::format("CUT SHORT      {}\n", report.cut_short);
  for (const std::string& reason : report.void_reasons) {
    text += fmt::format("VOID           {}\n", reason);
  }
  return text;
}

}  // namespace baton::loadgen
