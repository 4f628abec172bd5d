#include "src/cli/plan/measured_steps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <span>
#include <vector>

#include "nlohmann/json.hpp"

#include "src/cli/json_fields.h"

namespace baton::cli {

using kv::KvDtype;
using kv::KvDtypeNamed;
using plan::KeyWindow;
using scheduler::StepWeights;

namespace {

using nlohmann::json;

constexpr size_t kNumWeights = 3;  // fixed, a token or row, a key
using Weights = std::array<double, kNumWeights>;
using Matrix = std::array<std::array<double, kNumWeights + 1>, kNumWeights>;
// More is no measurement of ours, and products of counts stay below 2^53.
constexpr uint64_t kMaxCount = 1u << 20;
constexpr double kMinTokensPerS = 1e-6;

// One case: what it did and how long that took.
struct Case {
  bool is_prompt = false;
  uint64_t num_tokens = 0;  // of each stream
  uint64_t num_streams = 1;
  uint64_t depth = 0;
  Weights amounts = {};  // passes, tokens, keys
  double median_us = 0;
  double fastest_us = 0;
  double slowest_us = 0;
};

// How a result is read.
struct Reading {
  uint64_t chunk = 0;
  KeyWindow window;
};

Weights AmountsOf(const Case& c, const Reading& reading) {
  const double tokens = static_cast<double>(c.num_tokens * c.num_streams);
  const double keys =
      static_cast<double>(c.num_streams) *
      reading.window.RunKeys(static_cast<double>(c.depth), static_cast<double>(c.num_tokens));
  const uint64_t chunk = reading.chunk;
  const uint64_t passes = c.is_prompt ? (c.num_tokens + chunk - 1) / chunk : c.num_tokens;
  return {static_cast<double>(passes), tokens, keys};
}

StatusOr<Case> ReadCase(const json& row, const Reading& reading) {
  Case c;
  const uint64_t prompt = NumberOf(row, "prompt");
  c.is_prompt = prompt > 0;
  c.num_tokens = c.is_prompt ? prompt : NumberOf(row, "generate");
  c.num_streams = NumberOf(row, "streams");
  c.depth = NumberOf(row, "depth");
  std::vector<double> per_s;
  const auto samples = row.find("tokens_per_s");
  if (samples != row.end() && samples->is_array()) {
    for (const json& sample : *samples)
      per_s.push_back(sample.is_number() ? sample.get<double>() : 0);
  }
  const bool is_counted = c.num_tokens > 0 && c.num_streams > 0 &&
                          std::max({c.num_tokens, c.num_streams, c.depth}) <= kMaxCount;
  // A token takes at most 10^6 seconds, so that times stay finite.
  const bool is_timed =
      !per_s.empty() && *std::min_element(per_s.begin(), per_s.end()) >= kMinTokensPerS;
  if (!is_counted || !is_timed) {
    return InvalidArgument("the case \"{}\" has no prompt or generate, streams and tokens_per_s",
                           Printable(TextOf(row, "case")));
  }
  std::sort(per_s.begin(), per_s.end());
  c.amounts = AmountsOf(c, reading);
  c.fastest_us = c.amounts[1] / per_s.back() * 1e6;
  c.median_us = c.amounts[1] / per_s[per_s.size() / 2] * 1e6;
  c.slowest_us = c.amounts[1] / per_s.front() * 1e6;
  return c;
}

// Solves the rows of `support`; false when they do not determine it.
bool Solve(Matrix m, uint32_t support, Weights& out) {
  out = {};
  for (size_t i = 0; i < kNumWeights; ++i) {
    if ((support >> i & 1) != 0) continue;
    m[i] = {};
    for (auto& row : m) row[i] = 0;
    m[i][i] = 1;
  }
  for (size_t i = 0; i < kNumWeights; ++i) {
    // The matrix is symmetric and not negative: a pivot that vanished stays so in any order.
    if (!(m[i][i] > 1e-12)) return false;
    for (size_t row = 0; row < kNumWeights; ++row) {
      const double factor = row == i ? 0 : m[row][i] / m[i][i];
      for (size_t column = 0; column <= kNumWeights; ++column)
        m[row][column] -= factor * m[i][column];
    }
  }
  for (size_t i = 0; i < kNumWeights; ++i) out[i] = m[i][kNumWeights] / m[i][i];
  return true;
}

double Predict(const Weights& weights, const Case& c) {
  double us = 0;
  for (size_t i = 0; i < kNumWeights; ++i) us += weights[i] * c.amounts[i];
  return us;
}

// The weights of smallest squared relative error of the medians, none below zero.
Weights Fit(std::span<const Case> cases) {
  Weights scale = {};  // so that pivots compare
  for (size_t i = 0; i < kNumWeights; ++i) {
    for (const Case& c : cases) scale[i] = std::max(scale[i], c.amounts[i] / c.median_us);
  }
  Matrix normal = {};
  for (const Case& c : cases) {
    for (size_t i = 0; i < kNumWeights; ++i) {
      const double a = c.amounts[i] / c.median_us / scale[i];
      for (size_t j = 0; j < kNumWeights; ++j) {
        normal[i][j] += a * c.amounts[j] / c.median_us / scale[j];
      }
      normal[i][kNumWeights] += a;
    }
  }
  Weights best = {};
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t support = 1; support < 1u << kNumWeights; ++support) {
    Weights weights;
    if (!Solve(normal, support, weights)) continue;
    if (*std::min_element(weights.begin(), weights.end()) < 0) continue;
    for (size_t i = 0; i < kNumWeights; ++i) weights[i] /= scale[i];
    double error = 0;
    for (const Case& c : cases) error += std::pow(Predict(weights, c) / c.median_us - 1, 2);
    if (error < least) best = weights;
    least = std::min(least, error);
  }
  return best;
}

// The fit, and how far the repetitions lie from it.
struct Band {
  Weights weights = {};
  double fastest = 1;  // the smallest of measured over fitted
  double slowest = 1;
  double worst_error = 0;  // of the medians
};

Band FitBand(std::span<const Case> cases) {
  Band band;
  band.weights = Fit(cases);
  for (const Case& c : cases) {
    const double fitted_us = Predict(band.weights, c);
    band.fastest = std::min(band.fastest, c.fastest_us / fitted_us);
    band.slowest = std::max(band.slowest, c.slowest_us / fitted_us);
    band.worst_error = std::max(band.worst_error, std::fabs(fitted_us / c.median_us - 1));
  }
  return band;
}

StepWeights Scaled(const Band& band, double factor, bool is_prompt) {
  const double each_us = factor * band.weights[1];
  return {.fixed_us = factor * band.weights[0],
          .prefill_token_us = is_prompt ? each_us : 0,
          .decode_row_us = is_prompt ? 0 : each_us,
          .key_us = factor * band.weights[2]};
}

// How many values `of` takes.
size_t NumDistinct(std::span<const Case> cases, const std::function<uint64_t(const Case&)>& of) {
  std::set<uint64_t> values;
  for (const Case& c : cases) values.insert(of(c));
  return values.size();
}

Status CheckTellsApart(std::span<const Case> prompts, std::span<const Case> steps) {
  if (NumDistinct(prompts, [](const Case& c) { return c.num_tokens + c.depth; }) >= 2 &&
      NumDistinct(steps, [](const Case& c) { return c.depth; }) >= 2 &&
      NumDistinct(steps, [](const Case& c) { return c.num_streams; }) >= 2) {
    return OkStatus();
  }
  return InvalidArgument(
      "prompts of two lengths and decode steps of two depths and two numbers of streams are "
      "needed: measure with --cases {}",
      kPlanBenchCases);
}

}  // namespace

