// Step times for a plan, from what `baton bench model --json` measured. Pure; any thread.
//
// Each case is an equation: its time is the number of its passes times a fixed time, its tokens
// times a time a token, and its keys times a time a key. Prompts and decode steps are fitted apart,
// by least squares of the relative errors of the medians with no weight below zero (all supports of
// three weights are tried; Lawson and Hanson, "Solving Least Squares Problems", 1974, state the
// problem). Two multiples of the fit then hold every repetition of every case between them, so that
// the band has what the machine's load did and what the fit cannot say.
#ifndef BATON_CLI_PLAN_MEASURED_STEPS_H_
#define BATON_CLI_PLAN_MEASURED_STEPS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "kvcache/kv_layout.h"
#include "src/base/status.h"
#include "src/plan/step_model.h"

namespace baton::cli {

// The value of bench's --cases that gives all a plan needs. The shortest prompt tells what a pass
// costs whatever its tokens.
inline constexpr std::string_view kPlanBenchCases =
    "pp16,pp128,pp512,pp1500,tg16,tg16@1000,tg16x4@250,tg8x16@250";

// The content of a result file.
struct MeasuredSteps {
  std::string model_name;  // general.name of the model
  std::string processor;
  kv::KvDtype kv_dtype = kv::KvDtype::kBf16;  // also of results that do not say it
  uint32_t num_threads = 0;
  uint64_t weight_bytes = 0;
  plan::MeasuredWeights fastest;  // no repetition was below these times
  plan::MeasuredWeights slowest;  // none above, and no weight is smaller than in `fastest`
  double worst_error = 0;  // largest relative error of a case's median and the fit of medians
};

// InvalidArgument for text that is no such result, and for one whose cases do not tell the weights
// apart: prompts of two lengths, decode steps at two depths and of two numbers of streams are
// needed. `window`: of the model's attention; a key of the weights is one that it charges.
StatusOr<MeasuredSteps> ReadMeasuredSteps(std::string_view text,
                                          const plan::KeyWindow& window = {});

}  // namespace baton::cli

#endif  // BATON_CLI_PLAN_MEASURED_STEPS_H_
