// Describes what was simulated, for people and for programs.
#include <string>

#include "fmt/format.h"

#include "src/cli/plan/plan_replay.h"
#include "src/loadgen/quantity.h"

namespace baton::cli {

using loadgen::FormatUs;
using loadgen::Summary;
using sim::ReplayReport;

namespace {

using nlohmann::ordered_json;

// One decimal up to 99.9, so that a column stays narrow.
std::string Percent(double share) {
  return share >= 0.9995 ? "100 %" : fmt::format("{:.1f} %", 100 * share);
}

// "-" of nothing; p50 / p99.
std::string Times(const Summary& ms) {
  if (ms.count == 0) return "-";
  return FormatUs(ms.p50 * 1e3) + " / " + FormatUs(ms.p99 * 1e3);
}

std::string Workers(const PlanRun& run) {
  if (run.num_prefill == 0) return fmt::format("{}", run.num_decode);
  return fmt::format("{}P {}D", run.num_prefill, run.num_decode);
}

std::string Busy(const PlanRun& run) {
  std::string decode = fmt::format("{:.0f} %", 100 * run.report.decode_busy);
  if (run.num_prefill == 0) return decode;
  return fmt::format("{:.0f} / {}", 100 * run.report.prefill_busy, decode);
}

std::string Cached(const ReplayReport& report) {
  if (report.num_prompt_tokens == 0) return "-";
  return Percent(static_cast<double>(report.num_cached_tokens) /
                 static_cast<double>(report.num_prompt_tokens));
}

ordered_json JsonOf(const Summary& ms) {
  if (ms.count == 0) return nullptr;
  return {{"count", ms.count}, {"mean_ms", ms.mean}, {"p50_ms", ms.p50},
          {"p90_ms", ms.p90},  {"p99_ms", ms.p99},   {"max_ms", ms.max}};
}

ordered_json JsonOf(const PlanRun& run) {
  const ReplayReport& r = run.report;
  return {{"policy", run.policy},
          {"end", run.end},
          {"prefill", run.num_prefill},
          {"decode", run.num_decode},
          {"requests", r.num_requests},
          {"finished", r.num_finished},
          {"refused", r.num_refused},
          {"failed", r.num_failed},
          {"left_out", r.num_left_out},
          {"met_share", r.MetShare()},
          {"ttft", JsonOf(r.ttft_ms)},
          {"second_token", JsonOf(r.second_ms)},
          {"itl", JsonOf(r.itl_ms)},
          {"e2e", JsonOf(r.e2e_ms)},
          {"prompt_tokens", r.num_prompt_tokens},
          {"cached_tokens", r.num_cached_tokens},
          {"output_tokens", r.num_output_tokens},
          {"prefill_busy", r.prefill_busy},
          {"decode_busy", r.decode_busy},
          {"simulated_s", r.simulated_s},
          {"elapsed_s", run.elapsed_s}};
}

}  // namespace

std::string RunLine(const PlanRun& run) {
  return fmt::format("simulated {} on {} ({}): {} in time, TTFT {}, ITL {}; {:.1f} s", run.policy,
                     Workers(run), run.end, Percent(run.report.MetShare()),
                     Times(run.report.ttft_ms), Times(run.report.itl_ms), run.elapsed_s);
}

std::string ReplayText(const PlanReplays& replays) {
  std::string text = fmt::format(
      "simulated with the shipped router and scheduler: {}; in time = TTFT <= {} and ITL <= {}\n\n",
      replays.load, FormatUs(replays.objective.ttft_us), FormatUs(replays.objective.itl_us));
  constexpr std::string_view kRow =
      "{:<16} {:<18} {:<9} {:>7}  {:<19} {:<19} {:<19} {:<12} {:<7} {}\n";
  text += fmt::format(kRow, "", "", "workers", "in time", "TTFT p50 / p99", "2nd token p50 / p99",
                      "ITL p50 / p99", "busy", "cached", "refused");
  double elapsed_s = 0;
  for (const PlanRun& run : replays.runs) {
    elapsed_s += run.elapsed_s;
    text += fmt::format(kRow, run.policy, run.end, Workers(run), Percent(run.report.MetShare()),
                        Times(run.report.ttft_ms), Times(run.report.second_ms),
                        Times(run.report.itl_ms), Busy(run), Cached(run.report),
                        run.report.num_refused + run.report.num_failed);
  }
  text += "\n";
  if (replays.alone_share < 1) {
    text += fmt::format(
        "{} of the prompts, not in a cache and alone on a worker, would take no longer than the "
        "TTFT\n",
        Percent(replays.alone_share));
  }
  if (replays.runs.front().report.num_left_out > 0) {
    text += fmt::format("{} requests are longer than a worker takes and were left out\n",
                        replays.runs.front().report.num_left_out);
  }
  if (!replays.sized) {
    text += "these pools do not serve 99 % of what can be served in time\n";
  }
  if (replays.num_sizing > 0) {
    text += fmt::format("pools found in {} simulations\n", replays.num_sizing);
  }
  text += fmt::format("the runs of the table took {:.1f} s here\n", elapsed_s);
  return text;
}

ordered_json ReplayJson(const PlanReplays& replays) {
  ordered_json out = {{"load", replays.load},
                      {"rows", replays.num_rows},
                      {"alone_share", replays.alone_share},
                      {"sizing_runs", replays.num_sizing},
                      {"sized", replays.sized}};
  for (const PlanRun& run : replays.runs) out["runs"].push_back(JsonOf(run));
  return out;
}

}  // namespace baton::cli
