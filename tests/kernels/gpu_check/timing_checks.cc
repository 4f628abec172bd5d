#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_plan.h"
#include "src/base/status.h"
#include "src/model/device_batch.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/experts_timing.h"
#include "tests/kernels/gpu_check/gemm_timing.h"
#include "tests/kernels/gpu_check/slice_timing.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/timing.h"

namespace baton::kernels::gpu_check {

using model::kDecodeCtas;
using model::kMaxPartials;
using model::kPrefillCtas;
using model::kSpreadCtas;

namespace {

using cuda::Bf16;

constexpr uint32_t kPackedRows = 32;

// The formats that differ in bits a weight or in what a weight costs.
absl::Status AddPackedProducts(const StageInput& input, const ProductShape& shape,
                               GemmTiming& timing, Report& report) {
  constexpr std::pair<cuda::PackedFormat, const char*> kFormats[] = {
      {cuda::PackedFormat::kQ4_0, "q4_0"},
      {cuda::PackedFormat::kQ4_K, "q4_k"},
      {cuda::PackedFormat::kQ8_0, "q8_0"},
      {cuda::PackedFormat::kE4m3, "e4m3"}};
  for (const auto& [format, format_name] : kFormats) {
    for (const uint32_t m :
         input.is_tiny ? std::vector<uint32_t>{1} : std::vector<uint32_t>{1, 8, kPackedRows, 64}) {
      const TimedCase named = {.name = fmt::format("gemm {} {} m {}", format_name, shape.name, m),
                               .target = PackedProductTarget(cuda::PackedDigitBits(format), m)};
      BATON_RETURN_IF_ERROR(timing.AddPacked(named, m, format, report));
    }
    const TimedCase named = {.name = fmt::format("unpack {} {}", format_name, shape.name)};
    BATON_RETURN_IF_ERROR(timing.AddUnpack(named, format, report));
  }
  return absl::OkStatus();
}

// Every kernel of many rows, whichever would be chosen.
absl::Status AddManyRows(const StageInput& input, const ProductShape& shape, GemmTiming& timing,
                         Report& report) {
  constexpr std::pair<cuda::GemmPath, const char*> kKernels[] = {
      {cuda::GemmPath::kTile128, "tile128"},
      {cuda::GemmPath::kWgmma128, "wgmma128"},
      {cuda::GemmPath::kWgmma192, "wgmma192"},
      {cuda::GemmPath::kWgmma256, "wgmma256"}};
  for (const uint32_t m : RowCounts(input.is_tiny)) {
    if (m <= (input.is_tiny ? 1 : cuda::kGemmMaxSpreadRows)) continue;
    for (const auto& [path, kernel] : kKernels) {
      if (path != cuda::GemmPath::kTile128 && input.major != 9) continue;
      if (path == cuda::GemmPath::kWgmma256 &&
          cuda::GemmSegments(shape.n, shape.k).num_segments > 1) {
        continue;
      }
      const TimedCase named = {.name = fmt::format("gemm {} {} m {}", kernel, shape.name, m)};
      BATON_RETURN_IF_ERROR(timing.Add(named, m, path, report).status());
    }
  }
  return absl::OkStatus();
}

absl::Status AddProducts(const StageInput& input, Report& report) {
  for (const ProductShape& shape : ProductsOf(ShapeFor(input.is_tiny))) {
    std::vector<uint32_t> counts = RowCounts(input.is_tiny);
    if (shape.is_output) std::erase_if(counts, [](uint32_t m) { return m > kMostOutputRows; });
    GemmTiming timing(input, shape, counts.back());
    if (!timing.status().ok()) {
      BATON_RETURN_IF_ERROR(report.Add({fmt::format("gemm {}", shape.name), Verdict::kFail,
                                        std::string(timing.status().message())}));
      continue;
    }
    for (const uint32_t m : counts) {
      const TimedCase named = {.name = fmt::format("gemm {} m {}", shape.name, m),
                               .target = SkinnyProductTarget(shape.name, m, input.major == 9)};
      BATON_RETURN_IF_ERROR(timing.Add(named, m, cuda::GemmPath::kAuto, report).status());
    }
    if (!shape.is_output) BATON_RETURN_IF_ERROR(AddManyRows(input, shape, timing, report));
    const std::string_view name = shape.name;
    for (const uint32_t m : counts) {
      if (m > cuda::kMaxJoinedRows) continue;
      const TimedCase named = {.name = fmt::format("gemm joined {} m {}", name, m)};
      if (name == "gate_up") BATON_RETURN_IF_ERROR(timing.AddGated(named, m, report));
      if (name == "qkv") BATON_RETURN_IF_ERROR(timing.AddRoped(named, m, report));
      const bool is_summed = m <= cuda::kMaxNormedRows && input.major == 9;
      if (is_summed && (name == "o" || name == "down")) {
        BATON_RETURN_IF_ERROR(timing.AddSum(named, m, report));
      }
    }
    if (name != "gate_up" && name != "down") continue;
    BATON_RETURN_IF_ERROR(AddPackedProducts(input, shape, timing, report));
  }
  return absl::OkStatus();
}

// `rows` of each sequence, the last of them at position context - 1.
struct TimedRows {
  uint32_t num_sequences;
  uint32_t rows;
  uint32_t context;
};

// One layer's KV of some sequences, and everything that attention reads besides.
class AttentionTiming {
 public:
  // Fp8 has random codes and scales, which cost what any cost.
  AttentionTiming(const StageInput& input, cuda::KvElement element, const TimedRows& timed)
      : input_(input),
        shape_(ShapeFor(input.is_tiny)),
        kv_{nullptr, 0, shape_.num_kv_heads, shape_.head_dim, kShapeBlockSize, element},
        max_blocks_((timed.context - 1) / kShapeBlockSize + 1),
        lists_(Lists(timed.num_sequences * max_blocks_)),
        status_(Plan(timed)),
        kv_bytes_(size_t{timed.num_sequences} * max_blocks_ * 2 * kv_.ValueOffset()),
        memory_(input, kv_bytes_, 1.0f),
        q_(input, 2 * NumElements(timed), 1.0f),
        out_(input.body, NumElements(timed)),
        block_lists_(input.body, lists_),
        prefill_(input.body, plan_.prefill),
        decode_(input.body, plan_.decode),
        counts_(input.body, std::vector<uint32_t>{static_cast<uint32_t>(plan_.prefill.size()),
                                                  static_cast<uint32_t>(plan_.decode.size())}),
        partials_(input.body, plan_.num_partials * cuda::AttentionPartialBytes(shape_.head_dim)),
        arrivals_(input.body, std::vector<uint32_t>(plan_.num_arrivals)) {
    kv_.block_stride_bytes = 2 * kv_.ValueOffset();
    status_.Update(FirstFailure(memory_, q_, out_, block_lists_, prefill_, decode_, counts_,
                                partials_, arrivals_));
  }

