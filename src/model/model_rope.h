// The rotary table of a model's layers, for any device. Pure; private to src/model.
#ifndef BATON_MODEL_MODEL_ROPE_H_
#define BATON_MODEL_MODEL_ROPE_H_

#include <span>

#include "src/base/status.h"
#include "src/model/model_config.h"

namespace baton::model {

// Which of a model's tables.
struct RopeTableKind {
  std::span<const float> factors;  // rope_freqs.weight [rope_dims / 2] or empty
  bool is_second = false;          // of the layers with ModelConfig::HasSecondRope
};

// Fills cos_sin [positions, rope_table_dim / 2, 2] (of the second table second_rope_head_dim()), as
// many positions as it has room for. Elements of a head beyond rope_dims do not turn: cos is 1 and
// sin 0. InvalidArgument when a constant of the file is out of range.
absl::Status FillRopeTable(const ModelConfig& config, const RopeTableKind& kind,
                           std::span<float> cos_sin);

// The error that FillRopeTable would give for any table of the model with `max_position` positions.
// Takes no memory. `factors` as RopeTableKind's.
absl::Status CheckRope(const ModelConfig& config, std::span<const float> factors,
                       uint32_t max_position);

}  // namespace baton::model

#endif  // BATON_MODEL_MODEL_ROPE_H_
