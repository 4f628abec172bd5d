// Each operation at the shapes of SmolLM2-135M, with its rate and its share of the measured limit
// of this machine. With one thread the time is processor time, so that a shared machine can be
// measured; with more it is wall time on an otherwise idle one. Flags: Google Benchmark's, and
// --isa=auto|avx512|avx2|portable, --threads=N.
//   kernel_bench --threads=2 --benchmark_out=FILE --benchmark_out_format=json
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "benchmark/benchmark.h"

#include "kernels/cpu/machine_limits.h"
#include "kernels/math.h"
#include "kernels/rope_table.h"
#include "src/base/check.h"
#include "src/device/aligned_buffer.h"

namespace baton::kernels {

using device::AlignedBuffer;
using device::ThreadPool;
using kv::KvLayout;
using kv::KvView;

namespace {

// SmolLM2-135M.
constexpr uint32_t kHidden = 576;
constexpr uint32_t kFfn = 1536;
constexpr uint32_t kHeads = 9;
constexpr uint32_t kKvHeads = 3;
constexpr uint32_t kLayers = 30;
constexpr uint32_t kHeadDim = 64;
constexpr uint32_t kVocab = 49152;
constexpr uint32_t kMaxPosition = 4096;

// Every benchmark runs with these objects; main sets them once.
struct Bench {
  const Ops* ops = nullptr;
  ThreadPool* pool = nullptr;
  MachineLimits limits = {};
};
Bench bench;

std::vector<float> RandomFloats(size_t count) {
  std::mt19937 engine(1);
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(static_cast<int32_t>(engine())) * 0x1p-31f;
  return out;
}

// Where the fp16 scale of a raw block lies; a min follows it.
size_t ScaleAt(WeightType type) {
  if (type == WeightType::kQ2_K) return 80;
  if (type == WeightType::kQ3_K) return 108;
  return type == WeightType::kQ6_K ? 208 : 0;
}

std::vector<std::byte> RandomRaw(WeightType type, uint32_t n, uint32_t k) {
  std::mt19937 engine(2);
  std::vector<std::byte> raw(n * RawRowBytes(type, k));
  for (std::byte& b : raw) b = static_cast<std::byte>(engine());
  const WeightTraits& traits = TraitsOf(type);
  for (size_t at = 0; at < raw.size(); at += traits.block_bytes) {
    const uint16_t half = 0x2000;  // 2^-7: no infinities or NaN among the scales
    if (type == WeightType::kF32) {
      const float one = 0.01f;
      std::memcpy(raw.data() + at, &one, 4);
    } else if (type == WeightType::kMxfp4) {
      raw[at] = std::byte{120};
    } else {
      const size_t scale_at = ScaleAt(type);
      std::memcpy(raw.data() + at + scale_at, &half, 2);
      if (traits.has_min()) std::memcpy(raw.data() + at + scale_at + 2, &half, 2);
    }
  }
  return raw;
}

PackedMatrix RandomMatrix(WeightType type, uint32_t n, uint32_t k) {
  return PackedMatrix::Pack(type, RandomRaw(type, n, k), n, k, *bench.pool).value();
}

// One matrix, or copies of 192 MiB in all, so that a decode-shaped run reads memory and not a
// cache. The matrices of the latest call are kept, because the library calls a benchmark many
// times.
const std::vector<PackedMatrix>& Matrices(WeightType type, uint32_t n, uint32_t k, bool cold) {
  static std::vector<PackedMatrix> kept;
  static std::tuple<WeightType, uint32_t, uint32_t, bool> kept_for;
  const std::tuple wanted{type, n, k, cold};
  if (!kept.empty() && kept_for == wanted) return kept;
  kept.clear();
  const std::vector<std::byte> raw = RandomRaw(type, n, k);
  do {
    kept.push_back(PackedMatrix::Pack(type, raw, n, k, *bench.pool).value());
  } while (cold && kept.size() * kept[0].bytes() < size_t{192} * 1024 * 1024);
  kept_for = wanted;
  return kept;
}

using Rate = benchmark::Counter;

// The bytes that one call of an operation moves, and the operations that it computes.
struct Work {
  double bytes;
  bool cold = false;  // from memory; else from whatever cache holds it
  double flops = 0;
  double peak_gflop_per_s = 0;  // read only with flops
};

// Adds GB/s, GFLOP/s and the shares of the limits. Work that fits the first-level caches has no
// share: it is faster than the 4 MiB that the cache limit is measured with.
void Report(benchmark::State& state, const Work& work) {
  constexpr double kSmallBytes = 1 << 20;
  const auto per_iteration = Rate::kIsIterationInvariantRate;
  state.counters["GB/s"] = Rate(work.bytes * 1e-9, per_iteration);
  if (work.cold) {
    state.counters["of_read"] = Rate(work.bytes * 1e-9 / bench.limits.read_gb_per_s, per_iteration);
  } else if (work.flops == 0 && work.bytes > kSmallBytes) {
    state.counters["of_cache"] =
        Rate(work.bytes * 1e-9 / bench.limits.cache_gb_per_s, per_iteration);
  }
  if (work.flops > 0) {
    state.counters["GFLOP/s"] = Rate(work.flops * 1e-9, per_iteration);
    state.counters["of_peak"] = Rate(work.flops * 1e-9 / work.peak_gflop_per_s, per_iteration);
  }
}

void BenchMatMul(benchmark::State& state, WeightType type, uint32_t n, uint32_t k, bool cold) {
  const auto m = static_cast<uint32_t>(state.range(0));
  const std::vector<PackedMatrix>& copies = Matrices(type, n, k, cold);
  const size_t bytes = copies[0].bytes();
  const std::vector<float> x = RandomFloats(size_t{m} * k);
  std::vector<int16_t> q(size_t{m} * k);
  std::vector<float> scale(size_t{m} * (k / 32));
  std::vector<float> sum(scale.size());
  std::vector<float> half_sum(2 * sum.size());
  std::vector<int32_t> half_total(2 * sum.size());
  const A16View a16 = {q.data(), scale.data(), sum.data(), half_sum.data(), half_total.data(), k};
  if (copies[0].uses_a16()) bench.ops->quantize_a16(*bench.pool, x.data(), m, a16);
  std::vector<float> out(size_t{m} * n);
  size_t next = 0;
  for (auto _ : state) {
    bench.ops->matmul(*bench.pool, {.weights = &copies[next],
                                    .a16 = a16,
                                    .x = x.data(),
                                    .m = m,
                                    .out = out.data(),
                                    .out_stride = n,
                                    .epilogue = Epilogue::kStore});
    next = (next + 1) % copies.size();
  }
  const double limit =
      copies[0].uses_a16() ? bench.limits.int16_gop_per_s : bench.limits.fp32_gflop_per_s;
  Report(state, {static_cast<double>(bytes), cold, 2.0 * m * n * k, limit});
}

// An arena with one sequence of `length` tokens.
struct KvBench {
  explicit KvBench(uint32_t length, uint32_t num_layers = 1) {
    layout.num_layers = num_layers;
    layout.num_kv_heads = kKvHeads;
    layout.head_dim = kHeadDim;
    const uint32_t num_blocks = layout.BlocksFor(length);
    arena = AlignedBuffer::AllocateOrDie(layout.BlockStride() * num_blocks);
    auto* values = reinterpret_cast<uint16_t*>(arena.data());
    std::mt19937 engine(3);
    for (size_t i = 0; i < arena.size() / 2; ++i) {
      values[i] = Bf16FromFloat(static_cast<float>(static_cast<int32_t>(engine())) * 0x1p-31f);
    }
    for (uint32_t i = 0; i < num_blocks; ++i) blocks.push_back(i * 17 % num_blocks);
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    for (uint32_t i = 0; blocks.size() < num_blocks; ++i) blocks.push_back(i);
  }
  KvView view() { return {arena.data(), &layout, static_cast<uint32_t>(blocks.size())}; }
  KvLayout layout;
  AlignedBuffer arena;
  std::vector<uint32_t> blocks;
};

// range(0) rows after range(1) tokens of context. A decode step (one row) comes to each layer with
// cold caches, as in a model.
void BenchAttention(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  const auto depth = static_cast<uint32_t>(state.range(1));
  const uint32_t num_layers = rows == 1 ? kLayers : 1;
  KvBench kv(rows + depth, num_layers);
  const std::vector<float> q = RandomFloats(size_t{rows} * kHeads * kHeadDim);
  std::vector<float> out(q.size());
  AlignedBuffer scratch = AlignedBuffer::AllocateOrDie(
      bench.ops->attention_scratch_bytes(bench.pool->num_threads(), kHeads, kKvHeads, kHeadDim));
  const AttentionSpan span = {{kv.blocks}, 0, rows, depth};
  uint32_t layer = 0;
  for (auto _ : state) {
    layer = (layer + 1) % num_layers;
    bench.ops->attention(*bench.pool, {.kv = kv.view(),
                                       .layer = layer,
                                       .spans = {&span, 1},
                                       .q = q.data(),
                                       .q_stride = kHeads * kHeadDim,
                                       .num_heads = kHeads,
                                       .scale = 0.125f,
                                       .window = 0,
                                       .out = out.data(),
                                       .scratch = {scratch.data(), scratch.size()}});
  }
  const double keys = rows * (depth + (rows + 1) / 2.0);  // summed over rows
  Report(state, {(rows + depth) * 2.0 * kKvHeads * kHeadDim * 2, num_layers > 1,
                 4.0 * keys * kHeads * kHeadDim, bench.limits.fp32_gflop_per_s});
}

void BenchRopeAppend(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  KvBench kv(kMaxPosition);
  const uint32_t stride = (kHeads + 2 * kKvHeads) * kHeadDim;
  std::vector<float> qkv = RandomFloats(size_t{rows} * stride);
  std::vector<float> table(size_t{kMaxPosition} * kHeadDim);
  BATON_CHECK(BuildRopeTable({kMaxPosition, kHeadDim, 1e5}, table).ok());
  const AttentionSpan span = {{kv.blocks}, 0, rows, 0};
  for (auto _ : state) {
    bench.ops->rope_append(*bench.pool, {.kv = kv.view(),
                                         .layer = 0,
                                         .spans = {&span, 1},
                                         .q = qkv.data(),
                                         .k = qkv.data() + kHeads * kHeadDim,
                                         .v = qkv.data() + (kHeads + kKvHeads) * kHeadDim,
                                         .qkv_stride = stride,
                                         .num_heads = kHeads,
                                         .cos_sin = table.data(),
                                         .interleaved = true});
  }
  Report(state, {rows * (stride + kHeads * kHeadDim) * 4.0});
}

// Both halves of one convolution of LFM2-350M: 1024 channels, 3 taps, one slice of 8 KV heads.
void BenchShortConv(benchmark::State& state) {
  constexpr uint32_t kChannels = 1024;
  constexpr uint32_t kTaps = 3;
  const auto rows = static_cast<uint32_t>(state.range(0));
  KvBench kv(kMaxPosition);
  kv.layout.num_kv_heads = 8;
  kv.arena = AlignedBuffer::AllocateOrDie(kv.layout.BlockStride() * kv.blocks.size());
  const std::vector<float> bcx = RandomFloats(size_t{rows} * 3 * kChannels);
  const std::vector<float> taps = RandomFloats(kTaps * kChannels);
  std::vector<float> out(size_t{rows} * kChannels);
  const AttentionSpan span = {{kv.blocks}, 0, rows, kTaps};
  const ShortConvArgs args = {.kv = kv.view(),
                              .first_slice = 0,
                              .num_slices = 1,
                              .spans = {&span, 1},
                              .bcx = bcx.data(),
                              .channels = kChannels,
                              .taps = taps.data(),
                              .num_taps = kTaps,
                              .out = out.data()};
  for (auto _ : state) {
    bench.ops->conv_append(*bench.pool, args);
    bench.ops->short_conv(*bench.pool, args);
  }
  Report(state, {rows * kChannels * (3 * 4.0 + 2 + kTaps * 2 + 4)});
}

void BenchRmsNorm(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  const std::vector<float> x = RandomFloats(size_t{rows} * kHidden);
  std::vector<float> out(x.size());
  for (auto _ : state) {
    bench.ops->rms_norm(*bench.pool, {x.data(), x.data(), rows, kHidden, 1e-5f, out.data()});
  }
  Report(state, {rows * kHidden * 8.0});
}

void BenchQuantize(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  const std::vector<float> x = RandomFloats(size_t{rows} * kFfn);
  std::vector<int16_t> q(x.size());
  std::vector<float> scale(x.size() / 32);
  std::vector<float> sum(x.size() / 32);
  std::vector<float> half_sum(x.size() / 16);
  std::vector<int32_t> half_total(x.size() / 16);
  const A16View a16 = {q.data(),        scale.data(),      sum.data(),
                       half_sum.data(), half_total.data(), kFfn};
  for (auto _ : state) {
    bench.ops->quantize_a16(*bench.pool, x.data(), rows, a16);
  }
  Report(state, {rows * kFfn * 6.0});
}

void BenchSiluMul(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  const std::vector<float> x = RandomFloats(size_t{rows} * 2 * kFfn);
  std::vector<float> out(size_t{rows} * kFfn);
  for (auto _ : state) bench.ops->silu_mul(*bench.pool, x.data(), rows, kFfn, out.data());
  Report(state, {rows * kFfn * 12.0});
}

void BenchEmbed(benchmark::State& state) {
  const auto rows = static_cast<uint32_t>(state.range(0));
  const PackedMatrix matrix = RandomMatrix(WeightType::kQ8_0, 8192, kHidden);
  std::vector<int32_t> ids(rows);
  for (uint32_t i = 0; i < rows; ++i) ids[i] = static_cast<int32_t>(i * 7919 % 8192);
  std::vector<float> out(size_t{rows} * kHidden);
  for (auto _ : state) bench.ops->embed(*bench.pool, matrix, ids, out.data());
  Report(state, {rows * kHidden * 5.0});
}

void BenchPack(benchmark::State& state) {
  const std::vector<std::byte> raw(3072 * RawRowBytes(WeightType::kQ4_1, kHidden));
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        PackedMatrix::Pack(WeightType::kQ4_1, raw, 3072, kHidden, *bench.pool).value().bytes());
  }
  Report(state, {2.0 * static_cast<double>(raw.size())});
}

