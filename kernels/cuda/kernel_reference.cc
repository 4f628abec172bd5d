#include "kernels/cuda/kernel_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/math.h"

namespace baton::kernels::cuda {
namespace {

double Value(Bf16 x) { return FloatFromBf16(x.bits); }

}  // namespace

// e^x in double by halving the argument until a Taylor series of 20 terms is exact to 1e-16. The
// kernels' own exp would be the judge of itself.
double ExpInDouble(double x) {
  if (x != x) return x;
  if (x > 709.0) return std::numeric_limits<double>::infinity();
  if (x < -745.0) return 0.0;
  int halvings = 0;
  while (std::fabs(x) > 0.5) {
    x /= 2;
    ++halvings;
  }
  double term = 1.0;
  double sum = 1.0;
  for (int i = 1; i <= 20; ++i) {
    term *= x / i;
    sum += term;
  }
  for (int i = 0; i < halvings; ++i) sum *= sum;
  return sum;
}

namespace {

// 1 / sqrt(mean of the squares of row [dim] + eps).
double InverseRms(const Bf16* row, const RmsNormParams& params) {
  double squares = 0;
  for (size_t i = 0; i < params.dim; ++i) squares += Value(row[i]) * Value(row[i]);
  return 1.0 / std::sqrt(squares / params.dim + params.eps);
}

// t of kernel_table.h.
double GeluExponent(double gate) {
  return (gate * gate * 0.044715 + 1.0) * gate * 2.0 * std::sqrt(2.0 / std::acos(-1.0));
}

double Gated(double gate, double t, double up) { return gate / (1.0 + ExpInDouble(-t)) * up; }

}  // namespace

SummedRows ReferenceResidual(const RmsNormParams& params) {
  SummedRows out;
  for (size_t row = 0; row < params.num_rows; ++row) {
    const Bf16* const x = params.x + row * params.dim;
    const double scale = params.x_weight == nullptr ? 1.0 : InverseRms(x, params);
    for (size_t i = 0; i < params.dim; ++i) {
      const double weight = params.x_weight == nullptr ? 1.0 : Value(params.x_weight[i]);
      const double added = Value(x[i]) * scale * weight;
      out.values.push_back(Value(params.residual[row * params.dim + i]) + added);
      out.magnitudes.push_back(std::fabs(added));
    }
  }
  return out;
}

std::vector<double> ReferenceRmsNorm(const RmsNormParams& params) {
  std::vector<double> out(size_t{params.num_rows} * params.dim);
  for (size_t row = 0; row < params.num_rows; ++row) {
    const Bf16* const residual = params.residual + row * params.dim;
    const double scale = InverseRms(residual, params);
    for (size_t i = 0; i < params.dim; ++i) {
      out[row * params.dim + i] = Value(residual[i]) * scale * Value(params.weight[i]);
    }
  }
  return out;
}

std::vector<double> ReferenceSiluMul(const GateMulParams& params) {
  std::vector<double> out(size_t{params.num_rows} * params.dim);
  for (size_t at = 0; at < out.size(); ++at) {
    const Bf16* gate = params.gate_up + (at + at / params.dim * params.dim);
    out[at] = Gated(Value(*gate), Value(*gate), Value(gate[params.dim]));
  }
  return out;
}

std::vector<double> ReferenceGeluMul(const GateMulParams& params) {
  std::vector<double> out(size_t{params.num_rows} * params.dim);
  for (size_t at = 0; at < out.size(); ++at) {
    const Bf16* gate = params.gate_up + (at + at / params.dim * params.dim);
    out[at] = Gated(Value(*gate), GeluExponent(Value(*gate)), Value(gate[params.dim]));
  }
  return out;
}

Tolerance GeluMulTolerance(Bf16 gate, Bf16 up) {
  constexpr double kLargestExponent = 90;  // beyond, e^t is 0 or infinite
  const double t = std::min(std::fabs(GeluExponent(Value(gate))), kLargestExponent);
  return {5e-6 + 2e-7 * t, 2.7e-37 * std::fabs(Value(up))};
}

void ReferenceEmbed(const EmbedParams& params) {
  for (size_t row = 0; row < params.num_rows; ++row) {
    const bool is_fed = params.fed != nullptr && (params.ids[row] & kFedId) != 0;
    const uint32_t id = is_fed ? params.fed[params.ids[row] & ~kFedId] : params.ids[row];
    for (size_t i = 0; i < params.dim; ++i) {
      const bool is_known = id < params.num_ids;
      const Bf16 from = is_known ? params.table[size_t{id} * params.dim + i] : Bf16{0};
      const float scaled = FloatFromBf16(from.bits) * (is_known ? params.scale : 1.0f);
      params.out[row * params.dim + i].bits = Bf16FromFloat(scaled);
    }
  }
}

namespace {

// The bias of output `column`, 0 without one.
double BiasOf(const GemmParams& params, size_t column) {
  if (params.bias_float != nullptr) return params.bias_float[column];
  return params.bias_bf16 != nullptr ? Value(params.bias_bf16[column]) : 0.0;
}

// One segment of an output, x and as much of w in steps of the tensor cores, from zero.
float SegmentSum(simt::TensorCore core, std::span<const Bf16> x, const Bf16* w) {
  constexpr size_t kStep = simt::kTensorCoreProducts;
  float sum = 0.0f;
  for (size_t k = 0; k < x.size(); k += kStep) {
    Bf16 x_step[kStep] = {};
    Bf16 w_step[kStep] = {};
    const size_t count = std::min(kStep, x.size() - k);
    std::memcpy(x_step, &x[k], count * sizeof(Bf16));
    std::memcpy(w_step, w + k, count * sizeof(Bf16));
    sum = simt::DotBf16(core, x_step, w_step, sum);
  }
  return sum;
}

}  // namespace

void ReferenceGemmBits(const GemmParams& params, simt::TensorCore core) {
  const GemmSplit split = GemmSegments(params.n, params.k);
  for (size_t at = 0; at < size_t{params.m} * params.n; ++at) {
    const size_t column = at % params.n;
    const Bf16* x = params.x + at / params.n * params.k;
    const Bf16* w = params.w + column * params.k;
    float total = 0.0f;
    for (size_t begin = 0; begin < params.k; begin += split.segment_k) {
      const size_t count = std::min<size_t>(split.segment_k, params.k - begin);
      total += SegmentSum(core, {x + begin, count}, w + begin);
    }
    if (params.bias_float != nullptr || params.bias_bf16 != nullptr) {
      total += static_cast<float>(BiasOf(params, column));
    }
    if (params.y_float != nullptr) {
      params.y_float[at] = total;
    } else {
      params.y_bf16[at].bits = Bf16FromFloat(total);
    }
  }
}

std::vector<double> ReferenceGemm(const GemmParams& params) {
  std::vector<double> y(size_t{params.m} * params.n);
  for (size_t row = 0; row < params.m; ++row) {
    for (size_t column = 0; column < params.n; ++column) {
      double sum = 0;
      for (size_t k = 0; k < params.k; ++k) {
        sum += Value(params.x[row * params.k + k]) * Value(params.w[column * params.k + k]);
      }
      y[row * params.n + column] = sum + BiasOf(params, column);
    }
  }
  return y;
}

bool IsRoundingOf(Bf16 got, double exact, const Tolerance& tolerance) {
  const double slack = std::fabs(exact) * tolerance.relative + tolerance.absolute;
  const float low = FloatFromBf16(Bf16FromFloat(static_cast<float>(exact - slack)));
  const float high = FloatFromBf16(Bf16FromFloat(static_cast<float>(exact + slack)));
  const float value = FloatFromBf16(got.bits);
  return value >= low && value <= high;
}

double RelativeError(const float* got, const std::vector<double>& exact) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double difference = got[i] - exact[i];
    if (difference != difference) return std::numeric_limits<double>::infinity();
    error += difference * difference;
    norm += exact[i] * exact[i];
  }
  if (norm == 0) return error == 0 ? 0 : std::numeric_limits<double>::infinity();
  return std::sqrt(error / norm);
}

}  // namespace baton::kernels::cuda