  // Prompts by mma.sync, or by wgmma.
  absl::Status Add(TimedCase timed, Report& report, bool by_wgmma = false) {
    if (!status_.ok()) {
      return report.Add({timed.name, Verdict::kFail, std::string(status_.message())});
    }
    by_wgmma_ = by_wgmma;
    const bool is_prefill = !plan_.prefill.empty();
    timed.bytes = static_cast<double>(kv_bytes_);
    timed.work =
        WorkOf(input_, memory_.NumPieces(kv_bytes_), [this, is_prefill](void* stream, uint32_t i) {
          const cuda::AttentionParams params = ParamsOf(is_prefill, i);
          return is_prefill ? input_.body.kernels().attention_prefill(params, stream)
                            : input_.body.kernels().attention_decode(params, stream);
        });
    return AddTimed(input_, timed, report).status();
  }

 private:
  static std::vector<uint32_t> Lists(uint32_t num_blocks) {
    std::vector<uint32_t> lists(num_blocks);
    for (uint32_t i = 0; i < num_blocks; ++i) lists[i] = i;
    return lists;
  }

  // Elements of q, and elements of out.
  size_t NumElements(const TimedRows& timed) const {
    return size_t{timed.num_sequences} * timed.rows * shape_.num_heads * shape_.head_dim;
  }

  absl::Status Plan(const TimedRows& timed) {
    const uint32_t rows = timed.rows;
    std::vector<cuda::AttentionRows> spans;
    for (uint32_t i = 0; i < timed.num_sequences; ++i) {
      spans.push_back({i, i * rows, rows, timed.context - rows});
    }
    const bool has_spread = input_.body.kernels().has_spread(shape_.head_dim, kv_.element);
    return cuda::PlanAttention({shape_.num_heads, shape_.num_kv_heads, 0},
                               {.num_decode_ctas = kDecodeCtas,
                                .max_partials = kMaxPartials,
                                .num_spread_ctas = has_spread ? kSpreadCtas : 0},
                               spans, plan_);
  }

