#include <vector>

#include "src/base/status.h"
#include "src/model/sampler.h"
#include "src/wire/sampling_params.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/test_seed.h"

namespace baton::kernels::gpu_check {

using namespace model;  // NOLINT(google-build-using-namespace)
using wire::SamplingParams;

namespace {

// Rows of one vocabulary, each chosen in another way.
struct SampleBatch {
  explicit SampleBatch(uint32_t vocab) : vocab_size(vocab) {
    params.resize(6);
    params[0].temperature = 0;
    params[2].top_k = 40;
    params[3].top_p = 0.95f;
    params[4].min_p = 0.05f;
    params[5].top_k = 1000;
    params[5].top_p = 0.5f;
    TestRandom random(31);
    for (SamplingParams& p : params) {
      p.seed = random.Next();
      rows.push_back(RowSamplingOf({.params = &p, .state = &state}));
      for (uint32_t i = 0; i < vocab; ++i) {
        logits.push_back(static_cast<float>(random.Below(1u << 16)) / 4096.0f);
      }
    }
  }

  uint32_t vocab_size;
  std::vector<SamplingParams> params;
  SamplerState state{{}, {}, 0};
  std::vector<RowSampling> rows;
  std::vector<float> logits;  // [rows][vocab_size], with ties
};

absl::Status CheckBatch(const DeviceBody& body, const SampleBatch& batch) {
  DeviceArray<float> logits(body, batch.logits);
  DeviceArray<RowSampling> rows(body, batch.rows);
  DeviceArray<uint32_t> tokens(body, batch.rows.size());
  BATON_RETURN_IF_ERROR(FirstFailure(logits, rows, tokens));
  BATON_RETURN_IF_ERROR(body.kernels().sample({.logits = logits.data(),
                                               .rows = rows.data(),
                                               .tokens = tokens.data(),
                                               .num_rows = static_cast<uint32_t>(batch.rows.size()),
                                               .vocab_size = batch.vocab_size},
                                              nullptr));
  const std::vector<uint32_t> got = tokens.Values();
  BATON_RETURN_IF_ERROR(tokens.status());
  Sampler sampler(batch.vocab_size, {});
  std::vector<uint32_t> wanted;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto row = std::span(batch.logits).subspan(i * batch.vocab_size, batch.vocab_size);
    SampledToken expected;
    BATON_RETURN_IF_ERROR(sampler.Sample(
        {.params = &batch.params[i], .state = &batch.state, .logits = row}, expected));
    wanted.push_back(static_cast<uint32_t>(expected.token));
  }
  return ExpectSameBits("tokens by the processor", got, wanted);
}

}  // namespace

absl::Status CheckSample(const StageInput& input, Report& report) {
  if (!report.Begin("sample")) return absl::OkStatus();
  const SampleBatch batch(input.is_tiny ? 1777 : 128256);
  const absl::Status status =
      OfCase(CheckBatch(input.body, batch), {{"num_rows", batch.rows.size()},
                                             {"vocab_size", batch.vocab_size},
                                             {"inputs", "SampleBatch of sample_checks.cc"}});
  return report.Add(OutcomeOf("sample", status,
                              fmt::format("{} rows of {}", batch.rows.size(), batch.vocab_size)));
}

}  // namespace baton::kernels::gpu_check
