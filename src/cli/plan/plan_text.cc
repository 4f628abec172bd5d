// A plan for people and for programs.
#include <algorithm>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "src/base/size_text.h"
#include "src/cli/json_fields.h"
#include "src/cli/plan/plan_replay.h"
#include "src/cli/plan/plan_report.h"
#include "src/loadgen/quantity.h"

namespace baton::cli {

using loadgen::FormatUs;
using model::StateManifest;
using model::StatePool;
using model::StatePoolKind;
using plan::AggregatedRun;
using plan::BatchBound;
using plan::ClusterPlan;
using plan::Comparison;
using plan::DecodePlan;
using plan::kPlanQuantile;
using plan::PlanLoad;
using plan::PrefillPlan;
using plan::SplitLength;
using plan::TransferPlan;

namespace {

using nlohmann::ordered_json;

// A line of the table: what, at the best end, at the cautious end.
struct Row {
  std::string what;
  std::string best;
  std::string cautious;
};

std::string Percent(double share) { return fmt::format("{:.0f} %", 100 * share); }
std::string Gigabytes(double bytes) { return fmt::format("{:.3g} GB", bytes / 1e9); }
std::string Times(double p50_us, double p99_us) {
  return FormatUs(p50_us) + " / " + FormatUs(p99_us);
}

std::string_view BoundText(BatchBound bound) {
  switch (bound) {
    case BatchBound::kObjective:
      return "the ITL";
    case BatchBound::kMemory:
      return "the KV pool";
    case BatchBound::kRows:
      return "a worker's rows";
  }
  return "";
}

std::string RunText(const AggregatedRun& run) {
  if (!run.carries) return fmt::format("chunks of {}: does not carry the load", run.chunk);
  return fmt::format("chunks of {}: TTFT {}, ITL {}", run.chunk, FormatUs(run.ttft_p99_us),
                     FormatUs(run.itl_p99_us));
}

std::string KeepsText(const Comparison& other) {
  return other.keeps_itl ? RunText(*other.keeps_itl) : "no chunk keeps the ITL";
}

std::string LinkText(const TransferPlan& transfer) {
  if (!transfer.link_is_known) return "not known: give --link";
  return fmt::format("{}, of it exposed {}; links {} busy", FormatUs(transfer.transfer_us),
                     FormatUs(transfer.exposed_us), Percent(transfer.link_utilization));
}

// The state of a sequence, pool by pool.
std::string StateText(const StateManifest& state) {
  std::vector<std::string> parts;
  for (const StatePool& pool : state.pools) {
    const bool is_fixed = pool.kind == StatePoolKind::kFixed;
    parts.push_back(fmt::format("{} {} bytes a {} ({})", pool.name,
                                is_fixed ? pool.bytes_per_sequence : pool.bytes_per_token,
                                is_fixed ? "sequence" : "token", pool.dtype));
  }
  std::string text = fmt::format("state: {}\n", fmt::join(parts, ", "));
  if (state.bytes_per_sequence() > 0) {
    text += fmt::format("       {} with each sequence, as much as the rows of {} tokens\n",
                        FormatSize(state.bytes_per_sequence()), state.TokensOfState());
  }
  return text;
}

ordered_json JsonOf(const StateManifest& state) {
  ordered_json pools = ordered_json::array();
  for (const StatePool& pool : state.pools) {
    ordered_json row = {{"name", pool.name},
                        {"kind", StatePoolKindName(pool.kind)},
                        {"dtype", pool.dtype},
                        {"layers", pool.num_layers},
                        {"bytes_per_token", pool.bytes_per_token},
                        {"bytes_per_sequence", pool.bytes_per_sequence}};
    if (pool.kind == StatePoolKind::kWindowRows) row["window"] = pool.window;
    pools.push_back(std::move(row));
  }
  return {{"bytes_per_token", state.bytes_per_token()},
          {"bytes_per_sequence", state.bytes_per_sequence()},
          {"tokens_of_state", state.TokensOfState()},
          {"pools", std::move(pools)}};
}

ordered_json JsonOf(const SplitLength& split) {
  ordered_json from;  // null = at no length, or not known
  if (split.from_tokens > 0) from = split.from_tokens;
  return {{"link_is_known", split.is_known}, {"from_tokens", std::move(from)}};
}

std::string SplitText(const SplitLength& split) {
  if (!split.is_known) return "not known: give --link";
  if (split.from_tokens == 0) return "at no length";
  return fmt::format("from {} prompt tokens on", split.from_tokens);
}

// The rows of one end in the place `column`.
std::vector<Row> RowsOf(const PlanEnd& end, std::string Row::*column) {
  const PrefillPlan& p = end.plan->prefill;
  const DecodePlan& d = end.plan->decode;
  const TransferPlan& t = end.plan->transfer;
  std::vector<Row> rows;
  const auto add = [&](std::string what, std::string value) {
    Row row{.what = std::move(what), .best = "", .cautious = ""};
    row.*column = std::move(value);
    rows.push_back(std::move(row));
  };
  add("prefill workers", fmt::format("{}", p.num_workers));
  add("  a prompt takes", fmt::format("{}, chunks of {}", FormatUs(p.prompt_us), p.chunk));
  add("  utilization, mean wait", Percent(p.utilization) + ", " + FormatUs(p.wait_mean_us));
  add("  TTFT p50 / p99", Times(p.ttft_p50_us, p.ttft_p99_us));
  add("decode workers", fmt::format("{}", d.num_workers));
  add("  batch mean / p99", fmt::format("{:.1f} / {}", d.mean_batch, d.batch_p99));
  add("  largest batch", fmt::format("{} ({})", d.max_batch, BoundText(d.bound)));
  add("  ITL p50 / p99", Times(d.itl_p50_us, d.itl_p99_us));
  add("  KV of the p99 batch", FormatSize(d.kv_bytes));
  add("KV of a prompt crosses in", LinkText(t));
  add("second token after first", FormatUs(t.second_token_us));
  add("a split pays", SplitText(end.split));
  add(fmt::format("without split, {} workers", end.plan->num_workers()),
      RunText(end.aggregated.whole_chunks));
  add("  keeping the ITL", KeepsText(end.aggregated));
  return rows;
}

std::string Table(const PlanReport& report) {
  std::vector<Row> rows = RowsOf(report.best, &Row::best);
  if (report.cautious.plan.ok()) {
    const std::vector<Row> second = RowsOf(report.cautious, &Row::cautious);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].cautious = second[i].cautious;
      // Both ends compare with as many workers as they have.
      if (rows[i].what.starts_with("without split")) rows[i].what = "without split, same number";
    }
  }
  rows.insert(rows.begin(), {"", report.best.name, report.cautious.name});
  size_t width = 0;
  for (const Row& row : rows) width = std::max(width, row.best.size());
  std::string text;
  for (const Row& row : rows) {
    std::string line = fmt::format("{:<27} {:<{}}  {}", row.what, row.best, width, row.cautious);
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string BandText(const PlanReport& report) {
  if (report.device.limits != nullptr) {
    return fmt::format(
        "A bound, nothing measured: no build is faster than the limits of {}; a first step is "
        "trusted\nto reach half of them.\n",
        report.device.name);
  }
  const MeasuredSteps& measured = *report.device.measured;
  return fmt::format(
      "Measured on {}, {} threads a worker: the two ends hold every repetition of every case "
      "between\nthem; the fit misses a case's median by {} at most.\n",
      Printable(measured.processor), measured.num_threads, Percent(measured.worst_error));
}

std::string CostText(const PlanReport& report, const PlanEnd& end) {
  const PlanCost cost = CostOf(report, end.plan->num_workers());
  std::string text;
  if (report.device.cost_per_hour > 0) {
    text += fmt::format("cost {}: {:.4g} a million answer tokens, {:.4g} a million of all tokens\n",
                        end.name, cost.cost_per_million_output, cost.cost_per_million_tokens);
  }
  if (report.device.watts > 0) {
    text += fmt::format(
        "energy {}: {:.4g} kWh a million answer tokens, {:.4g} kWh a million of all tokens\n",
        end.name, cost.kwh_per_million_output, cost.kwh_per_million_tokens);
  }
  return text;
}

ordered_json JsonOf(const AggregatedRun& run) {
  return {{"workers", run.num_workers},      {"chunk", run.chunk},
          {"carries", run.carries},          {"utilization", run.utilization},
          {"ttft_p50_us", run.ttft_p50_us},  {"ttft_p99_us", run.ttft_p99_us},
          {"itl_p50_us", run.itl_p50_us},    {"itl_p99_us", run.itl_p99_us},
          {"mixed_gaps_p99", run.mixed_gaps}};
}

ordered_json JsonOf(const ClusterPlan& plan) {
  const PrefillPlan& p = plan.prefill;
  const DecodePlan& d = plan.decode;
  const TransferPlan& t = plan.transfer;
  return {{"prefill",
           {{"workers", p.num_workers},
            {"chunk", p.chunk},
            {"prompt_us", p.prompt_us},
            {"utilization", p.utilization},
            {"wait_mean_us", p.wait_mean_us},
            {"ttft_p50_us", p.ttft_p50_us},
            {"ttft_p99_us", p.ttft_p99_us},
            {"kv_bytes", p.kv_bytes}}},
          {"decode",
           {{"workers", d.num_workers},
            {"max_batch", d.max_batch},
            {"bound", BoundText(d.bound)},
            {"mean_batch", d.mean_batch},
            {"batch_p99", d.batch_p99},
            {"itl_p50_us", d.itl_p50_us},
            {"itl_p99_us", d.itl_p99_us},
            {"kv_bytes", d.kv_bytes}}},
          {"transfer",
           {{"bytes_per_request", t.bytes_per_request},
            {"need_bytes_per_s", t.need_bytes_per_s},
            {"link_is_known", t.link_is_known},
            {"transfer_us", t.transfer_us},
            {"exposed_us", t.exposed_us},
            {"link_utilization", t.link_utilization},
            {"link_carries", t.link_carries},
            {"second_token_us", t.second_token_us}}}};
}

ordered_json JsonOf(const PlanReport& report, const PlanEnd& end) {
  ordered_json out = {{"name", end.name}};
  if (!end.plan.ok()) {
    out["error"] = std::string(end.plan.status().message());
    return out;
  }
  out["plan"] = JsonOf(*end.plan);
  out["without_split"] = {
      {"whole_chunks", JsonOf(end.aggregated.whole_chunks)},
      {"keeps_itl", end.aggregated.keeps_itl ? JsonOf(*end.aggregated.keeps_itl) : nullptr},
      {"fewest_workers", end.aggregated.fewest_workers}};
  out["split_helps"] = end.aggregated.split_helps;
  out["split_pays"] = JsonOf(end.split);
  out["verdict"] = VerdictText(report, end);
  const PlanCost cost = CostOf(report, end.plan->num_workers());
  if (report.device.cost_per_hour > 0) {
    out["cost"] = {{"per_million_output", cost.cost_per_million_output},
                   {"per_million_tokens", cost.cost_per_million_tokens}};
  }
  if (report.device.watts > 0) {
    out["kwh"] = {{"per_million_output", cost.kwh_per_million_output},
                  {"per_million_tokens", cost.kwh_per_million_tokens}};
  }
  return out;
}

}  // namespace

std::string PlanText(const PlanReport& report) {
  const PlanLoad& load = report.load;
  const TransferPlan& t = report.best.plan->transfer;
  std::string text = fmt::format(
      "{} on {}: {:.4g} requests a second of {} tokens, answers of {}; 99 % of them with TTFT <= "
      "{},\nITL <= {}\n",
      Printable(report.model.id), report.device.name, load.rate_per_s, load.input_tokens,
      load.output_tokens, FormatUs(report.objective.ttft_us), FormatUs(report.objective.itl_us));
  text += BandText(report) + "\n" + Table(report) + "\n";
  text += fmt::format("link: {} of KV a request, {}/s in all\n",
                      Gigabytes(static_cast<double>(t.bytes_per_request)),
                      Gigabytes(t.need_bytes_per_s));
  text += StateText(report.state);
  for (const PlanEnd* end : {&report.best, &report.cautious}) {
    if (end->plan.ok()) text += CostText(report, *end);
  }
  for (const PlanEnd* end : {&report.best, &report.cautious}) {
    text += fmt::format(
        "{}: {}\n", end->name,
        end->plan.ok() ? VerdictText(report, *end) : std::string(end->plan.status().message()));
  }
  return text;
}

std::string PlanJson(const PlanReport& report, const PlanReplays* replays) {
  const PlanLoad& load = report.load;
  ordered_json out = {{"model", report.model.id},
                      {"device", report.device.name},
                      {"basis", report.device.limits != nullptr ? "limits" : "measured"},
                      {"load",
                       {{"rate_per_s", load.rate_per_s},
                        {"input", load.input_tokens},
                        {"output", load.output_tokens}}},
                      {"objective",
                       {{"ttft_us", report.objective.ttft_us},
                        {"itl_us", report.objective.itl_us},
                        {"quantile", kPlanQuantile}}}};
  out["state"] = JsonOf(report.state);
  if (report.device.measured) out["fit_error"] = report.device.measured->worst_error;
  out["ends"] = {JsonOf(report, report.best), JsonOf(report, report.cautious)};
  if (replays != nullptr) out["simulated"] = ReplayJson(*replays);
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace baton::cli
