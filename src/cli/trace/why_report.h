// The report of `baton why` on one request: what it waited for, and beside which load. Pure; any
// thread.
#ifndef BATON_CLI_TRACE_WHY_REPORT_H_
#define BATON_CLI_TRACE_WHY_REPORT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "src/cli/trace/trace_page.h"

namespace baton::cli {

// The steps of a worker while the request was decoded, as far as the worker remembers them.
struct StepsMeanwhile {
  size_t num_steps = 0;
  double mean_ms = 0;
  double mean_rows = 0;        // streams in a step
  size_t num_mixed = 0;        // steps that also computed parts of prompts
  uint64_t prompt_tokens = 0;  // of those parts
};

// Zeros when none of the decode worker's steps falls into the stages first_step and decode.
StepsMeanwhile StepsBeside(const TracedRequest& request, const std::vector<TracePage>& pages);

// The stage that took longest; the first of equals. An empty name when there are no stages.
StageSpan LongestStage(const TracedRequest& request);

// Sentences and a table of stages in milliseconds and shares; no table for a request that was
// refused at once. Lines end with a newline; no byte in it steers a terminal.
std::string WhyText(const TracedRequest& request, const StepsMeanwhile& steps);

// {"request_uid", .., "end_to_end_ms", "stages": [{"name", "ms", "share", "means"}], "longest",
// "queue_ms", "placed", "route", "route_means", "load", "resumes", "steps"}; ends with a newline.
std::string WhyJson(const TracedRequest& request, const StepsMeanwhile& steps);

}  // namespace baton::cli

#endif  // BATON_CLI_TRACE_WHY_REPORT_H_
