#include "src/cli/top/top_frame.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_join.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "src/cli/json_fields.h"

namespace baton::cli {
namespace {

using nlohmann::json;

constexpr size_t kBarWidth = 10;
constexpr std::array<std::string_view, 8> kStages = {"admit",      "queue_prefill", "prefill",
                                                     "kv_wait",    "kv_transfer",   "queue_decode",
                                                     "first_step", "decode"};

TopWorker WorkerOf(const json& row) {
  TopWorker worker;
  worker.role = TextOf(row, "role");
  worker.worker_id = TextOf(row, "worker_id");
  worker.incarnation = TextOf(row, "incarnation");
  worker.admin = TextOf(row, "admin");
  worker.ready = FlagOf(row, "ready");
  worker.running = NumberOf(row, "running");
  worker.waiting = NumberOf(row, "waiting");
  if (const auto blocks = row.find("kv_blocks"); blocks != row.end() && blocks->is_object()) {
    for (const auto& [state, count] : blocks->items()) {
      if (count.is_number_unsigned()) worker.blocks[state] = count.get<uint64_t>();
    }
  }
  for (const json& other : ArrayOf(row, "not_paired")) {
    worker.not_paired.push_back({TextOf(other, "with"), TextOf(other, "why")});
  }
  for (const json& link : ArrayOf(row, "links")) {
    worker.links.push_back({.to = TextOf(link, "to"),
                            .transport = TextOf(link, "transport"),
                            .bytes_per_s = static_cast<double>(NumberOf(link, "bytes_per_s")),
                            .up = FlagOf(link, "up"),
                            .why = TextOf(link, "why")});
  }
  return worker;
}

TopObjective ObjectiveOf(const std::string& name, const json& row) {
  TopObjective objective = {
      .name = name, .num_met = NumberOf(row, "met"), .num_missed = NumberOf(row, "missed")};
  const auto limit = row.find("limit_ms");
  if (limit != row.end() && limit->is_number()) objective.limit_ms = limit->get<double>();
  return objective;
}

// ---- Numbers as text; "-" for what is not known.

std::string Fixed(std::optional<double> value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

std::string Millis(std::optional<double> seconds) {
  if (!seconds) return "-";
  return fmt::format("{:.{}f}", *seconds * 1e3, *seconds < 0.1 ? 1 : 0);
}

std::string Percent(std::optional<double> share) {
  return share ? fmt::format("{:.0f} %", 100.0 * *share) : "-";
}

std::string Bar(double share) {
  const double full = std::clamp(share, 0.0, 1.0) * static_cast<double>(kBarWidth);
  const auto filled = static_cast<size_t>(std::lround(full));
  return fmt::format("[{}{}]", std::string(filled, '#'), std::string(kBarWidth - filled, '.'));
}

// ---- What happened between two looks.

// Two pages of one process and the seconds between them; no `before` = no rates.
struct Span {
  const MetricPage* before = nullptr;
  const MetricPage* now = nullptr;
  double seconds = 0;

  std::optional<double> Rate(std::string_view name, std::optional<LabelIs> label = {}) const {
    if (before == nullptr || now == nullptr || seconds <= 0) return std::nullopt;
    const std::optional<double> grown = Growth(*before, *now, name, label);
    return grown ? std::optional<double>(*grown / seconds) : std::nullopt;
  }
  std::optional<double> Quantile(std::string_view name, double quantile) const {
    if (before == nullptr || now == nullptr) return std::nullopt;
    return QuantileBetween(*before, *now, name, quantile);
  }
  std::optional<double> Mean(std::string_view name, std::optional<LabelIs> label = {}) const {
    if (before == nullptr || now == nullptr) return std::nullopt;
    return MeanBetween(*before, *now, name, label);
  }
  std::optional<double> Value(std::string_view name) const {
    return now != nullptr ? now->Sum(name) : std::nullopt;
  }
};

double SecondsBetween(const TopSnapshot* before, const TopSnapshot& now) {
  return before == nullptr ? 0 : static_cast<double>(now.taken_us - before->taken_us) * 1e-6;
}

Span RouterSpan(const TopSnapshot* before, const TopSnapshot& now) {
  return {before != nullptr ? &before->router : nullptr, &now.router, SecondsBetween(before, now)};
}

// The span between two looks at the same life of a worker.
Span WorkerSpan(const TopSnapshot* before, const TopWorker& worker) {
  Span span{nullptr, worker.metrics ? &*worker.metrics : nullptr, 0};
  if (before == nullptr) return span;
  for (const TopWorker& old : before->workers) {
    if (old.incarnation != worker.incarnation || !old.metrics) continue;
    span.before = &*old.metrics;
    span.seconds = static_cast<double>(worker.taken_us - old.taken_us) * 1e-6;
  }
  return span;
}

// Requests a second that ended with a status of the given hundred.
std::optional<double> CodeRate(const Span& router, std::span<const std::string_view> codes) {
  std::optional<double> sum;
  for (const std::string_view code : codes) {
    const auto rate = router.Rate("baton_requests_total", LabelIs{"code", code});
    if (rate) sum = sum.value_or(0) + *rate;
  }
  return sum;
}

// The share of the requests since `before` that met the objective; none without any.
std::optional<double> ShareMet(const TopSnapshot* before, const TopObjective& now) {
  if (before == nullptr) return std::nullopt;
  const auto old = std::ranges::find(before->objectives, now.name, &TopObjective::name);
  if (old == before->objectives.end()) return std::nullopt;
  if (now.num_met < old->num_met || now.num_missed < old->num_missed) return std::nullopt;
  const auto met = static_cast<double>(now.num_met - old->num_met);
  const auto missed = static_cast<double>(now.num_missed - old->num_missed);
  return met + missed > 0 ? std::optional(met / (met + missed)) : std::nullopt;
}

// ---- Parts of a frame.

void AddHead(const TopSnapshot* before, const TopSnapshot& now, std::vector<FrameLine>* lines) {
  const auto num_ready = std::count_if(now.workers.begin(), now.workers.end(),
                                       [](const TopWorker& worker) { return worker.ready; });
  lines->push_back(
      {fmt::format(
           "baton top   {}   {} workers, {} ready{}", now.model.empty() ? "no model" : now.model,
           now.workers.size(), num_ready,
           before == nullptr ? "" : fmt::format("   over {:.1f} s", SecondsBetween(before, now))),
       LineStyle::kHead});
}

// The objectives of --slo, where the router has any: the share of the requests between two looks
// that met each, and those refused for it.
void AddObjectives(const TopSnapshot* before, const TopSnapshot& now,
                   std::vector<FrameLine>* lines) {
  if (now.objectives.empty()) return;
  constexpr double kGoodShare = 0.99;
  std::string text = "slo      ";
  bool is_good = true;
  for (const TopObjective& objective : now.objectives) {
    const std::optional<double> share = ShareMet(before, objective);
    text +=
        fmt::format(" {} <= {:g} ms met {} ", objective.name, objective.limit_ms, Percent(share));
    is_good = is_good && share.value_or(1) >= kGoodShare;
  }
  const auto refused =
      RouterSpan(before, now).Rate("baton_early_refusals_total", LabelIs{"reason", "slo_ttft"});
  text += fmt::format(" refused {}/s", Fixed(refused, 1));
  lines->push_back({text, is_good ? LineStyle::kPlain : LineStyle::kWarning});
}

void AddRequests(const Span& router, std::vector<FrameLine>* lines) {
  constexpr std::array<std::string_view, 1> kGood = {"200"};
  constexpr std::array<std::string_view, 1> kBusy = {"429"};
  constexpr std::array<std::string_view, 5> kFailed = {"500", "501", "503", "504", "505"};
  const std::optional<double> failed = CodeRate(router, kFailed);
  lines->push_back(
      {fmt::format("requests  running {}  waiting {}  good {}/s  429 {}/s  5xx {}/s  resumed {}/s",
                   Fixed(router.Value("baton_requests_running"), 0),
                   Fixed(router.Value("baton_requests_waiting"), 0),
                   Fixed(CodeRate(router, kGood), 1), Fixed(CodeRate(router, kBusy), 1),
                   Fixed(failed, 1), Fixed(router.Rate("baton_resumes_total"), 1)),
       failed.value_or(0) > 0 ? LineStyle::kWarning : LineStyle::kPlain});
  lines->push_back({fmt::format("tokens    prompt {}/s  generated {}/s",
                                Fixed(router.Rate("baton_prompt_tokens_total"), 0),
                                Fixed(router.Rate("baton_generation_tokens_total"), 0))});
  const char* const ttft = "baton_time_to_first_token_seconds";
  const char* const itl = "baton_inter_token_latency_seconds";
  lines->push_back(
      {fmt::format("ms        ttft p50 {} p99 {}  itl p50 {} p99 {}",
                   Millis(router.Quantile(ttft, 0.5)), Millis(router.Quantile(ttft, 0.99)),
                   Millis(router.Quantile(itl, 0.5)), Millis(router.Quantile(itl, 0.99)))});
  std::string stages = "stage ms ";
  for (const std::string_view stage : kStages) {
    const auto mean = router.Mean("baton_stage_seconds", LabelIs{"stage", stage});
    stages += fmt::format(" {} {}", stage, Millis(mean));
  }
  lines->push_back({stages});
}

// Blocks that a request or a hand-off holds, of all.
struct BlockUse {
  uint64_t total = 0;
  uint64_t held = 0;
  uint64_t cached = 0;
  double share() const {
    return total == 0 ? 0 : static_cast<double>(held) / static_cast<double>(total);
  }
};

BlockUse UseOf(const TopWorker& worker) {
  BlockUse use;
  for (const auto& [state, count] : worker.blocks) {
    use.total += count;
    if (state == "cached") use.cached += count;
    if (state != "cached" && state != "free") use.held += count;
  }
  return use;
}

void AddWorkers(const TopSnapshot* before, const TopSnapshot& now, std::vector<FrameLine>* lines) {
  lines->push_back(
      {fmt::format("{:<8} {:<16} {:<5} {:>4} {:>4} {:>8} {:>8} {:>12} {:>5} {:>14} "
                   "{:>7} {:>8} {:>5} {:>5} {:>5}",
                   "pool", "worker", "ready", "run", "wait", "steps/s", "step ms", "blocks", "",
                   "held/total", "cached", "backlog s", "mbu", "mfu", "lent"),
       LineStyle::kHead});
  for (const TopWorker& worker : now.workers) {
    const Span span = WorkerSpan(before, worker);
    const BlockUse use = UseOf(worker);
    std::string line = fmt::format("{:<8} {:<16} {:<5} {:>4} {:>4} ", worker.role, worker.worker_id,
                                   worker.ready ? "yes" : "no", worker.running, worker.waiting);
    if (worker.metrics) {
      line += fmt::format(
          "{:>8} {:>8} {:>12} {:>5} {:>14} {:>7} {:>9} {:>5} {:>5} {:>5}",
          Fixed(span.Rate("baton_step_seconds_count"), 1), Millis(span.Mean("baton_step_seconds")),
          Bar(use.share()), Percent(use.share()), fmt::format("{}/{}", use.held, use.total),
          use.cached, Fixed(span.Value("baton_prefill_backlog_seconds"), 2),
          Percent(span.Value("baton_mbu_ratio")), Percent(span.Value("baton_mfu_ratio")),
          Fixed(span.Rate("baton_lent_core_seconds_total"), 2));
    } else {
      line += worker.error;
    }
    const bool is_good = worker.ready && worker.metrics.has_value();
    lines->push_back({line, is_good ? LineStyle::kPlain : LineStyle::kWarning});
  }
}

void AddLinks(const TopSnapshot* before, const TopSnapshot& now, std::vector<FrameLine>* lines) {
  lines->push_back({fmt::format("{:<16} {:<16} {:<9} {:>10} {:>5}", "link from", "to", "transport",
                                "GB/s", "up"),
                    LineStyle::kHead});
  for (const TopWorker& worker : now.workers) {
    for (const TopLink& link : worker.links) {
      const auto speed =
          link.bytes_per_s > 0 ? std::optional(link.bytes_per_s * 1e-9) : std::nullopt;
      lines->push_back({fmt::format("{:<16} {:<16} {:<9} {:>10} {:>5}", worker.worker_id, link.to,
                                    link.transport.empty() ? "-" : link.transport, Fixed(speed, 2),
                                    link.up ? "yes" : "no"),
                        link.up ? LineStyle::kPlain : LineStyle::kWarning});
    }
  }
  std::vector<std::string> received;
  for (const TopWorker& worker : now.workers) {
    const auto rate = WorkerSpan(before, worker).Rate("baton_kv_transfer_bytes_total");
    if (worker.role != "decode" || !rate) continue;
    received.push_back(fmt::format("{} {:.1f}", worker.worker_id, *rate * 1e-6));
  }
  if (!received.empty()) {
    lines->push_back({"KV received, MB/s: " + absl::StrJoin(received, ", ")});
  }
}

std::string_view CodeOf(LineStyle style) {
  if (style == LineStyle::kHead) return "\x1b[1m";
  return style == LineStyle::kWarning ? "\x1b[31m" : "";
}

}  // namespace

StatusOr<TopSnapshot> ReadTopTopology(std::string_view text) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || !root.contains("processes") || !root["processes"].is_array()) {
    return DataLoss("the answer has no \"processes\"");
  }
  TopSnapshot snapshot;
  snapshot.model = TextOf(root, "model");
  for (const json& row : root["processes"]) {
    if (!row.is_object()) return DataLoss("a process that is no JSON object");
    if (TextOf(row, "role") != "router") snapshot.workers.push_back(WorkerOf(row));
  }
  if (const auto slo = root.find("slo"); slo != root.end() && slo->is_object()) {
    for (const auto& [name, row] : slo->items())
      snapshot.objectives.push_back(ObjectiveOf(name, row));
  }
  // Pools together, each in order of its names.
  std::sort(snapshot.workers.begin(), snapshot.workers.end(), [](const auto& a, const auto& b) {
    if (a.role != b.role) return a.role > b.role;  // prefill, decode
    return a.worker_id < b.worker_id;
  });
  return snapshot;
}

std::vector<FrameLine> TopFrame(const TopSnapshot* before, const TopSnapshot& now) {
  std::vector<FrameLine> lines;
  AddHead(before, now, &lines);
  AddRequests(RouterSpan(before, now), &lines);
  AddObjectives(before, now, &lines);
  lines.push_back({});
  AddWorkers(before, now, &lines);
  lines.push_back({});
  AddLinks(before, now, &lines);
  return lines;
}

std::string PaintFrame(const std::vector<FrameLine>& lines, const FrameSize& size, bool paint) {
  std::string text;
  // The last row stays free: a line end there would scroll.
  const size_t num_lines = size.rows > 1 ? std::min(lines.size(), size.rows - 1) : lines.size();
  for (size_t i = 0; i < num_lines; ++i) {
    // Names come from other processes.
    std::string line = Printable(lines[i].text);
    if (size.columns > 0 && line.size() > size.columns) line.resize(size.columns);
    const std::string_view code = paint ? CodeOf(lines[i].style) : "";
    text +=
        fmt::format("{}{}{}{}\n", code, line, code.empty() ? "" : "\x1b[0m", paint ? "\x1b[K" : "");
  }
  return paint ? text + "\x1b[J" : text;
}

}  // namespace baton::cli
