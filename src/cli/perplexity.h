// Perplexity of a text: exp of the mean negative log-likelihood of its tokens, by the forward pass
// that serves requests. `baton eval --perplexity`.
//
// The text is cut into windows, each computed by itself. Where the model's texts begin with a bos
// (Tokenizer::add_bos), a window is the bos and up to context - 1 tokens, which are all scored;
// else up to `context` tokens, of which the first is not. So no token is scored without one before
// it, and a text that fits is scored in one window.
#ifndef BATON_CLI_PERPLEXITY_H_
#define BATON_CLI_PERPLEXITY_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/ops.h"
#include "src/base/status.h"
#include "src/model/model_config.h"

namespace baton::cli {

// The window when none is named, or the model's context length if that is shorter.
inline constexpr uint32_t kDefaultPerplexityContext = 2048;

// The settings of a computation.
struct PerplexityOptions {
  std::string model_path;  // a GGUF file or a Hugging Face folder
  std::string_view text;   // UTF-8
  uint32_t context = 0;    // tokens of a window, at least 2; 0 = the default
  uint32_t num_threads = 1;
  kernels::Isa isa = kernels::Isa::kAuto;
  kv::KvDtype kv_dtype = kv::KvDtype::kBf16;
};

// The result, and what it was computed with.
struct PerplexityReport {
  std::string model_name;
  std::string isa;
  uint64_t num_tokens = 0;  // of the text, without bos
  uint64_t num_scored = 0;
  uint64_t num_windows = 0;
  uint32_t context = 0;
  double mean_nll = 0;   // nats a scored token
  double nll_error = 0;  // standard error of mean_nll, if tokens were independent
  double load_s = 0;     // reading and packing the model
  double compute_s = 0;  // forward passes and logarithms

  double perplexity() const;
  std::string ToText() const;
  std::string ToJson() const;
};

// One call at a time; runs on this thread and a pool of its own. InvalidArgument for a text of
// fewer than two tokens or no UTF-8, and for a context outside [2, the model's]; DataLoss, naming
// the token, when a likelihood is no number (damaged weights); otherwise the errors of
// OpenModelFile, Tokenizer::Create and Model::Load.
StatusOr<PerplexityReport> MeasurePerplexity(const PerplexityOptions& options);

}  // namespace baton::cli

#endif  // BATON_CLI_PERPLEXITY_H_
