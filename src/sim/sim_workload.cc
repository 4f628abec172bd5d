#include "src/sim/sim_workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "src/base/check.h"
#include "src/sim/sim_model.h"
#include "src/sim/sim_worker.h"
#include "src/text/byte_letters.h"
#include "src/text/tokenizer.h"

namespace baton::sim {

using loadgen::kTraceBlockTokens;
using loadgen::RandomDraws;
using loadgen::TraceRow;
using router::ModelInfo;
using router::TenantOfSalt;
using text::ByteLetter;
using text::StopMatcher;
using text::Tokenizer;
using text::TokenizerSpec;
using text::TokenType;
using wire::SamplingParams;

namespace {

// Beginnings that prompts share, so that the prefix caches have something to find.
constexpr uint64_t kNumShared = 12;
// Half of the requests have a salt, so that equal beginnings of two salts meet in one cache.
constexpr std::array<std::string_view, 4> kSalts = {"", "a", "", "b"};
constexpr double kSharedShare = 0.3;
constexpr double kCancelShare = 0.01;
constexpr int64_t kTimeoutUs = 60'000'000;

TokenId AnyToken(RandomDraws& draws) {
  return static_cast<TokenId>(1 + draws.Below(kSimVocab - 1));
}

uint32_t LogUniformCount(RandomDraws& draws, uint32_t max) {
  const double value = LogUniform(draws, 1.0, static_cast<double>(max) + 1);
  return std::clamp(static_cast<uint32_t>(value), 1u, max);
}

std::shared_ptr<const ModelInfo> MakeModelInfo() {
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre = "gpt-2";
  spec.tokens.push_back("<eos>");
  spec.token_types.push_back(static_cast<int32_t>(TokenType::kControl));
  // Two tokens are the halves of one character, as in real vocabularies.
  const std::string bytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01234567 \xc3\xa9";
  for (const char byte : bytes) {
    spec.tokens.push_back(ByteLetter(static_cast<uint8_t>(byte)));
    spec.token_types.push_back(static_cast<int32_t>(TokenType::kNormal));
  }
  BATON_CHECK(spec.tokens.size() == kSimVocab, "{} tokens", spec.tokens.size());
  spec.eos_id = static_cast<uint32_t>(kSimEos);
  auto tokenizer = Tokenizer::Create(spec);
  BATON_CHECK(tokenizer.ok(), "{}", tokenizer.status().ToString());
  auto info = std::make_shared<ModelInfo>();
  info->id = "toy";
  info->created_unix_s = 1'700'000'000;
  info->max_context = kSimContext;
  info->vocab_size = kSimVocab;
  info->tokenizer = *std::move(tokenizer);
  return info;
}

}  // namespace

std::shared_ptr<const ModelInfo> SimModelInfo() {
  static const std::shared_ptr<const ModelInfo> info = MakeModelInfo();
  return info;
}

SimWorkload::SimWorkload(uint64_t seed, double rate, const std::vector<TraceRow>* trace,
                         uint32_t max_output)
    : seed_(seed),
      rate_(rate),
      max_output_(max_output),
      trace_(trace),
      arrivals_(StreamSeed(seed, DrawPurpose::kArrivals)) {
  if (trace_ == nullptr) return;
  uint32_t max_input = 1;
  uint32_t longest_output = 1;
  for (const TraceRow& row : *trace_) {
    max_input = std::max(max_input, row.num_input);
    longest_output = std::max(longest_output, row.num_output);
  }
  prompt_scale_ = std::min(1.0, static_cast<double>(kMaxPrompt) / max_input);
  output_scale_ = std::min(1.0, static_cast<double>(max_output_) / longest_output);
}

int64_t SimWorkload::GapUs(uint64_t number) {
  if (trace_ != nullptr) {
    if (number + 1 >= trace_->size()) return 0;
    return (*trace_)[number + 1].start_us - (*trace_)[number].start_us;
  }
  return static_cast<int64_t>(arrivals_.Exponential() / rate_ * 1e6);
}

std::vector<TokenId> SimWorkload::MakePrompt(RandomDraws& draws, uint64_t number) const {
  if (trace_ != nullptr) return TracePrompt((*trace_)[number]);
  const uint32_t num_tokens = LogUniformCount(draws, kMaxPrompt);
  std::vector<TokenId> prompt;
  prompt.reserve(num_tokens);
  if (Happens(draws, kSharedShare)) {
    RandomDraws shared(StreamSeed(seed_, DrawPurpose::kFill, draws.Below(kNumShared)));
    const uint64_t num_shared = std::min<uint64_t>(num_tokens, 8 + shared.Below(120));
    while (prompt.size() < num_shared) prompt.push_back(AnyToken(shared));
  }
  while (prompt.size() < num_tokens) prompt.push_back(AnyToken(draws));
  return prompt;
}

// Equal blocks of a trace at equal places give equal tokens.
std::vector<TokenId> SimWorkload::TracePrompt(const TraceRow& row) const {
  const auto scaled = [this](uint32_t num_tokens) {
    return std::clamp(static_cast<uint32_t>(std::ceil(num_tokens * prompt_scale_)), 1u, kMaxPrompt);
  };
  const uint32_t num_tokens = scaled(row.num_input);
  const uint32_t tokens_per_block = scaled(kTraceBlockTokens);
  std::vector<TokenId> prompt;
  prompt.reserve(num_tokens);
  size_t block = 0;
  RandomDraws rest(StreamSeed(seed_, DrawPurpose::kFill, kNumShared + row.num_input));
  while (prompt.size() < num_tokens) {
    const uint64_t id = block < row.block_ids.size() ? row.block_ids[block] : rest.NextU64();
    RandomDraws draws(StreamSeed(seed_, DrawPurpose::kFill, SplitMix(id) + block));
    for (uint32_t i = 0; i < tokens_per_block && prompt.size() < num_tokens; ++i) {
      prompt.push_back(AnyToken(draws));
    }
    ++block;
  }
  return prompt;
}

void SimWorkload::DrawSampling(RandomDraws& draws, SimRequest* out) const {
  SamplingParams& sampling = out->request.sampling;
  sampling.seed = draws.NextU64();
  sampling.temperature = 0;
  sampling.ignore_eos = Happens(draws, 0.5);
  if (Happens(draws, 0.25)) {
    sampling.temperature = static_cast<float>(0.5 + draws.Uniform());
    if (Happens(draws, 0.3)) sampling.top_p = 0.9f;
    if (Happens(draws, 0.3)) sampling.top_k = 20;
  }
  if (Happens(draws, 0.1)) {
    sampling.presence_penalty = 0.5f;
    sampling.frequency_penalty = 0.25f;
    sampling.repetition_penalty = 1.1f;
  }
  if (Happens(draws, 0.05)) {
    sampling.logprobs = true;
    sampling.top_logprobs = static_cast<uint32_t>(draws.Below(4));
  }
  if (Happens(draws, 0.05)) {
    sampling.min_tokens = static_cast<uint32_t>(draws.Below(sampling.max_tokens + 1));
  }
  if (Happens(draws, 0.03)) sampling.stop_token_ids.push_back(AnyToken(draws));
  if (Happens(draws, 0.04)) {
    out->request.num_choices = 2 + static_cast<uint32_t>(draws.Below(3));
  }
  if (Happens(draws, 0.05)) {
    out->stops.push_back(std::string(1, static_cast<char>('a' + draws.Below(26))));
    out->stops.push_back("\xc3\xa9");
    auto matcher = StopMatcher::Create(out->stops);
    BATON_CHECK(matcher.ok(), "{}", matcher.status().ToString());
    out->request.stop = *std::move(matcher);
  }
}

// From a stream of its own: the rest of the request stays as it is without them.
void SimWorkload::DrawRareFields(SimRequest* out) const {
  RandomDraws draws(StreamSeed(seed_, DrawPurpose::kRareFields, out->number));
  out->request.priority = static_cast<int32_t>(draws.Below(7)) - 3;
  out->request.reports_progress = Happens(draws, 0.5);
  SamplingParams& sampling = out->request.sampling;
  if (sampling.temperature > 0 && Happens(draws, 0.5)) sampling.min_p = 0.05f;
  if (Happens(draws, 0.2)) {
    const TokenId token = AnyToken(draws);
    sampling.logit_bias = {{token, 4.0f}, {token == 1 ? 2 : 1, -4.0f}};
  }
  if (Happens(draws, 0.1)) sampling.stop_token_ids = {AnyToken(draws), AnyToken(draws)};
}

SimRequest SimWorkload::Make(uint64_t number) const {
  RandomDraws draws(StreamSeed(seed_, DrawPurpose::kRequest, number));
  SimRequest out;
  out.number = number;
  out.uid = {draws.NextU64(), draws.NextU64() | 1};
  out.request.model = SimModelInfo();
  out.request.prompt = MakePrompt(draws, number);
  out.request.tenant = TenantOfSalt(kSalts[number % kSalts.size()]);
  uint32_t num_output = LogUniformCount(draws, max_output_);
  if (trace_ != nullptr) {
    const double scaled = (*trace_)[number].num_output * output_scale_;
    num_output = std::clamp(static_cast<uint32_t>(std::lround(scaled)), 1u, max_output_);
  }
  out.request.sampling.max_tokens = num_output;
  out.request.timeout_us = kTimeoutUs;
  DrawSampling(draws, &out);
  if (has_rare_fields_) DrawRareFields(&out);
  if (Happens(draws, kCancelShare)) out.cancel_after_us = LogUniformUs(draws, 100, 100'000);
  return out;
}

}  // namespace baton::sim
