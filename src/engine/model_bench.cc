#include "src/engine/model_bench.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <utility>

#include "fmt/format.h"

#include "kernels/cpu/machine_limits.h"
#include "kvcache/kv_arena.h"
#include "src/base/clock.h"
#include "src/model/hf_folder.h"
#include "src/model/model.h"

namespace baton::engine {

using device::ThreadPool;
using kernels::AttentionSpan;
using kernels::kThoroughLimits;
using kernels::MachineLimits;
using kernels::MeasureLimits;
using kv::KvArena;
using kv::KvBlockList;
using kv::KvDtypeName;
using kv::KvLayout;
using kv::KvView;
using model::GgufFile;
using model::Model;
using model::ModelBatch;
using model::ModelConfig;
using model::OpenModelFile;

namespace {

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

// The sequences of one case after another, in an arena of their own.
class BenchSequences {
 public:
  BenchSequences(Model* model, KvArena* arena, uint32_t max_rows)
      : model_(model), arena_(arena), max_rows_(max_rows), tokens_(max_rows) {}

  // Gives each stream of the case its blocks.
  void Begin(const ModelBenchCase& c) {
    const uint32_t num_tokens = c.depth + c.num_prompt + c.num_generate;
    const uint32_t num_blocks = arena_->layout().BlocksOfSequence(num_tokens);
    num_token_blocks_ = arena_->layout().BlocksFor(num_tokens);
    blocks_.assign(c.num_streams, {});
    for (uint32_t i = 0; i < c.num_streams * num_blocks; ++i) {
      blocks_[i / num_blocks].push_back(i);
    }
    logits_.resize(size_t{model_->config().vocab_size} * c.num_streams);
  }

  // Computes `num_tokens` of each stream at positions [first_pos, +num_tokens) as prompts, in
  // passes of at most max_rows; logits of the last row.
  Status ComputePrompts(uint32_t first_pos, uint32_t num_tokens) {
    const uint32_t end = first_pos + num_tokens;
    for (const std::vector<uint32_t>& blocks : blocks_) {
      for (uint32_t pos = first_pos; pos < end; pos += max_rows_) {
        const uint32_t count = std::min(max_rows_, end - pos);
        const AttentionSpan span{
            .kv = ListOf(blocks), .first_row = 0, .num_rows = count, .first_pos = pos};
        const uint32_t last_row = count - 1;
        const std::span<const uint32_t> wanted(&last_row, pos + count == end ? 1 : 0);
        BATON_RETURN_IF_ERROR(Forward({&span, 1}, wanted, count, pos));
      }
    }
    return OkStatus();
  }

  // Computes `num_tokens` of each stream one by one, all streams in one pass, each with logits.
  Status Generate(uint32_t first_pos, uint32_t num_tokens) {
    const auto num_rows = static_cast<uint32_t>(blocks_.size());
    std::vector<AttentionSpan> spans;
    std::vector<uint32_t> rows;
    for (uint32_t pos = first_pos; pos < first_pos + num_tokens; ++pos) {
      spans.clear();
      rows.clear();
      for (uint32_t i = 0; i < num_rows; ++i) {
        spans.push_back(
            {.kv = ListOf(blocks_[i]), .first_row = i, .num_rows = 1, .first_pos = pos});
        rows.push_back(i);
      }
      BATON_RETURN_IF_ERROR(Forward(spans, rows, num_rows, pos));
    }
    return OkStatus();
  }

