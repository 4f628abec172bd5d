#include "src/cli/perplexity.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "kvcache/kv_arena.h"
#include "src/base/clock.h"
#include "src/device/thread_pool.h"
#include "src/model/hf_folder.h"
#include "src/model/model.h"
#include "src/model/tokenizer_metadata.h"
#include "src/text/spec_from_metadata.h"
#include "src/text/tokenizer.h"

namespace baton::cli {

using device::TaskRange;
using device::ThreadPool;
using kernels::AttentionSpan;
using kv::KvArena;
using kv::KvLayout;
using kv::KvView;
using model::GgufFile;
using model::Model;
using model::ModelBatch;
using model::ModelConfig;
using model::OpenModelFile;
using model::ReadModelConfig;
using text::ReadModelTokenizer;
using text::Tokenizer;
using text::TokenizerSpec;

namespace {

// Rows of one forward pass: as many as have 64 MiB of logits (gemma 3: 64), within the range where
// weights are read seldom enough and activations stay in the cache.
uint32_t RowsOfPass(uint32_t vocab_size) {
  return std::clamp<uint32_t>((64u << 20) / 4 / vocab_size, 16, 256);
}

// -ln of the probability that `logits` give `token`.
double NegativeLogLikelihood(std::span<const float> logits, TokenId token) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  return std::log(sum) + largest - logits[static_cast<size_t>(token)];
}

// Scores windows of one text, one after the other, in the same KV blocks.
class Scorer {
 public:
  Scorer(Model* model, ThreadPool* pool, KvArena* arena)
      : model_(model), pool_(pool), arena_(arena), blocks_(arena->num_blocks()) {
    std::iota(blocks_.begin(), blocks_.end(), 0u);
    logits_.resize(size_t{model->max_rows()} * model->config().vocab_size);
  }

  // Appends the likelihoods of window[1..] to `nll`.
  Status Score(std::span<const TokenId> window, std::vector<double>* nll) {
    // The last token is predicted, not read.
    const uint32_t num_rows = static_cast<uint32_t>(window.size()) - 1;
    for (uint32_t pos = 0; pos < num_rows; pos += model_->max_rows()) {
      const uint32_t count = std::min(model_->max_rows(), num_rows - pos);
      BATON_RETURN_IF_ERROR(Forward(window.subspan(pos, count), pos));
      const size_t first = nll->size();
      nll->resize(first + count);
      const size_t vocab = model_->config().vocab_size;
      pool_->RunRanges(count, 1, pool_->num_threads(), [&](TaskRange range, uint32_t) {
        for (uint32_t i = range.begin; i < range.end; ++i) {
          (*nll)[first + i] = NegativeLogLikelihood(std::span(logits_).subspan(i * vocab, vocab),
                                                    window[pos + i + 1]);
        }
      });
    }
    return OkStatus();
  }

 private:
  Status Forward(std::span<const TokenId> tokens, uint32_t pos) {
    const uint32_t count = static_cast<uint32_t>(tokens.size());
    rows_.resize(count);
    std::iota(rows_.begin(), rows_.end(), 0u);
    const AttentionSpan span{
        .kv = {blocks_, std::span(blocks_).last(arena_->layout().state_blocks)},
        .first_row = 0,
        .num_rows = count,
        .first_pos = pos};
    const ModelBatch batch{.token_ids = tokens, .spans = std::span(&span, 1), .logit_rows = rows_};
    const KvView view{
        .base = arena_->base(), .layout = &arena_->layout(), .num_blocks = arena_->num_blocks()};
    return model_->Forward(batch, view, nullptr,
                           std::span(logits_).first(size_t{count} * model_->config().vocab_size));
  }

  Model* const model_;
  ThreadPool* const pool_;
  KvArena* const arena_;
  std::vector<uint32_t> blocks_;
  std::vector<uint32_t> rows_;
  std::vector<float> logits_;
};

// The model and its tokenizer, loaded for windows of `context` tokens.
struct Loaded {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Model> model;
  uint32_t context = 0;
};

StatusOr<Loaded> Load(const PerplexityOptions& options, ThreadPool* pool) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, OpenModelFile(options.model_path));
  BATON_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(*file));
  Loaded loaded;
  loaded.context = options.context > 0 ? options.context
                                       : std::min(kDefaultPerplexityContext, config.context_length);
  if (loaded.context < 2 || loaded.context > config.context_length) {
    return InvalidArgument("a context of {} tokens is outside [2, {}], the model's", loaded.context,
                           config.context_length);
  }
  BATON_ASSIGN_OR_RETURN(const TokenizerSpec spec, ReadModelTokenizer(*file, options.model_path));
  BATON_ASSIGN_OR_RETURN(loaded.tokenizer, Tokenizer::Create(spec));
  BATON_ASSIGN_OR_RETURN(
      loaded.model,
      Model::Load(*file, {.pool = pool,
                          .isa = options.isa,
                          .kv_dtype = options.kv_dtype,
                          .max_rows = std::min(RowsOfPass(config.vocab_size), loaded.context),
                          .max_context = loaded.context}));
  return loaded;
}