  cuda::AttentionParams ParamsOf(bool is_prefill, uint32_t i) {
    const auto count =
        static_cast<uint32_t>(is_prefill ? plan_.prefill.size() : plan_.decode.size());
    cuda::AttentionParams params = {
        .q = reinterpret_cast<const Bf16*>(q_.Piece(0, 0)),
        .out = out_.data(),
        .kv = kv_,
        .block_lists = block_lists_.data(),
        .items = is_prefill ? prefill_.data() : decode_.data(),
        .num_items = counts_.data() + (is_prefill ? 0 : 1),
        .partials = partials_.data(),
        .arrivals = arrivals_.data(),
        .max_blocks = max_blocks_,
        .num_heads = shape_.num_heads,
        .window = 0,
        .scale = 0.088388f,  // 1 / sqrt(128)
        .num_ctas = std::min(count, is_prefill ? kPrefillCtas : kDecodeCtas),
        .by_wgmma = by_wgmma_,
        .is_spread = plan_.is_spread};
    params.kv.base = memory_.Piece(kv_bytes_, i);
    return params;
  }

  const StageInput& input_;
  const ModelShape& shape_;
  cuda::KvBlocks kv_;
  uint32_t max_blocks_;
  std::vector<uint32_t> lists_;
  cuda::AttentionPlan plan_;
  absl::Status status_;
  size_t kv_bytes_;
  bool by_wgmma_ = false;
  RandomMemory memory_;
  RandomMemory q_;
  DeviceArray<Bf16> out_;
  DeviceArray<uint32_t> block_lists_;
  DeviceArray<cuda::AttentionItem> prefill_;
  DeviceArray<cuda::AttentionItem> decode_;
  DeviceArray<uint32_t> counts_;
  DeviceArray<std::byte> partials_;
  DeviceArray<uint32_t> arrivals_;
};

absl::Status AddAttention(const StageInput& input, cuda::KvElement element, Report& report) {
  const ModelShape& shape = ShapeFor(input.is_tiny);
  const bool is_fp8 = element == cuda::KvElement::kFp8;
  const std::string name = is_fp8 ? "attention fp8" : "attention";
  for (const DecodeShape& decode : DecodeShapes(input.is_tiny)) {
    AttentionTiming timing(input, element, {decode.num_rows, 1, decode.context});
    TimedCase timed = {.name = fmt::format("{} b {} x {}", name, decode.num_rows, decode.context)};
    const size_t kv_bytes = size_t{is_fp8 ? 2u : 4u} * decode.num_rows * decode.context *
                            shape.num_kv_heads * shape.head_dim;
    timed.target = DecodeAttentionTarget({decode.num_rows, decode.context, kv_bytes, is_fp8});
    BATON_RETURN_IF_ERROR(timing.Add(timed, report));
  }
  const uint32_t rows = input.is_tiny ? 66 : 2048;
  AttentionTiming timing(input, element, {1, rows, rows});
  const double pairs = 0.5 * rows * (rows + 1) * shape.num_heads;
  TimedCase timed = {.name = fmt::format("{} prefill {}", name, rows),
                     .flops = 4 * pairs * shape.head_dim};
  BATON_RETURN_IF_ERROR(timing.Add(timed, report));
  if (input.major != 9) return absl::OkStatus();
  timed.name = fmt::format("{} wgmma prefill {}", name, rows);
  return timing.Add(timed, report, /*by_wgmma=*/true);
}

// The kernels that work row by row. Their data is in L2 where it fits, as in a step.
class RowTiming {
 public:
  RowTiming(const StageInput& input, uint32_t rows)
      : input_(input),
        shape_(ShapeFor(input.is_tiny)),
        rows_(rows),
        in_(input, Bytes(2 * shape_.ffn_size), 1.0f),
        residual_(input, Bytes(shape_.hidden_size), 1.0f),
        out_(input, Bytes(shape_.ffn_size), 1.0f),
        num_blocks_((rows - 1) / kShapeBlockSize + 1),
        kv_(input,
            size_t{4} * num_blocks_ * kShapeBlockSize * shape_.num_kv_heads * shape_.head_dim,
            1.0f),
        cos_sin_(input.body, std::vector<float>(size_t{rows} * shape_.head_dim, 0.5f)),
        taps_(input.body, std::vector<float>(size_t{kNumTaps} * NumChannels(), 0.25f)),
        ids_(input.body, Ascending(rows)),
        zeros_(input.body, std::vector<uint32_t>(rows)),
        lists_(input.body, Ascending(num_blocks_)) {
    status_.Update(FirstFailure(in_, residual_, out_, kv_, cos_sin_, taps_, ids_, zeros_, lists_));
  }