void BenchForkJoin(benchmark::State& state) {
  for (auto _ : state) bench.pool->Run(bench.pool->num_threads(), [](uint32_t, uint32_t) {});
}

std::vector<benchmark::internal::Benchmark*> registry;

template <typename... Args>
benchmark::internal::Benchmark* Register(const std::string& name, Args&&... args) {
  registry.push_back(benchmark::RegisterBenchmark(name.c_str(), std::forward<Args>(args)...));
  return registry.back();
}

void RegisterMatMul(const char* name, WeightType type, uint32_t n, uint32_t k,
                    const std::vector<int64_t>& rows) {
  for (const int64_t m : rows) {
    const std::string full = "matmul/" + std::string(TraitsOf(type).name) + "/" + name;
    Register(full, BenchMatMul, type, n, k, m <= 8)->Arg(m);
  }
}

void RegisterAll() {
  const std::vector<int64_t> rows = {1, 2, 4, 8, 16, 64, 512};
  RegisterMatMul("qkv", WeightType::kQ4_1, (kHeads + 2 * kKvHeads) * kHeadDim, kHidden, {1, 512});
  RegisterMatMul("o", WeightType::kQ4_1, kHidden, kHidden, {1, 512});
  RegisterMatMul("gate_up", WeightType::kQ4_1, 2 * kFfn, kHidden, rows);
  RegisterMatMul("down", WeightType::kQ4_1, kHidden, kFfn, rows);
  RegisterMatMul("lm_head", WeightType::kQ8_0, kVocab, kHidden, {1, 2, 4, 512});
  for (WeightType type : {WeightType::kQ4_0, WeightType::kQ8_0, WeightType::kBf16, WeightType::kF16,
                          WeightType::kF32}) {
    RegisterMatMul("gate_up", type, 2 * kFfn, kHidden, {1, 4, 512});
  }
  // The K quants need rows of whole super-blocks: the shape of a model of 0.5 to 1 billion.
  for (WeightType type :
       {WeightType::kQ4_1, WeightType::kQ8_0, WeightType::kQ5_0, WeightType::kQ5_1,
        WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K, WeightType::kMxfp4,
        WeightType::kIq4Nl, WeightType::kIq4Xs, WeightType::kQ3_K, WeightType::kQ2_K}) {
    RegisterMatMul("wide", type, 4096, 1024, {1, 4, 512});
  }
  Register("attention", BenchAttention)
      ->Args({512, 0})
      ->Args({512, 1536})
      ->Args({1, 512})
      ->Args({1, 2048})
      ->Args({1, 8000});
  for (const int64_t m : {1, 512}) {
    Register("rope_append", BenchRopeAppend)->Arg(m);
    Register("short_conv", BenchShortConv)->Arg(m);
    Register("rms_norm", BenchRmsNorm)->Arg(m);
    Register("quantize_a16", BenchQuantize)->Arg(m);
    Register("silu_mul", BenchSiluMul)->Arg(m);
    Register("embed", BenchEmbed)->Arg(m);
  }
  Register("pack", BenchPack);
  Register("fork_join", BenchForkJoin);
}

