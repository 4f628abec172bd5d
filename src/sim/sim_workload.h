// SimWorkload: the requests of a simulation, each drawn from the seed and its number alone, or the
// lengths and times of a recorded trace. Also the model that all simulated workers serve.
#ifndef BATON_SIM_SIM_WORKLOAD_H_
#define BATON_SIM_SIM_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/loadgen/trace_reader.h"
#include "src/router/generate_request.h"
#include "src/router/submit.h"
#include "src/sim/sim_draws.h"

namespace baton::sim {

// One request as its client makes it.
struct SimRequest {
  uint64_t number = 0;
  RequestUid uid;
  router::GenerateRequest request;
  std::vector<std::string> stops;
  int64_t cancel_after_us = -1;  // the client hangs up so long after it asked; -1 = it does not
};

// The served model: kSimVocab tokens that are letters, two halves of an umlaut, and an end.
std::shared_ptr<const router::ModelInfo> SimModelInfo();

// See the file comment.
class SimWorkload {
 public:
  static constexpr uint32_t kMaxPrompt = 256;
  static constexpr uint32_t kMaxOutput = 32;  // if not said otherwise

  // `rate` requests a second, Poisson, with at most `max_output` tokens of answer. With a trace its
  // times instead, and its lengths and shared blocks, scaled so that the longest prompt and answer
  // fit these limits.
  SimWorkload(uint64_t seed, double rate, const std::vector<loadgen::TraceRow>* trace,
              uint32_t max_output = kMaxOutput);

  // Requests also have what few clients ask for: priorities, progress, biases, min_p.
  void set_has_rare_fields(bool has) { has_rare_fields_ = has; }

  // Number `number`; the same for the same seed, whatever was made before.
  SimRequest Make(uint64_t number) const;
  // How long after request `number` the next one comes.
  int64_t GapUs(uint64_t number);

 private:
  std::vector<TokenId> MakePrompt(loadgen::RandomDraws& draws, uint64_t number) const;
  std::vector<TokenId> TracePrompt(const loadgen::TraceRow& row) const;
  void DrawSampling(loadgen::RandomDraws& draws, SimRequest* out) const;
  void DrawRareFields(SimRequest* out) const;

  const uint64_t seed_;
  const double rate_;
  const uint32_t max_output_;
  const std::vector<loadgen::TraceRow>* const trace_;
  bool has_rare_fields_ = false;
  double prompt_scale_ = 1;  // of the trace
  double output_scale_ = 1;
  loadgen::RandomDraws arrivals_;
};

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_WORKLOAD_H_
