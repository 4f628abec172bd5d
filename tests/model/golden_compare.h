// Logits of a model against those of tests/golden.
#ifndef BATON_TESTS_MODEL_GOLDEN_COMPARE_H_
#define BATON_TESTS_MODEL_GOLDEN_COMPARE_H_

#include <algorithm>
#include <cmath>
#include <span>

#include "gtest/gtest.h"

#include "tests/model/golden_file.h"
#include "tests/model/model_fixture.h"

namespace baton::model {

// Largest errors found, in units of each row's root mean square logit.
struct Accuracy {
  double worst = 0;  // over the sampled ids and the largest logit
  double mean = 0;   // root mean square over the same
  int num_rows = 0;
  int num_decided = 0;  // rows whose margin exceeds twice the bound
  int num_wrong = 0;    // of those, with another argmax
};

inline void CompareRow(const GoldenFile& golden, const GoldenRow& row,
                       std::span<const float> logits, double bound, Accuracy& out) {
  const auto add = [&](float got, float wanted) {
    const double error = std::fabs(double{got} - double{wanted}) / row.rms;
    out.worst = std::max(out.worst, error);
    out.mean += error * error / static_cast<double>(golden.ids.size() + 1);
  };
  for (size_t i = 0; i < golden.ids.size(); ++i) {
    add(logits[static_cast<size_t>(golden.ids[i])], row.logits[i]);
  }
  add(logits[static_cast<size_t>(row.argmax)], row.largest);
  ++out.num_rows;
  if (row.margin <= 2 * bound * row.rms) return;
  ++out.num_decided;
  const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
  out.num_wrong += best != row.argmax;
}

// Compares the first `num_prompts` prompts, each in chunks of 64 tokens.
inline Accuracy Compare(ModelFixture& fixture, const GoldenFile& golden, double bound,
                        size_t num_prompts = SIZE_MAX) {
  Accuracy out;
  constexpr size_t kChunk = 64;  // so that the logits of all rows stay small
  for (uint32_t p = 0; p < std::min(num_prompts, golden.prompts.size()); ++p) {
    const GoldenPrompt& prompt = golden.prompts[p];
    const std::span<const TokenId> tokens(prompt.tokens);
    for (size_t begin = 0; begin < tokens.size(); begin += kChunk) {
      const size_t size = std::min(kChunk, tokens.size() - begin);
      const auto logits =
          fixture.Run({{p, static_cast<uint32_t>(begin), tokens.subspan(begin, size)}}, true);
      EXPECT_TRUE(logits.ok()) << logits.status();
      if (!logits.ok()) return out;
      for (const GoldenRow& row : prompt.rows) {
        if (row.row < begin || row.row >= begin + size) continue;
        const auto mine =
            std::span(*logits).subspan((row.row - begin) * golden.vocab, golden.vocab);
        CompareRow(golden, row, mine, bound, out);
      }
    }
  }
  out.mean = std::sqrt(out.mean / out.num_rows);
  return out;
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_GOLDEN_COMPARE_H_
