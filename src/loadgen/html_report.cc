#include "src/loadgen/html_report.h"

#include <algorithm>

#include "src/loadgen/quantity.h"
#include "src/loadgen/svg_plot.h"

namespace baton::loadgen {
namespace {

// Points of a distribution's line and windows of a timeline: as fine as the picture shows.
constexpr int kCdfPoints = 200;
constexpr int kWindows = 60;
// More lines than this cannot be told apart; the table still has all runs.
constexpr size_t kMaxLines = 8;
// Characters that fit beside a bar.
constexpr size_t kMaxBarLabel = 18;

constexpr char kStyle[] =
    "body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1340px;padding:0 1em;"
    "color:#222;background:#fff}table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em "
    ".7em;"
    "text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:1em}"
    "svg{width:100%;border:1px solid #ddd;background:#fff}svg text{font:11px system-ui,sans-serif;"
    "fill:#333}svg .title{font-size:13px;font-weight:600}.grid{stroke:#e4e4e4;fill:none}"
    ".line{fill:none;stroke-width:1.8;stroke-linecap:round}.bad{color:#b00020;font-weight:600}pre{"
    "background:#f6f6f6;"
    "padding:1em;overflow:auto}";

// The runs that get a line of their own: the last ones, which a search ends with.
std::vector<const ReportedRun*> Drawn(const HtmlPage& page) {
  std::vector<const ReportedRun*> drawn;
  for (const ReportedRun& run : page.runs) drawn.push_back(&run);
  if (drawn.size() > kMaxLines) {
    drawn.erase(drawn.begin(), drawn.end() - static_cast<ptrdiff_t>(kMaxLines));
  }
  return drawn;
}

PlotLine Cdf(std::string label, std::vector<double> values_us) {
  PlotLine line;
  line.label = std::move(label);
  std::sort(values_us.begin(), values_us.end());
  for (int i = 1; i <= kCdfPoints && !values_us.empty(); ++i) {
    const double share = static_cast<double>(i) / kCdfPoints;
    line.points.push_back({Quantile(values_us, share) / 1e3, 100.0 * share});
  }
  return line;
}

template <typename Samples>
std::string CdfPlot(const HtmlPage& page, const std::string& word, const Samples& samples) {
  std::vector<PlotLine> lines;
  for (const ReportedRun* run : Drawn(page)) {
    std::vector<double> values;
    for (const RequestRecord& record : run->result->records) {
      if (record.session_idx >= page.warmup_sessions) samples(record, values);
    }
    lines.push_back(Cdf(run->label, std::move(values)));
  }
  return DrawLines({.title = "Distribution of " + word,
                    .x_label = word + ", ms (logarithmic)",
                    .y_label = "% of samples",
                    .log_x = true},
                   lines);
}

std::string CurvePlot(const HtmlPage& page) {
  std::vector<const ReportedRun*> runs;
  for (const ReportedRun& run : page.runs) runs.push_back(&run);
  std::sort(runs.begin(), runs.end(), [](const auto* a, const auto* b) {
    return a->report.output_tokens_per_s < b->report.output_tokens_per_s;
  });
  PlotLine ttft50{"ttft p50", {}}, ttft90{"ttft p90", {}}, itl50{"itl p50", {}},
      itl90{"itl p90", {}};
  for (const ReportedRun* run : runs) {
    const double x = run->report.output_tokens_per_s;
    ttft50.points.push_back({x, run->report.ttft.p50 / 1e3});
    ttft90.points.push_back({x, run->report.ttft.p90 / 1e3});
    itl50.points.push_back({x, run->report.itl.p50 / 1e3});
    itl90.points.push_back({x, run->report.itl.p90 / 1e3});
  }
  const std::string x_label = "output tokens/s";
  return DrawLines({.title = "Throughput and time to first token",
                    .x_label = x_label,
                    .y_label = "ms",
                    .dots = true},
                   {ttft50, ttft90}) +
         DrawLines({.title = "Throughput and inter-token latency",
                    .x_label = x_label,
                    .y_label = "ms",
                    .dots = true},
                   {itl50, itl90});
}

std::string TimelinePlot(const ReportedRun& run) {
  int64_t end_us = 1;
  for (const RequestRecord& record : run.result->records) end_us = std::max(end_us, record.end_us);
  std::vector<std::vector<double>> windows(kWindows);
  for (const RequestRecord& record : run.result->records) {
    for (size_t i = 1; i < record.token_us.size(); ++i) {
      const auto window = static_cast<size_t>(record.token_us[i] * kWindows / (end_us + 1));
      windows[std::min<size_t>(window, kWindows - 1)].push_back(
          static_cast<double>(record.token_us[i] - record.token_us[i - 1]));
    }
  }
  // A window holds too few gaps for a p99.
  PlotLine middle{"p50", {}}, high{"largest", {}};
  for (size_t w = 0; w < windows.size(); ++w) {
    std::sort(windows[w].begin(), windows[w].end());
    const double at_s =
        (static_cast<double>(w) + 0.5) * static_cast<double>(end_us) / kWindows / 1e6;
    middle.points.push_back({at_s, Quantile(windows[w], 0.5) / 1e3});
    high.points.push_back({at_s, Quantile(windows[w], 1.0) / 1e3});
  }
  return DrawLines({.title = "itl over the run: " + run.label, .x_label = "s", .y_label = "ms"},
                   {middle, high});
}

std::string StagePlot(const HtmlPage& page) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kNumStages; ++i) names.emplace_back(StageName(i));
  std::vector<PlotBar> bars;
  for (const ReportedRun* run : Drawn(page)) {
    PlotBar bar;
    bar.label = run->label;
    if (bar.label.size() > kMaxBarLabel) bar.label = bar.label.substr(0, kMaxBarLabel - 3) + "...";
    for (const auto& mean : run->report.stage_mean_ms) bar.parts.push_back(mean.value_or(0.0));
    bars.push_back(std::move(bar));
  }
  return DrawBars(
      {.title = "Stages of a request at the server (mean)", .x_label = "ms", .y_label = ""}, names,
      bars);
}

