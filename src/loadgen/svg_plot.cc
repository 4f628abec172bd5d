#include "src/loadgen/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "fmt/format.h"

namespace baton::loadgen {
namespace {

constexpr double kWidth = 640, kHeight = 340;
constexpr double kLeft = 64, kRight = 16, kTop = 34, kBottom = 46;
constexpr size_t kMaxMarks = 9;

// Colours that can be told apart by most eyes (Okabe and Ito, 2008).
std::string_view Colour(size_t i) {
  static constexpr std::string_view kColours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                  "#E69F00", "#56B4E9", "#7F7F7F", "#000000"};
  return kColours[i % std::size(kColours)];
}

// Values to pixels along one axis.
struct Axis {
  double low = 0, high = 1;
  double from = 0, to = 1;  // pixels
  bool logarithmic = false;

  double At(double value) const {
    const auto flat = [this](double v) { return logarithmic ? std::log10(v) : v; };
    return from + (to - from) * (flat(value) - flat(low)) / (flat(high) - flat(low));
  }
};

bool Drawable(const std::pair<double, double>& point, bool log_x) {
  return std::isfinite(point.first) && std::isfinite(point.second) && (!log_x || point.first > 0);
}

// The smallest and largest of one coordinate; {inf, -inf} of no point.
template <typename Pick>
std::pair<double, double> Extent(const std::vector<PlotLine>& lines, bool log_x, const Pick& pick) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const PlotLine& line : lines) {
    for (const auto& point : line.points) {
      if (!Drawable(point, log_x)) continue;
      low = std::min(low, pick(point));
      high = std::max(high, pick(point));
    }
  }
  return {low, high};
}

Axis MakeAxis(std::pair<double, double> extent, bool logarithmic) {
  Axis axis;
  axis.logarithmic = logarithmic;
  if (logarithmic) {
    const auto marks = RoundMarks(extent.first, extent.second, true);
    axis.low = std::min(extent.first, marks.front());
    axis.high = std::max({extent.second, marks.back(), axis.low * 1.01});
  } else {
    axis.low = std::min(0.0, extent.first);
    axis.high =
        extent.second > axis.low ? axis.low + (extent.second - axis.low) * 1.05 : axis.low + 1.0;
  }
  return axis;
}

std::string Text(double x, double y, std::string_view anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     EscapeHtml(text));
}

std::string Open(const PlotFrame& frame, double height) {
  return fmt::format(
             "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\" "
             "xmlns=\"http://www.w3.org/2000/svg\">\n",
             kWidth, height, EscapeHtml(frame.title)) +
         fmt::format("<text class=\"title\" x=\"{:.0f}\" y=\"18\">{}</text>\n", kLeft,
                     EscapeHtml(frame.title));
}

std::string DrawAxes(const PlotFrame& frame, const Axis& x, const Axis& y) {
  std::string svg;
  for (const double mark : RoundMarks(x.low, x.high, x.logarithmic)) {
    if (mark < x.low || mark > x.high) continue;
    const double at = x.At(mark);
    svg += fmt::format("<path class=\"grid\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/>\n", at, y.to, y.from);
    svg += Text(at, y.from + 16, "middle", fmt::format("{:g}", mark));
  }
  for (const double mark : RoundMarks(y.low, y.high, false)) {
    if (mark < y.low || mark > y.high) continue;
    const double at = y.At(mark);
    svg += fmt::format("<path class=\"grid\" d=\"M{0:.1f} {2:.1f}H{1:.1f}\"/>\n", x.from, x.to, at);
    svg += Text(x.from - 6, at + 4, "end", fmt::format("{:g}", mark));
  }
  svg += Text((x.from + x.to) / 2, y.from + 36, "middle", frame.x_label);
  svg += fmt::format(
      "<text x=\"14\" y=\"{0:.0f}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {0:.0f})\">{1}"
      "</text>\n",
      (y.from + y.to) / 2, EscapeHtml(frame.y_label));
  return svg;
}

std::string DrawLine(const PlotFrame& frame, const PlotLine& line, std::pair<Axis, Axis> axes,
                     std::string_view colour) {
  std::string path, dots;
  bool pen_down = false;
  for (const auto& point : line.points) {
    // Where there is no value the line has a gap.
    if (!Drawable(point, frame.log_x)) {
      pen_down = false;
      continue;
    }
    const double x = axes.first.At(point.first), y = axes.second.At(point.second);
    // A line of no length is a dot: what stands between two gaps can be seen.
    if (!pen_down) path += fmt::format("M{:.1f} {:.1f}", x, y);
    path += fmt::format("L{:.1f} {:.1f}", x, y);
    pen_down = true;
    if (frame.dots) {
      dots +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x, y, colour);
    }
  }
  return fmt::format("<path class=\"line\" stroke=\"{}\" d=\"{}\"/>\n", colour, path) + dots;
}

