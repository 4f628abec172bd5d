// A layer of Qwen3.5-0.8B with a gated delta net (hidden 1024, 16 heads of 128 x 128, 4 taps) for a
// prompt of 512 tokens: the form that serves, token by token, with one rounding however a prompt is
// cut, beside that of chunks (chunked_delta.h), which rounds otherwise in each cut. The operation
// that serves has convolution, gates and norm too; on the side of chunks they are left out, so the
// true ratios are smaller. One thread, processor time, in turns. Prints JSON.
//   delta_forms [rounds]
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "benchmarks/kernels/chunked_delta.h"
#include "kernels/ops.h"
#include "src/device/aligned_buffer.h"

namespace baton::kernels {
namespace {

using device::AlignedBuffer;
using device::ThreadPool;

constexpr DeltaShape kShape = {16, 16, kChunkedDim, kChunkedDim, 4};
constexpr uint32_t kHidden = 1024;
constexpr uint32_t kTokens = 512;
constexpr uint32_t kHeads = kShape.num_v_heads;
constexpr uint32_t kStride = kHeads * kChunkedDim;
constexpr size_t kMatrix = size_t{kChunkedDim} * kChunkedDim;

double CpuMs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

std::vector<float> Uniform(size_t count, float low, float high) {
  static std::mt19937 engine(1);
  std::vector<float> out(count);
  for (float& x : out) x = low + (high - low) * static_cast<float>(engine() >> 8) * 0x1p-24f;
  return out;
}

// The operation that serves: convolution, gates, recurrence, norm.
class Serving {
 public:
  explicit Serving(const Ops& ops) : ops_(ops) {
    layout_.dtype = kv::KvDtype::kBf16;
    layout_.encoding = kv::KvEncoding::kPaired;
    layout_.num_layers = 1;
    layout_.num_kv_heads = 2;
    layout_.head_dim = 256;
    layout_.block_size = 16;
    const size_t slice_bytes = layout_.SliceBytes();
    layout_.state_blocks =
        static_cast<uint32_t>((kShape.state_bytes() + slice_bytes - 1) / slice_bytes);
    arena_ = AlignedBuffer::AllocateOrDie(layout_.BlockStride() * layout_.state_blocks);
    for (uint32_t i = 0; i < layout_.state_blocks; ++i) state_.push_back(i);
  }
  double Ms() {
    std::memset(arena_.data(), 0, arena_.size());
    input_ = first_;  // the operation works in place
    const AttentionSpan span = {{{}, state_}, 0, kTokens, 0};
    const double begin = CpuMs();
    ops_.gated_delta(pool_, {.kv = {arena_.data(), &layout_, layout_.state_blocks},
                             .slice = 0,
                             .offset = 0,
                             .spans = {&span, 1},
                             .shape = kShape,
                             .input = input_.data(),
                             .taps = taps_.data(),
                             .rates = rates_.data(),
                             .dt_bias = dt_bias_.data(),
                             .norm = norm_.data(),
                             .eps = 1e-6f,
                             .out = out_.data()});
    return CpuMs() - begin;
  }

 private:
  const Ops& ops_;
  ThreadPool pool_{1};
  kv::KvLayout layout_;
  AlignedBuffer arena_;
  std::vector<uint32_t> state_;
  const std::vector<float> first_ = Uniform(size_t{kTokens} * kShape.input_size(), -2, 2);
  const std::vector<float> taps_ = Uniform(size_t{4} * kShape.num_channels(), -1, 1);
  const std::vector<float> rates_ = Uniform(kShape.num_v_heads, -2, -0.01f);
  const std::vector<float> dt_bias_ = Uniform(kShape.num_v_heads, -2, 1);
  const std::vector<float> norm_ = Uniform(kShape.v_dim, 0.5f, 1.5f);
  std::vector<float> input_;
  std::vector<float> out_ = std::vector<float>(size_t{kTokens} * kShape.value_size());
};

// The products of the layer, of matrices in Q4_0: what the net reads, and back.
class Products {
 public:
  explicit Products(const Ops& ops) : ops_(ops) {}
  double Ms() {
    const double begin = CpuMs();
    Multiply(in_, kHidden);
    Multiply(back_, kShape.value_size());
    return CpuMs() - begin;
  }

 private:
  PackedMatrix Matrix(uint32_t n, uint32_t k) {
    std::vector<std::byte> raw(n * RawRowBytes(WeightType::kQ4_0, k), std::byte{0x20});
    return PackedMatrix::Pack(WeightType::kQ4_0, raw, n, k, pool_).value();
  }
  void Multiply(const PackedMatrix& matrix, uint32_t k) {
    const A16View a16 = {q_.data(),        scale_.data(),      sum_.data(),
                         half_sum_.data(), half_total_.data(), k};
    ops_.quantize_a16(pool_, x_.data(), kTokens, a16);
    ops_.matmul(pool_, {.weights = &matrix,
                        .a16 = a16,
                        .x = x_.data(),
                        .m = kTokens,
                        .out = out_.data(),
                        .out_stride = matrix.n(),
                        .epilogue = Epilogue::kStore});
  }