std::string RunTable(const HtmlPage& page) {
  std::string html =
      "<table><tr><th>run</th><th>attempted</th><th>ok</th><th>requests/s</th><th>tokens/s</th>"
      "<th>ttft p50</th><th>p90</th><th>p99</th><th>itl p50</th><th>p90</th><th>p99</th>"
      "<th>goodput/s</th><th>share met</th></tr>\n";
  const auto p99 = [](const Summary& s) { return s.p99_holds() ? FormatUs(s.p99) : "-"; };
  for (const ReportedRun& run : page.runs) {
    const RunReport& r = run.report;
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.1f}</td><td>{}</td><td>{}</td>"
        "<td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.1f} %</td></tr>\n",
        EscapeHtml(run.label), r.attempted, r.num_ok(), r.requests_per_s, r.output_tokens_per_s,
        FormatUs(r.ttft.p50), FormatUs(r.ttft.p90), p99(r.ttft), FormatUs(r.itl.p50),
        FormatUs(r.itl.p90), p99(r.itl), r.goodput_per_s, 100.0 * r.goodput_share);
  }
  html += "</table>\n<p>p99 is shown from 1,000 samples on.</p>\n";
  for (const ReportedRun& run : page.runs) {
    for (const std::string& reason : run.report.void_reasons) {
      html += fmt::format("<p class=\"bad\">{} is void: {}</p>\n", EscapeHtml(run.label),
                          EscapeHtml(reason));
    }
    if (!run.report.cut_short.empty()) {
      html += fmt::format("<p class=\"bad\">{} was cut short: {}</p>\n", EscapeHtml(run.label),
                          EscapeHtml(run.report.cut_short));
    }
  }
  return html;
}

}  // namespace

std::string ToHtml(const HtmlPage& page) {
  std::string html = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>";
  html += EscapeHtml(page.title) + "</title><style>" + kStyle + "</style></head><body>\n<h1>";
  html +=
      EscapeHtml(page.title) + "</h1>\n<p>" + EscapeHtml(ToString(page.environment)) + "</p><p>";
  for (const auto& [name, value] : page.settings) {
    if (!value.empty()) html += EscapeHtml(fmt::format("{} {}; ", name, value));
  }
  html += "</p>\n";
  if (!page.notes.empty()) html += "<pre>" + EscapeHtml(page.notes) + "</pre>\n";
  html += RunTable(page) + "<div class=\"plots\">\n" + CurvePlot(page);
  html += CdfPlot(page, "ttft", [](const RequestRecord& record, std::vector<double>& values) {
    if (const auto ttft = TtftUs(record)) values.push_back(*ttft);
  });
  html += CdfPlot(page, "itl", [](const RequestRecord& record, std::vector<double>& values) {
    const std::vector<double> gaps = ItlUs(record);
    values.insert(values.end(), gaps.begin(), gaps.end());
  });
  for (const ReportedRun* run : Drawn(page)) html += TimelinePlot(*run);
  return html + StagePlot(page) + "</div></body></html>\n";
}

}  // namespace baton::loadgen