  absl::Status AddAll(Report& report) {
    if (!status_.ok()) {
      return report.Add(
          {fmt::format("rows {}", rows_), Verdict::kFail, std::string(status_.message())});
    }
    const cuda::KernelTable& kernels = input_.body.kernels();
    const uint32_t hidden = shape_.hidden_size;
    const uint32_t ffn = shape_.ffn_size;
    BATON_RETURN_IF_ERROR(Add("rms_norm", 8.0 * hidden, report, [&, hidden](void* stream) {
      return kernels.rms_norm(
          {Data(in_), Data(residual_), Data(in_), Data(out_), rows_, hidden, 1e-5f}, stream);
    }));
    BATON_RETURN_IF_ERROR(Add("silu_mul", 6.0 * ffn, report, [&, ffn](void* stream) {
      return kernels.silu_mul({Data(in_), Data(out_), rows_, ffn}, stream);
    }));
    BATON_RETURN_IF_ERROR(Add("gelu_mul", 6.0 * ffn, report, [&, ffn](void* stream) {
      return kernels.gelu_mul({Data(in_), Data(out_), rows_, ffn}, stream);
    }));
    BATON_RETURN_IF_ERROR(Add("embed", 4.0 * hidden, report, [&, hidden](void* stream) {
      return kernels.embed({Data(in_), ids_.data(), Data(out_), rows_, rows_, hidden}, stream);
    }));
    BATON_RETURN_IF_ERROR(Add("rope_append", 4.0 * shape_.QkvSize(), report, [&](void* stream) {
      return kernels.rope_append(RopeParams(cuda::KvElement::kBf16), stream);
    }));
    const double fp8_bytes = 4.0 * shape_.QkvSize() - 2.0 * shape_.num_kv_heads * shape_.head_dim;
    BATON_RETURN_IF_ERROR(Add("rope_append fp8", fp8_bytes, report, [&](void* stream) {
      return kernels.rope_append(RopeParams(cuda::KvElement::kFp8), stream);
    }));
    return Add("short_conv", 10.0 * NumChannels(), report,
               [&](void* stream) { return kernels.short_conv(ConvParams(), stream); });
  }

 private:
  static std::vector<uint32_t> Ascending(uint32_t count) {
    std::vector<uint32_t> values(count);
    for (uint32_t i = 0; i < count; ++i) values[i] = i;
    return values;
  }
  static Bf16* Data(RandomMemory& memory) { return reinterpret_cast<Bf16*>(memory.Piece(0, 0)); }
  size_t Bytes(uint32_t width) const { return size_t{2} * rows_ * width; }

  template <typename LaunchOne>
  absl::Status Add(const char* kernel, double bytes_a_row, Report& report,
                   const LaunchOne& launch_one) {
    constexpr uint32_t kLaunches = 20;
    const TimedCase timed = {
        .name = fmt::format("{} m {}", kernel, rows_),
        .work = WorkOf(input_, kLaunches,
                       [&launch_one](void* stream, uint32_t) { return launch_one(stream); }),
        .bytes = bytes_a_row * rows_,
        .is_resident = true};
    return AddTimed(input_, timed, report).status();
  }

  cuda::RopeAppendParams RopeParams(cuda::KvElement element) {
    cuda::KvBlocks kv = {kv_.Piece(0, 0), 0,      shape_.num_kv_heads, shape_.head_dim,
                         kShapeBlockSize, element};
    kv.block_stride_bytes = 2 * kv.ValueOffset();
    return {.qkv = Data(in_),
            .q_norm = nullptr,
            .k_norm = nullptr,
            .cos_sin = cos_sin_.data(),
            .positions = ids_.data(),
            .sequences = zeros_.data(),
            .block_lists = lists_.data(),
            .q = Data(out_),
            .kv = kv,
            .num_rows = rows_,
            .num_heads = shape_.num_heads,
            .max_blocks = num_blocks_,
            .eps = 1e-5f,
            .interleaved = true};
  }

