#include "kernels/cuda/kernel_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/math.h"
#include "kernels/simt/tensor_core.h"

namespace baton::cuda {
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

std::vector<double> ReferenceRmsNorm(const RmsNormParams& params) {
  std::vector<double> out(size_t{params.num_rows} * params.dim);
  for (size_t row = 0; row < params.num_rows; ++row) {
    Bf16* const residual = params.residual + row * params.dim;
    double squares = 0;
    for (size_t i = 0; i < params.dim; ++i) {
      const float sum =
          FloatFromBf16(residual[i].bits) + FloatFromBf16(params.x[row * params.dim + i].bits);
      residual[i].bits = Bf16FromFloat(sum);
      squares += Value(residual[i]) * Value(residual[i]);
    }
    const double scale = 1.0 / std::sqrt(squares / params.dim + params.eps);
    for (size_t i = 0; i < params.dim; ++i) {
      out[row * params.dim + i] = Value(residual[i]) * scale * Value(params.weight[i]);
    }
  }
  return out;
}

std::vector<double> ReferenceSiluMul(const SiluMulParams& params) {
  std::vector<double> out(size_t{params.num_rows} * params.dim);
  for (size_t row = 0; row < params.num_rows; ++row) {
    const Bf16* gate = params.gate_up + row * 2 * params.dim;
    for (size_t i = 0; i < params.dim; ++i) {
      const double g = Value(gate[i]);
      out[row * params.dim + i] = g / (1.0 + ExpInDouble(-g)) * Value(gate[params.dim + i]);
    }
  }
  return out;
}

void ReferenceEmbed(const EmbedParams& params) {
  for (size_t row = 0; row < params.num_rows; ++row) {
    const uint32_t id = params.ids[row];
    for (size_t i = 0; i < params.dim; ++i) {
      params.out[row * params.dim + i] =
          id < params.num_ids ? params.table[size_t{id} * params.dim + i] : Bf16{0};
    }
  }
}

namespace {

// The bias of output `column`, 0 without one.
double BiasOf(const GemmParams& params, size_t column) {
  if (params.bias_float != nullptr) return params.bias_float[column];
  return params.bias_bf16 != nullptr ? Value(params.bias_bf16[column]) : 0.0;
}

// One segment of an output: [begin, end) of K in steps of the tensor cores, from zero.
float SegmentSum(const Bf16* x, const Bf16* w, size_t begin, size_t end) {
  constexpr size_t kStep = simt::kTensorCoreProducts;
  float sum = 0.0f;
  for (size_t k = begin; k < end; k += kStep) {
    Bf16 x_step[kStep] = {};
    Bf16 w_step[kStep] = {};
    const size_t count = std::min(kStep, end - k);
    std::memcpy(x_step, x + k, count * sizeof(Bf16));
    std::memcpy(w_step, w + k, count * sizeof(Bf16));
    sum = simt::HopperDotBf16(x_step, w_step, sum);
  }
  return sum;
}

}  // namespace

void ReferenceGemmBits(const GemmParams& params) {
  const GemmSplit split = GemmSegments(params.n, params.k);
  for (size_t at = 0; at < size_t{params.m} * params.n; ++at) {
    const size_t column = at % params.n;
    const Bf16* x = params.x + at / params.n * params.k;
    const Bf16* w = params.w + column * params.k;
    float total = 0.0f;
    for (size_t begin = 0; begin < params.k; begin += split.segment_k) {
      total += SegmentSum(x, w, begin, std::min<size_t>(begin + split.segment_k, params.k));
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

}  // namespace baton::cuda
