// ToolMetrics: the counters baton_tool_calls_total{style,result}, one for each way in which a call
// of a model may end. CallTally counts the calls of one choice.
#ifndef BATON_API_TOOL_METRICS_H_
#define BATON_API_TOOL_METRICS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/obs/metrics.h"
#include "src/text/tools/tool_parser.h"
#include "src/text/tools/tool_style.h"

namespace baton::api {

// How one call ended.
enum class CallResult : uint8_t {
  kOk,         // its arguments are a JSON object
  kMalformed,  // its arguments are no JSON object, and the model went on or ended by itself
  kCut,        // the answer ended within it: a length, a stop, an error, or a client that left
};
inline constexpr std::array<std::string_view, 3> kCallResultNames = {"ok", "malformed", "cut"};

// See the file comment. Any thread.
class ToolMetrics {
 public:
  // `registry` outlives this. All series exist from the start, with 0.
  explicit ToolMetrics(obs::MetricsRegistry* registry);

  void Count(text::ToolStyle style, CallResult result) const {
    calls_[static_cast<size_t>(style)][static_cast<size_t>(result)]->Add();
  }

 private:
  // The last style.
  static constexpr size_t kNumStyles = static_cast<size_t>(text::ToolStyle::kGeneric) + 1;

  std::array<std::array<obs::Counter*, kCallResultNames.size()>, kNumStyles> calls_{};  // not kNone
};

// The calls of one choice: each is counted once, when the next one begins or the choice ends. One
// thread.
class CallTally {
 public:
  // `metrics` outlives this; null = nothing is counted. `style` is not kNone.
  CallTally(const ToolMetrics* metrics, text::ToolStyle style) : metrics_(metrics), style_(style) {}
  CallTally(CallTally&&) = delete;
  // A call that is open counts as cut.
  ~CallTally() { End(/*is_cut=*/true); }

  void Add(const text::CallPiece& piece);
  // Ends the choice; `is_cut`: a limit, an error or the client ended it. Returns how the last call
  // ended; kOk without a call.
  CallResult End(bool is_cut);

 private:
  const ToolMetrics* const metrics_;
  const text::ToolStyle style_;
  bool is_open_ = false;
  std::string arguments_;  // of the open call
};

}  // namespace baton::api

#endif  // BATON_API_TOOL_METRICS_H_