 private:
  KvBlockList ListOf(std::span<const uint32_t> blocks) const {
    return {blocks.first(num_token_blocks_), blocks.subspan(num_token_blocks_)};
  }
  Status Forward(std::span<const AttentionSpan> spans, std::span<const uint32_t> wanted,
                 uint32_t num_rows, uint32_t first_pos) {
    const uint32_t vocab_size = model_->config().vocab_size;
    // Any tokens will do: the work does not depend on them.
    for (uint32_t i = 0; i < num_rows; ++i) {
      tokens_[i] = static_cast<TokenId>((uint64_t{first_pos + i} * 7919 + 13) % vocab_size);
    }
    const ModelBatch batch{
        .token_ids = std::span(tokens_).first(num_rows), .spans = spans, .logit_rows = wanted};
    const KvView view{
        .base = arena_->base(), .layout = &arena_->layout(), .num_blocks = arena_->num_blocks()};
    return model_->Forward(batch, view, nullptr,
                           std::span(logits_).first(wanted.size() * vocab_size));
  }

  Model* const model_;
  KvArena* const arena_;
  const uint32_t max_rows_;
  std::vector<std::vector<uint32_t>> blocks_;  // [stream], those of its tokens first
  uint32_t num_token_blocks_ = 0;              // of a stream; the others hold its state
  std::vector<TokenId> tokens_;
  std::vector<float> logits_;
};

StatusOr<double> TimeOnce(const ModelBenchCase& c, BenchSequences* sequences) {
  const int64_t start_us = SystemClock().NowUs();
  if (c.num_prompt > 0) {
    BATON_RETURN_IF_ERROR(sequences->ComputePrompts(c.depth, c.num_prompt));
  } else {
    BATON_RETURN_IF_ERROR(sequences->Generate(c.depth, c.num_generate));
  }
  const int64_t elapsed_us = std::max<int64_t>(1, SystemClock().NowUs() - start_us);
  return (c.num_prompt + c.num_generate) * c.num_streams * 1e6 / static_cast<double>(elapsed_us);
}

// Keys that a row at one of some positions meets, on average, summed over the layers.
struct RowKeys {
  double kv_elements = 0;  // of K and V, or of latent rows
  double products = 0;     // with each key and its value
};

RowKeys KeysPerRow(const ModelConfig& config, uint32_t first_pos, uint32_t count) {
  RowKeys sum;
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.IsAttention(layer)) continue;
    double keys = 0;
    for (uint32_t pos = first_pos; pos < first_pos + count; ++pos) {
      keys += config.IsLocal(layer) ? std::min(pos + 1, config.window) : pos + 1;
    }
    sum.kv_elements += keys / count * config.KvElements(layer);
    sum.products += keys / count * config.ProductsPerKey(layer);
  }
  return sum;
}

ModelBenchWork WorkOf(const ModelBenchCase& c, const Model& model, const MachineLimits& limits) {
  const ModelConfig& config = model.config();
  const RowKeys keys = KeysPerRow(config, c.depth, c.num_prompt + c.num_generate);
  ModelBenchWork work;
  if (c.num_generate > 0) {
    // A slice's bytes hold elements and scales; the weights are read once for all streams.
    const KvLayout& layout = model.layout();
    work.limit = "read";
    const size_t row_elements = layout.num_pieces() * layout.num_kv_heads * layout.head_dim;
    const double element_bytes = static_cast<double>(layout.SliceBytes()) /
                                 static_cast<double>(layout.block_size * row_elements);
    work.per_token = static_cast<double>(model.bytes_read_per_step()) / c.num_streams +
                     element_bytes * keys.kv_elements;
    work.limit_per_s = limits.read_gb_per_s * 1e9;
    return work;
  }
  // A product and a sum for each weight, and for each key of q * k and of p * v.
  const bool int16 = model.computes_in_int16();
  work.limit = int16 ? "int16" : "fp32";
  work.per_token = 2.0 * static_cast<double>(config.WeightsPerRow()) + 2.0 * keys.products;
  work.limit_per_s = (int16 ? limits.int16_gop_per_s : limits.fp32_gflop_per_s) * 1e9;
  return work;
}

