// `baton bench model`: tokens a second of the forward pass alone, in the cases of llama-bench, so
// that the two can be set beside each other: ppN = a prompt of N tokens (the last one's logits),
// tgN at depth D = N tokens one by one, with logits, after a prompt of D; tgNxS = the same of S
// sequences at a time, a row of each in a step. One thread calls.
#ifndef BATON_ENGINE_MODEL_BENCH_H_
#define BATON_ENGINE_MODEL_BENCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"
#include "kvcache/kv_layout.h"
#include "src/base/status.h"

namespace baton::engine {

// As many as a worker decodes at most (SchedulerConfig::max_running).
inline constexpr uint32_t kMaxBenchStreams = 256;

// One measured case.
struct ModelBenchCase {
  uint32_t num_prompt = 0;    // tokens computed as a prompt, or
  uint32_t num_generate = 0;  // tokens computed one by one
  uint32_t depth = 0;         // tokens already in the KV cache, not timed
  uint32_t num_streams = 1;   // sequences, each of so many tokens; > 1 for generated ones only

  // "pp512", "tg64", "tg64@2000", "tg16x8@512".
  std::string Name() const;
};

// The cases that `baton bench model` runs (benchmarks/README.md).
std::vector<ModelBenchCase> DefaultModelBenchCases();

// The settings of a measurement.
struct ModelBenchOptions {
  std::string model_path;
  uint32_t num_threads = 1;
  kernels::Isa isa = kernels::Isa::kAuto;
  kv::KvDtype kv_dtype = kv::KvDtype::kBf16;
  uint32_t max_rows = 512;   // of one forward pass, as llama-bench's -ub
  uint32_t repetitions = 5;  // timed ones, after one that is not; >= 1
  std::vector<ModelBenchCase> cases = DefaultModelBenchCases();
};

// The demand of one token of a case on the machine: a generated token reads weights and KV, a
// prompt's token multiplies.
struct ModelBenchWork {
  std::string_view limit;  // "read" (bytes), "int16" or "fp32" (operations)
  double per_token = 0;    // bytes, or operations of matrices and attention
  double limit_per_s = 0;  // of this machine, measured before the cases; 0 = not known
  // 0 where the limit is not known.
  double Share(double tokens_per_s) const {
    return limit_per_s > 0 ? tokens_per_s * per_token / limit_per_s : 0;
  }
};

// Result of one case.
struct ModelBenchRow {
  ModelBenchCase bench_case;
  ModelBenchWork work;
  std::vector<double> tokens_per_s;  // one for each repetition, in order

  double median() const;
};

// All results and what they were measured on.
struct ModelBenchReport {
  std::string model_path;
  std::string model_name;
  std::string isa;
  std::string processor;
  std::string kv_dtype;  // of stored K and V
  uint32_t num_threads = 0;
  uint32_t chunk = 0;  // prompt tokens of one forward pass
  uint64_t weight_bytes = 0;
  std::vector<ModelBenchRow> rows;

  // A markdown table: case, median, smallest and largest tokens a second, share of the limit.
  std::string ToTable() const;
  // One JSON object with the raw samples.
  std::string ToJson() const;
};

// Loads the model and runs the cases. `progress` (may be empty) gets each row as it is done. Errors
// of loading as Model::Load; InvalidArgument for a case that the model's context does not hold.
StatusOr<ModelBenchReport> RunModelBench(const ModelBenchOptions& options,
                                         const std::function<void(const ModelBenchRow&)>& progress);

}  // namespace baton::engine

#endif  // BATON_ENGINE_MODEL_BENCH_H_
