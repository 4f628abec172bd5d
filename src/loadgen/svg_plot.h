// Line and bar pictures as SVG text, readable without scripts or fonts from elsewhere. Pure; any
// thread.
#ifndef BATON_LOADGEN_SVG_PLOT_H_
#define BATON_LOADGEN_SVG_PLOT_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::loadgen {

// One line of a plot; points that are not finite (or not positive on a logarithmic axis) are left
// out.
struct PlotLine {
  std::string label;
  std::vector<std::pair<double, double>> points;
};

// The frame of a plot.
struct PlotFrame {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;
  bool dots = false;  // marks each point
};

// An <svg> element with the lines, axes with round numbers, and a legend; with a sentence instead
// of lines when there is no point.
std::string DrawLines(const PlotFrame& frame, const std::vector<PlotLine>& lines);

// One bar of stacked parts.
struct PlotBar {
  std::string label;
  std::vector<double> parts;
};
// Horizontal stacked bars; part i of each is called names[i].
std::string DrawBars(const PlotFrame& frame, const std::vector<std::string>& names,
                     const std::vector<PlotBar>& bars);

// Values for axis marks that cover [low, high]: steps of 1, 2 or 5 times a power of ten, or on a
// logarithmic axis such values themselves.
std::vector<double> RoundMarks(double low, double high, bool logarithmic);

// `text` without markup.
std::string EscapeHtml(std::string_view text);

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_SVG_PLOT_H_