StatusOr<ModelBenchRow> RunCase(const ModelBenchCase& c, uint32_t repetitions,
                                BenchSequences* sequences) {
  sequences->Begin(c);
  if (c.depth > 0) BATON_RETURN_IF_ERROR(sequences->ComputePrompts(0, c.depth));
  BATON_RETURN_IF_ERROR(TimeOnce(c, sequences).status());  // warms caches and pages
  ModelBenchRow row{.bench_case = c, .work = {}, .tokens_per_s = {}};
  for (uint32_t i = 0; i < repetitions; ++i) {
    BATON_ASSIGN_OR_RETURN(const double tokens_per_s, TimeOnce(c, sequences));
    row.tokens_per_s.push_back(tokens_per_s);
  }
  return row;
}

}  // namespace

std::string ModelBenchCase::Name() const {
  const std::string name =
      num_prompt > 0 ? fmt::format("pp{}", num_prompt) : fmt::format("tg{}", num_generate);
  const std::string streams = num_streams > 1 ? fmt::format("x{}", num_streams) : "";
  return name + streams + (depth > 0 ? fmt::format("@{}", depth) : "");
}

std::vector<ModelBenchCase> DefaultModelBenchCases() {
  return {{.num_prompt = 128},
          {.num_prompt = 512},
          {.num_prompt = 2000},
          {.num_generate = 64},
          {.num_generate = 64, .depth = 2000}};
}

double ModelBenchRow::median() const {
  std::vector<double> sorted = tokens_per_s;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

StatusOr<ModelBenchReport> RunModelBench(
    const ModelBenchOptions& options, const std::function<void(const ModelBenchRow&)>& progress) {
  if (options.repetitions == 0 || options.max_rows == 0) {
    return InvalidArgument("repetitions {} and max_rows {} are at least 1", options.repetitions,
                           options.max_rows);
  }
  const uint32_t max_streams = std::min(options.max_rows, kMaxBenchStreams);
  for (const ModelBenchCase& c : options.cases) {
    if (c.num_streams > 0 && c.num_streams <= max_streams) continue;
    return InvalidArgument("case {} has {} streams, outside [1, {}]", c.Name(), c.num_streams,
                           max_streams);
  }
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, OpenModelFile(options.model_path));
  ThreadPool pool(options.num_threads);
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                         Model::Load(*file, {.pool = &pool,
                                             .isa = options.isa,
                                             .kv_dtype = options.kv_dtype,
                                             .max_rows = options.max_rows}));
  uint32_t num_blocks = 1;
  for (const ModelBenchCase& c : options.cases) {
    const uint64_t tokens = uint64_t{c.depth} + c.num_prompt + c.num_generate;
    if (tokens == c.depth || tokens > model->max_context()) {
      return InvalidArgument("case {} computes up to token {}, outside [1, {}]", c.Name(), tokens,
                             model->max_context());
    }
    num_blocks =
        std::max(num_blocks,
                 c.num_streams * model->layout().BlocksOfSequence(static_cast<uint32_t>(tokens)));
  }
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<KvArena> arena,
                         KvArena::Create(model->layout(), num_blocks));
  BenchSequences sequences(model.get(), arena.get(), options.max_rows);
  ModelBenchReport report{.model_path = options.model_path,
                          .model_name = model->config().name,
                          .isa = std::string(model->ops().name),
                          .processor = ProcessorName(),
                          .kv_dtype = std::string(KvDtypeName(options.kv_dtype)),
                          .num_threads = options.num_threads,
                          .chunk = options.max_rows,
                          .weight_bytes = model->weight_bytes(),
                          .rows = {}};
  const MachineLimits limits = MeasureLimits(pool, model->ops().isa, kThoroughLimits);
  for (const ModelBenchCase& c : options.cases) {
    BATON_ASSIGN_OR_RETURN(ModelBenchRow row, RunCase(c, options.repetitions, &sequences));
    row.work = WorkOf(c, *model, limits);
    if (progress) progress(row);
    report.rows.push_back(std::move(row));
  }
  return report;
}

}  // namespace baton::engine