StatusOr<MeasuredSteps> ReadMeasuredSteps(std::string_view text, const KeyWindow& window) {
  const json page = json::parse(text, nullptr, false);
  const Reading reading = {page.is_object() ? NumberOf(page, "chunk") : 0, window};
  const bool has_chunk = reading.chunk > 0 && reading.chunk <= kMaxCount;
  if (!has_chunk || !page.contains("results") || !page["results"].is_array()) {
    return InvalidArgument("this is no result of `baton bench model --json`");
  }
  std::vector<Case> prompts;
  std::vector<Case> steps;
  for (const json& row : page["results"]) {
    BATON_ASSIGN_OR_RETURN(const Case c, ReadCase(row.is_object() ? row : json::object(), reading));
    (c.is_prompt ? prompts : steps).push_back(c);
  }
  BATON_RETURN_IF_ERROR(CheckTellsApart(prompts, steps));
  MeasuredSteps out;
  out.model_name = TextOf(page, "name");
  out.processor = TextOf(page, "processor");
  if (page.contains("kv_dtype")) {
    const std::string name = TextOf(page, "kv_dtype");
    const std::optional<KvDtype> dtype = KvDtypeNamed(name);
    if (!dtype) return InvalidArgument("kv_dtype '{}' is no type of K and V", Printable(name));
    out.kv_dtype = *dtype;
  }
  out.num_threads = static_cast<uint32_t>(std::min<uint64_t>(NumberOf(page, "threads"), kMaxCount));
  out.weight_bytes = NumberOf(page, "weight_bytes");
  const Band prompt = FitBand(prompts);
  const Band step = FitBand(steps);
  out.fastest = {Scaled(prompt, prompt.fastest, true), Scaled(step, step.fastest, false)};
  out.slowest = {Scaled(prompt, prompt.slowest, true), Scaled(step, step.slowest, false)};
  out.worst_error = std::max(prompt.worst_error, step.worst_error);
  return out;
}

}  // namespace baton::cli