// The value of "--name=value" taken out of argv, or `fallback`.
std::string TakeFlag(int* argc, char** argv, const std::string& name, const std::string& fallback) {
  const std::string prefix = "--" + name + "=";
  for (int i = 1; i < *argc; ++i) {
    if (std::strncmp(argv[i], prefix.c_str(), prefix.size()) != 0) continue;
    const std::string value = argv[i] + prefix.size();
    for (int j = i; j + 1 < *argc; ++j) argv[j] = argv[j + 1];
    --*argc;
    return value;
  }
  return fallback;
}

int Main(int argc, char** argv) {
  const std::string isa_text = TakeFlag(&argc, argv, "isa", "auto");
  const std::string threads_text = TakeFlag(&argc, argv, "threads", "1");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto isa = ParseIsa(isa_text);
  if (!isa.ok()) {
    std::fprintf(stderr, "%s\n", isa.status().ToString().c_str());
    return 2;
  }
  const auto ops = OpsFor(*isa);
  if (!ops.ok()) {
    std::fprintf(stderr, "%s\n", ops.status().ToString().c_str());
    return 1;
  }
  ThreadPool pool(static_cast<uint32_t>(std::clamp(std::atoi(threads_text.c_str()), 1, 64)));
  bench.ops = *ops;
  bench.pool = &pool;
  bench.limits = MeasureLimits(pool, (*ops)->isa, kThoroughLimits);
  benchmark::AddCustomContext("isa", std::string((*ops)->name));
  benchmark::AddCustomContext("threads", threads_text);
  benchmark::AddCustomContext("read_gb_per_s", std::to_string(bench.limits.read_gb_per_s));
  benchmark::AddCustomContext("cache_gb_per_s", std::to_string(bench.limits.cache_gb_per_s));
  benchmark::AddCustomContext("fp32_gflop_per_s", std::to_string(bench.limits.fp32_gflop_per_s));
  benchmark::AddCustomContext("int16_gop_per_s", std::to_string(bench.limits.int16_gop_per_s));
  RegisterAll();
  if (pool.num_threads() > 1) {
    for (auto* registered : registry) registered->UseRealTime();
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace baton::kernels

int main(int argc, char** argv) { return baton::kernels::Main(argc, argv); }