std::string Legend(const std::vector<std::string>& labels, double y) {
  std::string svg;
  double x = kLeft;
  for (size_t i = 0; i < labels.size(); ++i) {
    // Six and a half pixels a character at this size, and the mark.
    const double width = 26.0 + 6.5 * static_cast<double>(labels[i].size());
    if (x + width > kWidth && x > kLeft) {
      x = kLeft;
      y += 16;
    }
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n",
                       x, y - 9, Colour(i));
    svg += Text(x + 14, y, "start", labels[i]);
    x += width;
  }
  return svg;
}

double LegendHeight(const std::vector<std::string>& labels) {
  double characters = 0;
  for (const std::string& label : labels) characters += 4.0 + static_cast<double>(label.size());
  return 16.0 * std::ceil(1.0 + characters * 6.5 / (kWidth - kLeft - 80));
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<double> RoundMarks(double low, double high, bool logarithmic) {
  std::vector<double> marks;
  if (logarithmic) {
    for (double decade = std::pow(10.0, std::floor(std::log10(low))); decade <= high;
         decade *= 10.0) {
      for (const double step : {1.0, 2.0, 5.0}) {
        if (decade * step >= low / 2.0 && decade * step <= high * 2.0) {
          marks.push_back(decade * step);
        }
      }
    }
    return marks;
  }
  double step = std::pow(10.0, std::floor(std::log10(std::max(high - low, 1e-9)))) / 10.0;
  // 1, 2, 5, 10, ... until few enough fit.
  for (size_t i = 0; (high - low) / step > static_cast<double>(kMaxMarks); ++i) {
    step *= i % 3 == 1 ? 2.5 : 2.0;
  }
  for (double mark = std::ceil(low / step) * step; mark <= high + step * 1e-6; mark += step) {
    marks.push_back(std::abs(mark) < step * 1e-6 ? 0.0 : mark);
  }
  return marks;
}

std::string DrawLines(const PlotFrame& frame, const std::vector<PlotLine>& lines) {
  const auto x_extent = Extent(lines, frame.log_x, [](const auto& p) { return p.first; });
  const auto y_extent = Extent(lines, frame.log_x, [](const auto& p) { return p.second; });
  std::vector<std::string> labels;
  for (const PlotLine& line : lines) labels.push_back(line.label);
  if (x_extent.first > x_extent.second) {
    return Open(frame, 60) + Text(kLeft, 44, "start", "no samples") + "</svg>\n";
  }
  Axis x = MakeAxis(x_extent, frame.log_x), y = MakeAxis(y_extent, false);
  x.from = kLeft;
  x.to = kWidth - kRight;
  y.from = kHeight - kBottom;
  y.to = kTop;
  std::string svg = Open(frame, kHeight + LegendHeight(labels)) + DrawAxes(frame, x, y);
  for (size_t i = 0; i < lines.size(); ++i) svg += DrawLine(frame, lines[i], {x, y}, Colour(i));
  return svg + Legend(labels, kHeight + 12) + "</svg>\n";
}

std::string DrawBars(const PlotFrame& frame, const std::vector<std::string>& names,
                     const std::vector<PlotBar>& bars) {
  double longest = 0;
  for (const PlotBar& bar : bars) {
    longest = std::max(longest, std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0));
  }
  if (longest <= 0) {
    return Open(frame, 60) + Text(kLeft, 44, "start", "the server gave no stage times") +
           "</svg>\n";
  }
  const double bottom = kTop + 28.0 * static_cast<double>(bars.size());
  Axis x = MakeAxis({0.0, longest}, false);
  x.from = kLeft + 60;
  x.to = kWidth - kRight;
  std::string svg = Open(frame, bottom + 46 + LegendHeight(names));
  for (const double mark : RoundMarks(x.low, x.high, false)) {
    const double at = x.At(mark);
    svg += fmt::format("<path class=\"grid\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/>\n", at, kTop, bottom);
    svg += Text(at, bottom + 16, "middle", fmt::format("{:g}", mark));
  }
  svg += Text((x.from + x.to) / 2, bottom + 34, "middle", frame.x_label);
  for (size_t b = 0; b < bars.size(); ++b) {
    const double top = kTop + 28.0 * static_cast<double>(b) + 4;
    svg += Text(x.from - 6, top + 14, "end", bars[b].label);
    double sum = 0;
    for (size_t i = 0; i < bars[b].parts.size(); ++i) {
      const double from = x.At(sum), to = x.At(sum + bars[b].parts[i]);
      sum += bars[b].parts[i];
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"20\" fill=\"{}\"><title>{}: "
          "{:.2f}</title></rect>\n",
          from, top, to - from, Colour(i), EscapeHtml(names[i]), bars[b].parts[i]);
    }
  }
  return svg + Legend(names, bottom + 56) + "</svg>\n";
}

}  // namespace baton::loadgen
