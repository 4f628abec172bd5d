#include "src/api/tool_metrics.h"

#include "src/text/tools/json_bytes.h"

namespace baton::api {

using text::CallPiece;
using text::ToolStyle;

ToolMetrics::ToolMetrics(obs::MetricsRegistry* registry) {
  for (size_t style = 1; style < kNumStyles; ++style) {
    for (size_t result = 0; result < kCallResultNames.size(); ++result) {
      calls_[style][result] = registry->AddCounter(
          {"baton_tool_calls_total", "Calls of tools that models wrote into their answers."},
          {{"style", std::string(ToolStyleName(static_cast<ToolStyle>(style)))},
           {"result", std::string(kCallResultNames[result])}});
    }
  }
}

void CallTally::Add(const CallPiece& piece) {
  if (!piece.name.empty()) {
    End(/*is_cut=*/false);
    is_open_ = true;
  }
  arguments_ += piece.arguments;
}

CallResult CallTally::End(bool is_cut) {
  if (!is_open_) return CallResult::kOk;
  is_open_ = false;
  CallResult result = is_cut ? CallResult::kCut : CallResult::kMalformed;
  if (text::TypeOfJson(arguments_) == text::kJsonObject) result = CallResult::kOk;
  if (metrics_ != nullptr) metrics_->Count(style_, result);
  arguments_.clear();
  return result;
}

}  // namespace baton::api