  // A convolution as wide as K and V of one layer, of three taps as LFM2 has them.
  static constexpr uint32_t kNumTaps = 3;
  uint32_t NumChannels() const { return 2 * shape_.num_kv_heads * shape_.head_dim; }
  cuda::ShortConvParams ConvParams() {
    const uint32_t channels = NumChannels();
    return {.bcx = Data(in_),
            .taps = taps_.data(),
            .positions = ids_.data(),
            .sequences = zeros_.data(),
            .block_lists = lists_.data(),
            .out = Data(out_),
            .kv = {.base = kv_.Piece(0, 0),
                   .block_stride_bytes = size_t{kShapeBlockSize} * channels * sizeof(Bf16),
                   .row_elements = channels,
                   .block_size = kShapeBlockSize},
            .num_rows = rows_,
            .channels = channels,
            .num_taps = kNumTaps,
            .max_blocks = num_blocks_};
  }

  const StageInput& input_;
  const ModelShape& shape_;
  uint32_t rows_;
  RandomMemory in_;
  RandomMemory residual_;
  RandomMemory out_;
  uint32_t num_blocks_;
  RandomMemory kv_;
  DeviceArray<float> cos_sin_;
  DeviceArray<float> taps_;
  DeviceArray<uint32_t> ids_;
  DeviceArray<uint32_t> zeros_;
  DeviceArray<uint32_t> lists_;
  absl::Status status_;
};

// How all rows of a timed case are chosen.
struct SampleCase {
  std::string_view name;
  RowSampling how;
};

// So many rows of logits, read once (greedy) or several times, the first from memory.
absl::Status AddSampleRows(const StageInput& input, const SampleCase& sample, uint32_t rows,
                           Report& report) {
  // Cold with any L2 when each launch has logits of its own: 131 MB for one row. More launches
  // would only take longer.
  constexpr uint32_t kMostLaunches = 256;
  const uint32_t vocab = ShapeFor(input.is_tiny).vocab_size;
  const size_t bytes = size_t{4} * rows * vocab;
  RandomMemory logits(input, bytes, 8.0f);
  DeviceArray<RowSampling> sampling(input.body, std::vector<RowSampling>(rows, sample.how));
  DeviceArray<uint32_t> tokens(input.body, rows);
  TimedCase timed = {.name = fmt::format("{} m {}", sample.name, rows),
                     .bytes = static_cast<double>(bytes)};
  absl::Status status = logits.status();
  if (status.ok()) status = sampling.status();
  if (status.ok()) status = tokens.status();
  if (!status.ok()) {
    return report.Add({timed.name, Verdict::kFail, std::string(status.message())});
  }
  const uint32_t num_launches = std::min(logits.NumPieces(bytes), kMostLaunches);
  timed.work = WorkOf(input, num_launches, [&](void* stream, uint32_t i) {
    return input.body.kernels().sample(
        {.logits = reinterpret_cast<const float*>(logits.Piece(bytes, i)),
         .rows = sampling.data(),
         .tokens = tokens.data(),
         .num_rows = rows,
         .vocab_size = vocab},
        stream);
  });
  return AddTimed(input, timed, report).status();
}

absl::Status AddSample(const StageInput& input, Report& report) {
  const RowSampling greedy = {.on_device = 1};
  const RowSampling by_top_p = {.seed = 7, .temperature = 1.0f, .top_p = 0.95f, .on_device = 1};
  for (const uint32_t rows :
       input.is_tiny ? std::vector<uint32_t>{2} : std::vector<uint32_t>{1, 8, kMostOutputRows}) {
    for (const SampleCase& sample :
         {SampleCase{"sample greedy", greedy}, SampleCase{"sample", by_top_p}}) {
      BATON_RETURN_IF_ERROR(AddSampleRows(input, sample, rows, report));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTimings(const StageInput& input, Report& report) {
  // Products first, which most targets are about.
  BATON_RETURN_IF_ERROR(AddProducts(input, report));
  for (const uint32_t rows :
       input.is_tiny ? std::vector<uint32_t>{3} : std::vector<uint32_t>{1, 64, 2048}) {
    BATON_RETURN_IF_ERROR(RowTiming(input, rows).AddAll(report));
  }
  for (const cuda::KvElement element : {cuda::KvElement::kBf16, cuda::KvElement::kFp8}) {
    BATON_RETURN_IF_ERROR(AddAttention(input, element, report));
  }
  BATON_RETURN_IF_ERROR(AddSliceTimings(input, report));
  BATON_RETURN_IF_ERROR(AddSample(input, report));
  BATON_RETURN_IF_ERROR(AddExpertsTimings(input, report));
  // The last: ranks that wait for one another end the context when they waited too long.
  return AddExchangeTimings(input, report);
}

}  // namespace baton::kernels::gpu_check
