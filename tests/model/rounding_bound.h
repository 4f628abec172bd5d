// How far a logit may be from the exact one, from the formats that a forward pass rounds to. In
// units of the root mean square logit of a row.
//
// A rounding adds an error that is independent of the others (Higham and Mary, "A New Approach to
// Probabilistic Rounding Error Analysis", 2019), so the errors of n roundings add in squares. An
// error of a query or of a key moves a score, and a score moves the weight of a key: the more the
// scores of a row differ, the more. The bound is six standard deviations of the sum, which one of
// 5e8 normal values exceeds; a test compares some 10,000.
#ifndef BATON_TESTS_MODEL_ROUNDING_BOUND_H_
#define BATON_TESTS_MODEL_ROUNDING_BOUND_H_

#include <cmath>

#include "src/model/architecture.h"
#include "src/model/model_config.h"

namespace baton::model {

// Root mean square of the relative error of one rounding to `bits` significant bits. The error is
// uniform up to half a unit of the last bit, 2^-bits / sqrt(3); a mantissa m of log-uniform values
// divides it: the mean of 1 / m^2 over [1, 2) is 3 / (8 ln 2).
inline double FloatRounding(int bits) {
  return std::ldexp(std::sqrt(0.375 / std::log(2.0) / 3.0), -bits);
}
inline double Fp32Rounding() { return FloatRounding(24); }
inline double Bf16Rounding() { return FloatRounding(8); }
// Activations of quantised products: 16-bit integers, scaled so that the largest of 32 is 32767. A
// step has the error step / sqrt(12); the largest of 32 normal values is 2.3 times their root mean
// square.
inline double Int16Rounding() { return 2.3 / 32767 / std::sqrt(12.0); }

// The kind of model: over many keys the average takes back what scores of a trained model add.
enum class Weights { kRandom, kTrained };

// How much an error grows on its way to a logit. The random models of tests/golden have queries and
// keys of standard deviation 2, and so scores of 2 * 2, or of 1 where each head is normalised. The
// scores of their experts have 8.
inline double ErrorGrowth(const ModelConfig& config, Weights weights) {
  if (weights == Weights::kTrained) return 1;
  const double scores = config.traits->head_norms ? 1 : 4;
  const double experts = config.traits->experts ? 8 : 0;
  return std::sqrt(1 + scores * scores + experts * experts);
}

// The bound after `num_roundings` roundings of this root mean square on the way to a logit.
inline double RoundingBound(double rounding, double num_roundings, double growth) {
  return 6 * rounding * std::sqrt(num_roundings) * growth;
}

// The seven products of a layer in fp32, each a chain of at most hidden_size sums.
inline double Fp32ProductsBound(const ModelConfig& config, Weights weights) {
  return RoundingBound(Fp32Rounding(), 7.0 * config.num_layers * config.hidden_size,
                       ErrorGrowth(config, weights));
}
// The four inputs of a layer's quantised products, and that of the output.
inline double QuantisedBound(const ModelConfig& config, Weights weights) {
  return RoundingBound(Int16Rounding(), 4.0 * config.num_layers + 1, ErrorGrowth(config, weights));
}
// K and V of each layer in bf16: an error of V arrives as it is, and one of K by the scores.
inline double Bf16KvBound(const ModelConfig& config, Weights weights) {
  return RoundingBound(Bf16Rounding(), config.num_layers, ErrorGrowth(config, weights));
}
// A device rounds what each operation gives to bf16. In a layer: two norms, QKV, rope, the
// probabilities, attention, its product, gate and up, their product, down, and two residual sums.
inline double Bf16ActivationsBound(double num_layers, double growth) {
  return RoundingBound(Bf16Rounding(), 12 * num_layers, growth);
}
// Every small model has two layers with scores of 4. The deeper ones normalise heads.
inline double TinyDeviceBound() { return Bf16ActivationsBound(2, std::sqrt(1.0 + 4 * 4)); }

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_ROUNDING_BOUND_H_
