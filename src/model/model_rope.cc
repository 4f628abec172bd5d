#include "src/model/model_rope.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/rope_table.h"

namespace baton::model {

using kernels::BuildRopeTable;
using kernels::CheckRopeTable;
using kernels::RopeTableParams;

namespace {

// All but the positions. The result looks into `divisors`.
RopeTableParams ParamsOf(const ModelConfig& config, const RopeTableKind& kind,
                         std::vector<double>* divisors) {
  RopeTableParams params;
  params.head_dim = config.rope_dims;
  if (kind.is_second) {  // scaling is for the layers that see far
    if (config.local_head_dim != 0) params.head_dim = config.local_head_dim;
    params.base = config.local_rope_base;
    return params;
  }
  *divisors = RopeDivisors(config.rope_scaling, config.rope_dims, config.rope_base, kind.factors);
  params.base = config.rope_base;
  params.freq_factors = *divisors;
  params.amplitude = RopeAmplitude(config.rope_scaling);
  return params;
}

absl::Status Fill(uint32_t head_dim, const RopeTableParams& params, std::span<float> cos_sin) {
  const size_t half = head_dim / 2;
  const size_t rotating = params.head_dim / 2;
  if (rotating == half) return BuildRopeTable(params, cos_sin);
  std::vector<float> table(params.max_position * rotating * 2);
  BATON_RETURN_IF_ERROR(BuildRopeTable(params, table));
  for (size_t position = 0; position < params.max_position; ++position) {
    float* row = cos_sin.data() + position * half * 2;
    std::copy_n(table.data() + position * rotating * 2, rotating * 2, row);
    for (size_t i = rotating; i < half; ++i) {
      row[2 * i] = 1.0f;
      row[2 * i + 1] = 0.0f;
    }
  }
  return OkStatus();
}

// The table of layers that do not turn, for devices: x * 1 - y * 0 is x. A table costs memory of
// one more; a flag would be a branch in every rope kernel of every device. The processor's kernel
// branches once a row.
void FillUnrotated(std::span<float> cos_sin) {
  for (size_t i = 0; i < cos_sin.size(); i += 2) {
    cos_sin[i] = 1.0f;
    cos_sin[i + 1] = 0.0f;
  }
}

}  // namespace

absl::Status FillRopeTable(const ModelConfig& config, const RopeTableKind& kind,
                           std::span<float> cos_sin) {
  if (!config.traits->rotates || (kind.is_second && !config.layer_is_unrotated.empty())) {
    FillUnrotated(cos_sin);
    return OkStatus();
  }
  std::vector<double> divisors;
  RopeTableParams params = ParamsOf(config, kind, &divisors);
  const uint32_t head_dim =
      kind.is_second ? config.second_rope_head_dim() : config.rope_table_dim();
  params.max_position = static_cast<uint32_t>(cos_sin.size() / head_dim);
  return Fill(head_dim, params, cos_sin);
}

absl::Status CheckRope(const ModelConfig& config, std::span<const float> factors,
                       uint32_t max_position) {
  for (const bool is_second : {false, true}) {
    if (is_second && !config.has_local_rope()) continue;
    std::vector<double> divisors;
    RopeTableParams params = ParamsOf(config, {factors, is_second}, &divisors);
    params.max_position = max_position;
    BATON_RETURN_IF_ERROR(CheckRopeTable(params));
  }
  return OkStatus();
}

}  // namespace baton::model