// The likelihoods of all scored tokens; see the header for the windows.
StatusOr<std::vector<double>> ScoreText(const Loaded& loaded, std::span<const TokenId> tokens,
                                        Scorer* scorer, PerplexityReport* report) {
  const bool has_bos = loaded.tokenizer->add_bos();
  const size_t step = loaded.context - (has_bos ? 1 : 0);
  std::vector<double> nll;
  std::vector<TokenId> window;
  for (size_t begin = 0; begin < tokens.size(); begin += step) {
    const std::span<const TokenId> part =
        tokens.subspan(begin, std::min(step, tokens.size() - begin));
    window.clear();
    if (has_bos) window.push_back(*loaded.tokenizer->bos_id());
    window.insert(window.end(), part.begin(), part.end());
    const size_t before = nll.size();
    BATON_RETURN_IF_ERROR(scorer->Score(window, &nll));
    ++report->num_windows;
    for (size_t i = before; i < nll.size(); ++i) {
      if (std::isfinite(nll[i])) continue;
      return DataLoss("the likelihood of token {} is {}: the model's weights are damaged",
                      begin + (i - before) + (has_bos ? 0 : 1), nll[i]);
    }
  }
  return nll;
}

double SecondsSince(int64_t start_us) {
  return static_cast<double>(SystemClock().NowUs() - start_us) / 1e6;
}

}  // namespace

double PerplexityReport::perplexity() const { return std::exp(mean_nll); }

std::string PerplexityReport::ToText() const {
  return fmt::format(
      "perplexity  {:.4f} +- {:.4f}\n"
      "tokens      {}, {} scored in {} {} of up to {}\n"
      "model       {}, {}, loaded in {:.1f} s\n"
      "time        {:.1f} s, {:.1f} tokens/s\n",
      perplexity(), perplexity() * nll_error, num_tokens, num_scored, num_windows,
      num_windows == 1 ? "window" : "windows", context, model_name, isa, load_s, compute_s,
      static_cast<double>(num_scored) / std::max(compute_s, 1e-6));
}

std::string PerplexityReport::ToJson() const {
  const nlohmann::json json = {{"model", model_name},        {"isa", isa},
                               {"perplexity", perplexity()}, {"mean_nll", mean_nll},
                               {"nll_error", nll_error},     {"tokens", num_tokens},
                               {"scored", num_scored},       {"windows", num_windows},
                               {"context", context},         {"load_s", load_s},
                               {"compute_s", compute_s}};
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

StatusOr<PerplexityReport> MeasurePerplexity(const PerplexityOptions& options) {
  ThreadPool pool(options.num_threads);
  const int64_t load_start_us = SystemClock().NowUs();
  BATON_ASSIGN_OR_RETURN(const Loaded loaded, Load(options, &pool));
  PerplexityReport report{.model_name = loaded.model->config().name,
                          .isa = std::string(loaded.model->ops().name),
                          .context = loaded.context,
                          .load_s = SecondsSince(load_start_us)};
  BATON_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, loaded.tokenizer->Encode(options.text));
  report.num_tokens = tokens.size();
  if (tokens.size() < 2) {
    return InvalidArgument("the text has {} tokens; perplexity needs at least 2", tokens.size());
  }
  const KvLayout& layout = loaded.model->layout();
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<KvArena> arena,
                         KvArena::Create(layout, layout.BlocksOfSequence(loaded.context)));
  Scorer scorer(loaded.model.get(), &pool, arena.get());
  const int64_t start_us = SystemClock().NowUs();
  BATON_ASSIGN_OR_RETURN(const std::vector<double> nll,
                         ScoreText(loaded, tokens, &scorer, &report));
  report.compute_s = SecondsSince(start_us);
  report.num_scored = nll.size();
  const double n = static_cast<double>(nll.size());
  report.mean_nll = std::accumulate(nll.begin(), nll.end(), 0.0) / n;
  double squares = 0;
  for (const double x : nll) squares += (x - report.mean_nll) * (x - report.mean_nll);
  report.nll_error = std::sqrt(squares / std::max(n - 1, 1.0) / n);
  return report;
}

}  // namespace baton::cli
