// The choice of the experts that serve a row, as DeepSeek's models and LFM2's make it: among the
// experts of the best groups, by scores of which a learned bias may be a part (DeepSeek-AI,
// "DeepSeek-V2", 2024, and "DeepSeek-V3 technical report", 2024). Pure; any thread.
#ifndef BATON_MODEL_EXPERT_CHOICE_H_
#define BATON_MODEL_EXPERT_CHOICE_H_

#include <cstdint>
#include <span>
#include <string>

namespace baton::model {

// How experts are scored.
enum class ExpertScore : uint8_t {
  kSoftmax = 0,  // over all experts; a group has the score of its best expert (V2)
  kSigmoid = 1,  // of each; plus its bias it chooses; a group has the sum of its best two (V3)
};

// The rule of a model; counts are within limits and divide as they must.
struct ExpertRule {
  ExpertScore score = ExpertScore::kSoftmax;
  uint32_t num_groups = 1;       // divides the number of experts; kSigmoid: groups of at least two
  uint32_t num_groups_used = 1;  // in [1, num_groups]; their experts are enough for a row
  bool sum_to_one = false;       // weights are divided by their sum before they are scaled
  float scale = 1;               // of every weight
  float least_sum = 1e-20f;      // is added to the sum that divides
};

// Most groups of a model. DeepSeek-V3 has 8.
inline constexpr uint32_t kMaxExpertGroups = 64;

// The experts of one row.
struct ExpertChoice {
  std::span<uint32_t> experts;  // [used]: the largest choosing score first
  std::span<float> weights;     // [used]
};

// Chooses by `logits` [experts] and, with kSigmoid, `bias` [experts]. Of equal scores and groups
// the lower is taken. A row that holds a NaN gets different experts too. The order of all sums is
// fixed.
void ChooseExperts(const ExpertRule& rule, std::span<const float> logits,
                   std::span<const float> bias, const ExpertChoice& out);

// "softmax:8:3:0:3f800000": all but least_sum, which the architecture gives. Part of weights_id.
std::string CanonicalText(const ExpertRule& rule);

}  // namespace baton::model

#endif  // BATON_MODEL_EXPERT_CHOICE_H_
