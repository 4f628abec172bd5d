// A product for GemmBf16 on the runner: its operands, its answers by the model, and whether the
// kernel gives their bits.
#ifndef BATON_TESTS_KERNELS_SIMT_GEMM_CASE_H_
#define BATON_TESTS_KERNELS_SIMT_GEMM_CASE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fmt/format.h"

#include "kernels/cuda/gemm_segments.h"
#include "kernels/cuda/kernel_reference.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/math.h"
#include "kernels/simt/arena.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/other_gpus.h"

namespace baton::kernels::cuda {

using simt::SimBuffer;
using simt_test::OnDevice;
using simt_test::RandomBf16;
using simt_test::SameBits;

inline constexpr double kGemm = 1e-4;  // relative, in the Euclidean norm, against double
inline constexpr double kGemmBf16 =
    4e-3;  // with the rounding of a bf16 output: 2^-9 of each element

// The kind of the bias.
enum class Bias { kNone, kFloat, kBf16 };

// One product: its shape, path and operands' kinds, and how large its terms are.
struct GemmCase {
  uint32_t m;
  uint32_t n;
  uint32_t k;
  GemmPath path = GemmPath::kAuto;
  Bias bias = Bias::kNone;
  bool to_bf16 = false;
  float scale = 1.0f;
  uint32_t num_sms = kHopperSms;
};

inline std::string Name(const GemmCase& c) {
  return fmt::format("{} x {} x {} path {} bias {} bf16 {}", c.m, c.n, c.k,
                     static_cast<int>(c.path), static_cast<int>(c.bias), c.to_bf16);
}

// The operands of products of up to m rows, on the host and on the runner.
class Operands {
 public:
  explicit Operands(const GemmCase& c)
      : case_(c),
        x_(RandomBf16(size_t{c.m} * c.k, 6, c.scale)),
        w_(RandomBf16(size_t{c.n} * c.k, 7)),
        bias_(RandomBf16(c.n, 8)),
        bias_float_(c.n),
        x_buffer_(OnDevice(x_, "x")),
        w_buffer_(OnDevice(w_, "w")),
        bias_buffer_(OnDevice(bias_, "bias")),
        counters_(OnDevice(std::vector<uint32_t>(kGemmCounters), "counters")) {
    for (uint32_t i = 0; i < c.n; ++i) bias_float_[i] = FloatFromBf16(bias_[i].bits) * 1.0009765f;
    bias_float_buffer_ = std::make_unique<SimBuffer>(OnDevice(bias_float_, "bias"));
  }

  size_t y_bytes(uint32_t m) const {
    return size_t{m} * case_.n * (case_.to_bf16 ? sizeof(Bf16) : sizeof(float));
  }

  // The rows [first, first + m) by the kernel into y; "" or what went wrong.
  std::string Run(uint32_t first, uint32_t m, GemmPath path, SimBuffer& y) {
    GemmParams params = Params(m, x_buffer_.as<Bf16>() + size_t{first} * case_.k, y.data());
    params.w = w_buffer_.as<Bf16>();
    if (case_.bias == Bias::kFloat) params.bias_float = bias_float_buffer_->as<float>();
    if (case_.bias == Bias::kBf16) params.bias_bf16 = bias_buffer_.as<Bf16>();
    params.path = path;
    params.num_sms = case_.num_sms;
    SimBuffer partials(GemmPartialBytes(m, case_.n, case_.k), "partials");
    params.partials = partials.data();
    params.partial_bytes = partials.size();
    params.counters = counters_.as<uint32_t>();
    const absl::Status status = runner::Kernels().gemm_bf16(params, nullptr);
    if (!status.ok()) return std::string(status.message());
    for (uint32_t i = 0; i < kGemmCounters; ++i) {
      if (counters_.as<uint32_t>()[i] != 0) return "a counter is not set back";
    }
    return "";
  }

  // All rows by the model.
  std::vector<std::byte> Expected() const {
    std::vector<std::byte> y(y_bytes(case_.m));
    ReferenceGemmBits(HostParams(y.data()), simt_test::CurrentCore());
    return y;
  }

  // How far the model, and so the kernel, is from exact arithmetic.
  double Error(const std::vector<std::byte>& y) const {
    std::vector<float> values(size_t{case_.m} * case_.n);
    for (size_t i = 0; i < values.size(); ++i) {
      if (case_.to_bf16) {
        Bf16 value;
        std::memcpy(&value, &y[i * sizeof(value)], sizeof(value));
        values[i] = FloatFromBf16(value.bits);
      } else {
        std::memcpy(&values[i], &y[i * sizeof(float)], sizeof(float));
      }
    }
    return RelativeError(values.data(), ReferenceGemm(HostParams(nullptr)));
  }

 private:
  GemmParams Params(uint32_t m, const Bf16* x, void* y) const {
    GemmParams params = {.x = x, .w = w_.data(), .m = m, .n = case_.n, .k = case_.k};
    if (case_.to_bf16) {
      params.y_bf16 = static_cast<Bf16*>(y);
    } else {
      params.y_float = static_cast<float*>(y);
    }
    return params;
  }
  GemmParams HostParams(void* y) const {
    GemmParams params = Params(case_.m, x_.data(), y);
    if (case_.bias == Bias::kFloat) params.bias_float = bias_float_.data();
    if (case_.bias == Bias::kBf16) params.bias_bf16 = bias_.data();
    return params;
  }

  GemmCase case_;
  std::vector<Bf16> x_;
  std::vector<Bf16> w_;
  std::vector<Bf16> bias_;
  std::vector<float> bias_float_;
  SimBuffer x_buffer_;
  SimBuffer w_buffer_;
  SimBuffer bias_buffer_;
  SimBuffer counters_;
  std::unique_ptr<SimBuffer> bias_float_buffer_;
};

// The first difference from what the kernel promises, or "". Reports the worst relative error
// through `worst`, if given.
inline std::string Check(const GemmCase& c, double* worst = nullptr) {
  Operands operands(c);
  const std::vector<std::byte> expected = operands.Expected();
  for (int again = 0; again < 2; ++again) {  // the second launch finds the counters of the first
    SimBuffer y(expected.size(), "y");
    const std::string fault = operands.Run(0, c.m, c.path, y);
    if (!fault.empty()) return Name(c) + ": " + fault;
    if (!SameBits(y.data(), expected.data(), y.size())) return Name(c) + ": other bits";
  }
  const double error = operands.Error(expected);
  if (worst != nullptr) *worst = std::max(*worst, error);
  return error < (c.to_bf16 ? kGemmBf16 : kGemm) ? "" : fmt::format("relative error {:.3g}", error);
}

}  // namespace baton::kernels::cuda

#endif  // BATON_TESTS_KERNELS_SIMT_GEMM_CASE_H_