  static constexpr size_t kWidest = kStride;  // of kShape.value_size()
  const Ops& ops_;
  ThreadPool pool_{1};
  const PackedMatrix in_ = Matrix(kShape.num_channels() + kShape.value_size(), kHidden);
  const PackedMatrix back_ = Matrix(kHidden, kShape.value_size());
  const std::vector<float> x_ = Uniform(kTokens * kWidest, -1, 1);
  std::vector<int16_t> q_ = std::vector<int16_t>(x_.size());
  std::vector<float> scale_ = std::vector<float>(x_.size() / 32);
  std::vector<float> sum_ = scale_;
  std::vector<float> half_sum_ = std::vector<float>(2 * sum_.size());
  std::vector<int32_t> half_total_ = std::vector<int32_t>(2 * sum_.size());
  std::vector<float> out_ = std::vector<float>(size_t{kTokens} * in_.n());
};

// The recurrence alone, in chunks, of inputs that are prepared.
class Chunks {
 public:
  Chunks() {
    for (std::vector<float>* rows : {&q_, &k_}) {
      for (size_t at = 0; at < rows->size(); at += kChunkedDim) {
        double squares = 0;
        for (uint32_t i = 0; i < kChunkedDim; ++i) squares += (*rows)[at + i] * (*rows)[at + i];
        for (uint32_t i = 0; i < kChunkedDim; ++i) {
          (*rows)[at + i] /= static_cast<float>(std::sqrt(squares));
        }
      }
    }
  }
  double Ms() {
    std::fill(states_.begin(), states_.end(), 0.0f);
    const double begin = CpuMs();
    for (uint32_t head = 0; head < kHeads; ++head) ChunkedDelta(ArgsOf(head));
    return CpuMs() - begin;
  }
  // The largest difference of an output of the first head from its definition in double.
  double Error() {
    Ms();
    std::vector<double> state(kMatrix);
    double worst = 0;
    for (uint32_t t = 0; t < kTokens; ++t) {
      const float *q = &q_[size_t{t} * kStride], *k = &k_[size_t{t} * kStride];
      const double decay = std::exp(double{log_decays_[t]});
      for (uint32_t c = 0; c < kChunkedDim; ++c) {
        double given = 0, out = 0;
        for (uint32_t i = 0; i < kChunkedDim; ++i) {
          given += (state[i * kChunkedDim + c] *= decay) * k[i];
        }
        const double delta = betas_[t] * (v_[size_t{t} * kStride + c] - given);
        for (uint32_t i = 0; i < kChunkedDim; ++i) {
          out += (state[i * kChunkedDim + c] += k[i] * delta) * q[i];
        }
        worst = std::max(worst, std::abs(out - out_[size_t{t} * kStride + c]));
      }
    }
    return worst;
  }

 private:
  ChunkedDeltaArgs ArgsOf(uint32_t head) {
    const size_t at = size_t{head} * kChunkedDim;
    return {.q = &q_[at],
            .k = &k_[at],
            .v = &v_[at],
            .beta = &betas_[size_t{head} * kTokens],
            .log_decay = &log_decays_[size_t{head} * kTokens],
            .num_tokens = kTokens,
            .stride = kStride,
            .state = &states_[head * kMatrix],
            .out = &out_[at]};
  }

  std::vector<float> q_ = Uniform(size_t{kTokens} * kStride, -1, 1);
  std::vector<float> k_ = Uniform(size_t{kTokens} * kStride, -1, 1);
  const std::vector<float> v_ = Uniform(size_t{kTokens} * kStride, -1, 1);
  const std::vector<float> betas_ = Uniform(size_t{kTokens} * kHeads, 0, 1);
  const std::vector<float> log_decays_ = Uniform(size_t{kTokens} * kHeads, -0.2f, 0);
  std::vector<float> states_ = std::vector<float>(kHeads * kMatrix);
  std::vector<float> out_ = std::vector<float>(size_t{kTokens} * kStride);
};

int Main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 21;
  const auto ops = OpsFor(Isa::kAvx512);
  if (!ops.ok()) {
    std::fprintf(stderr, "delta_forms: %s\n", ops.status().ToString().c_str());
    return 1;
  }
  Serving serving(**ops);
  Products products(**ops);
  Chunks chunks;
  const double error = chunks.Error();
  if (!(error < 1e-3)) {
    std::fprintf(stderr, "delta_forms: the form of chunks is wrong by %g\n", error);
    return 1;
  }
  std::map<std::string, std::vector<double>> seen;
  for (int i = 0; i <= rounds; ++i) {
    const double serving_ms = serving.Ms();
    const double chunks_ms = chunks.Ms();
    const double products_ms = products.Ms();
    if (i == 0) continue;  // caches and pages
    seen["serving_ms"].push_back(serving_ms);
    seen["chunks_ms"].push_back(chunks_ms);
    seen["products_ms"].push_back(products_ms);
    seen["layer_over_layer_of_chunks"].push_back((products_ms + serving_ms) /
                                                 (products_ms + chunks_ms));
  }
  std::printf("{\"tokens\": %u, \"rounds\": %d, \"error\": %.2g", kTokens, rounds, error);
  for (auto& [name, values] : seen) {
    std::sort(values.begin(), values.end());
    std::printf(",\n \"%s\": {\"median\": %.3f, \"low\": %.3f, \"high\": %.3f}", name.c_str(),
                values[values.size() / 2], values.front(), values.back());
  }
  std::printf("}\n");
  return 0;
}

}  // namespace
}  // namespace baton::kernels

int main(int argc, char** argv) { return baton::kernels::Main(argc, argv); }
