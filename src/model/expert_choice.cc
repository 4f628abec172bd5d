#include "src/model/expert_choice.h"

#include <algorithm>
#include <array>
#include <bit>

#include "fmt/format.h"

#include "kernels/math.h"
#include "src/model/model_config.h"

namespace baton::model {

using kernels::Exp;

namespace {

float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

// One row of scores that choose, [experts].
struct Row {
  const ExpertRule& rule;
  std::span<const float> scores;

  float GroupScore(size_t first, size_t count) const {
    float best = scores[first];
    if (rule.score == ExpertScore::kSoftmax) {
      for (size_t e = first + 1; e < first + count; ++e) best = std::max(best, scores[e]);
      return best;
    }
    float second = scores[first + 1];
    if (second > best) std::swap(best, second);
    for (size_t e = first + 2; e < first + count; ++e) {
      const float score = scores[e];
      if (score > best) {
        second = best;
        best = score;
      } else if (score > second) {
        second = score;
      }
    }
    return best + second;
  }
};

// Marks the best groups of a row.
std::array<bool, kMaxExpertGroups> BestGroups(const Row& row, size_t group_size) {
  std::array<bool, kMaxExpertGroups> taken = {};
  const uint32_t count = row.rule.num_groups;
  if (row.rule.num_groups_used == count) {
    std::fill_n(taken.begin(), count, true);
    return taken;
  }
  std::array<float, kMaxExpertGroups> scores = {};
  for (uint32_t g = 0; g < count; ++g) scores[g] = row.GroupScore(g * group_size, group_size);
  for (uint32_t n = 0; n < row.rule.num_groups_used; ++n) {
    uint32_t best = count;
    for (uint32_t g = 0; g < count; ++g) {
      if (!taken[g] && (best == count || scores[g] > scores[best])) best = g;
    }
    taken[best] = true;
  }
  return taken;
}

void Choose(const Row& row, std::span<uint32_t> experts) {
  const size_t group_size = row.scores.size() / row.rule.num_groups;
  const std::array<bool, kMaxExpertGroups> groups = BestGroups(row, group_size);
  for (size_t n = 0; n < experts.size(); ++n) {
    const std::span<const uint32_t> before = experts.first(n);
    size_t best = row.scores.size();
    float best_score = 0;
    for (size_t e = 0; e < row.scores.size(); ++e) {
      if (!groups[e / group_size]) continue;
      const float score = row.scores[e];
      if (best < row.scores.size() && !(score > best_score)) continue;
      if (std::find(before.begin(), before.end(), e) != before.end()) continue;
      best = e;
      best_score = score;
    }
    experts[n] = static_cast<uint32_t>(best);
  }
}

// The experts' parts of the softmax over all logits.
void WeighBySoftmax(std::span<const float> logits, const ExpertChoice& out) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  float sum = 0.0f;  // >= 1: the largest gives 1
  for (const float logit : logits) sum += Exp(logit - largest);
  for (size_t j = 0; j < out.experts.size(); ++j) {
    out.weights[j] = Exp(logits[out.experts[j]] - largest) / sum;
  }
}

}  // namespace

void ChooseExperts(const ExpertRule& rule, std::span<const float> logits,
                   std::span<const float> bias, const ExpertChoice& out) {
  // A softmax has the order of its logits.
  std::array<float, kMaxExperts> scores;
  const bool is_softmax = rule.score == ExpertScore::kSoftmax;
  if (!is_softmax) {
    for (size_t e = 0; e < logits.size(); ++e) scores[e] = Sigmoid(logits[e]) + bias[e];
  }
  Choose({rule, is_softmax ? logits : std::span<const float>(scores).first(logits.size())},
         out.experts);
  if (is_softmax) {
    WeighBySoftmax(logits, out);
  } else {
    for (size_t j = 0; j < out.experts.size(); ++j) {
      out.weights[j] = Sigmoid(logits[out.experts[j]]);
    }
  }
  float sum = rule.sum_to_one ? rule.least_sum : 1.0f;
  if (rule.sum_to_one) {
    for (const float weight : out.weights) sum += weight;
  }
  for (float& weight : out.weights) weight = weight / sum * rule.scale;
}

std::string CanonicalText(const ExpertRule& rule) {
  return fmt::format("{}:{}:{}:{}:{:08x}",
                     rule.score == ExpertScore::kSoftmax ? "softmax" : "sigmoid", rule.num_groups,
                     rule.num_groups_used, rule.sum_to_one, std::bit_cast<uint32_t>(rule.scale));
}

}  // namespace baton::model
