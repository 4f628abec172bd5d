#include "src/api/build_request.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/ascii.h"
#include "fmt/format.h"

#include "src/api/answer_form.h"
#include "src/api/json_fields.h"
#include "src/api/read_json.h"
#include "src/api/schema.h"
#include "src/api/tool_messages.h"
#include "src/api/tool_params.h"
#include "src/api/tool_request.h"
#include "src/base/ascii_text.h"
#include "src/base/limits.h"
#include "src/base/log.h"
#include "src/base/numbered_text.h"
#include "src/base/priority.h"
#include "src/base/quoted_text.h"
#include "src/base/random.h"
#include "src/text/chat_encoder.h"
#include "src/text/reasoning_splitter.h"

namespace baton::api {

using limits::kMaxEncodeBytes;
using limits::kMaxPromptLogprobs;
using limits::kMaxPrompts;
using limits::kMaxPromptTokens;
using limits::kMaxRequestIdBytes;
using router::ContextLengthError;
using router::ErrorCode;
using router::FieldError;
using router::GenerateRequest;
using router::ModelDirectory;
using router::ModelFound;
using router::ModelInfo;
using router::PlainError;
using router::RequestError;
using router::Submitter;
using router::TenantOfKey;
using text::ChatMessage;
using text::ChatPrompt;
using text::ChatTemplate;
using text::EncodeChat;
using text::EncodeOptions;
using text::PromptOpensReasoning;
using text::RenderOptions;
using text::StopMatcher;
using text::TemplateThinks;
using wire::AnswerGrammar;
using wire::GrammarStart;
using wire::SamplingParams;

namespace {

// OpenAI's defaults.
constexpr int64_t kDefaultCompletionTokens = 16;
constexpr std::string_view kGrpcTimeout = "grpc-timeout";
// An answer shows at most so much of a template's own words.
constexpr size_t kMaxTemplateReasonBytes = 512;

// The rules that join two fields.
bool CheckCombinations(const ApiParams& params, const Arrival& arrival, RequestError* error) {
  const bool is_chat = IsConversation(arrival.endpoint);
  const int64_t n = params.n.value_or(1);
  const int64_t best_of = params.best_of.value_or(n);
  const bool stream = arrival.stream || params.stream.value_or(false);
  if (!CheckTools(params, error)) return false;
  if (is_chat && params.messages.empty()) {
    return Fail(error, ErrorCode::kMissingField, params.names.messages, kExpectedMessages);
  }
  const int num_prompt_fields =
      params.prompt.has_value() + !params.prompt_token_field.empty() + !params.prompts.empty();
  if (!is_chat && num_prompt_fields != 1) {
    const bool both = num_prompt_fields > 1;
    return Fail(error, both ? ErrorCode::kConflict : ErrorCode::kMissingField, "prompt",
                both ? "only one of prompt and prompt_token_ids may be given" : kExpectedPrompt);
  }
  if (params.top_logprobs.has_value() && *params.top_logprobs > 0 &&
      !params.logprobs.value_or(false)) {
    return Fail(error, ErrorCode::kConflict, "top_logprobs", "it needs logprobs to be true");
  }
  if (best_of < n) return Fail(error, ErrorCode::kConflict, "best_of", "it must be at least n");
  const size_t num_computed = params.prompts.size() * static_cast<size_t>(best_of);
  if (num_computed > kMaxPrompts) {
    return Fail(
        error, ErrorCode::kConflict, best_of > n ? "best_of" : "n",
        fmt::format("{} prompts have {} choices, and a request has at most {}; send several "
                    "requests",
                    params.prompts.size(), num_computed, kMaxPrompts));
  }
  if (best_of > n && stream) {
    return Fail(error, ErrorCode::kConflict, "best_of", "a stream needs it to equal n");
  }
  const bool answers_alone = params.echo.value_or(false) || params.prompt_logprobs.has_value();
  if (params.max_tokens == 0 && !answers_alone) {
    return Fail(error, ErrorCode::kConflict, "max_tokens", "0 needs echo to be true");
  }
  // A tenant may step back, but not before others.
  if (!arrival.tenant.empty() && params.priority.value_or(0) < 0) {
    return Fail(error, ErrorCode::kInvalidValue, "priority",
                kNumberedText<"with an API key an integer from 0 to {}", kMaxPriority>);
  }
  if (params.has_stream_options && !stream) {
    return Fail(error, ErrorCode::kConflict, "stream_options", "it needs stream to be true");
  }
  return true;
}

bool CheckTokenIds(const ModelInfo& model, const std::vector<int64_t>& ids, std::string_view field,
                   RequestError* error) {
  for (const int64_t id : ids) {
    if (id >= 0 && id < model.vocab_size) continue;
    return Fail(error, ErrorCode::kInvalidValue, field,
                fmt::format("token ids from 0 to the model's last, {}", model.vocab_size - 1));
  }
  return true;
}

static_assert(kMaxEchoBytes * 6 < kMaxOpeningBytes, "JSON writes a byte as 6 at worst");
// A gRPC client takes such a message unless it was told otherwise.
constexpr size_t kMaxGrpcMessageBytes = size_t{4} << 20;
static_assert(kMaxOpeningBytes < kMaxGrpcMessageBytes, "the event is one message over gRPC");
static_assert(limits::kMaxMessages <= text::kMaxChatMessages);

// Error messages name this promise, which a template broke.
constexpr std::string_view kRendersInTime =
    kNumberedText<"renders within a second to a prompt of at most {} MiB", (kMaxEncodeBytes >> 20)>;

// True once a second: a client that repeats a refused conversation must not fill the log.
bool MayLog(int64_t wall_unix_ms) {
  static std::atomic<int64_t> last_s{0};
  const int64_t now_s = wall_unix_ms / 1000;
  return last_s.exchange(now_s, std::memory_order_relaxed) != now_s;
}

// Says what a conversation must be, by the reason that the template or its library gave. The reason
// also goes to the log, so that the operator learns about a template that fails.
std::string ExpectedByTemplate(const ModelInfo& model, const Status& status, int64_t wall_unix_ms) {
  const std::string reason = LineForMessage(std::string(status.message()), kMaxTemplateReasonBytes);
  if (MayLog(wall_unix_ms)) {
    BATON_LOG_WARN("model {}: a conversation is refused: {}", model.id, reason);
  }
  const bool is_limit = absl::IsFailedPrecondition(status);
  return fmt::format("a conversation that the model's chat template {}; {}",
                     is_limit ? kRendersInTime : std::string_view("accepts"), reason);
}

// The grammar of an answer begins after the model's thoughts, if it may have any.
GrammarStart GrammarStartOf(std::string_view template_source, std::string_view prompt) {
  if (!TemplateThinks(template_source)) return GrammarStart::kFirstToken;
  if (PromptOpensReasoning(prompt)) return GrammarStart::kAfterThoughts;
  const size_t last = prompt.find_last_not_of(" \t\r\n");
  const bool is_closed =
      last != std::string_view::npos && prompt.substr(0, last + 1).ends_with(text::kThoughtsEnd);
  return is_closed ? GrammarStart::kFirstToken : GrammarStart::kMayThink;
}

// The form that the request asks for, as the grammar of its answer.
bool SetForm(const ApiParams& params, const ModelInfo& model, BuiltRequest* built,
             RequestError* error) {
  if (!HasFormWithoutBlanks(params, error)) return false;
  if (!params.form) return true;
  std::vector<std::string> ignored;
  if (!CheckGrammar(model, params.form_field, *params.form, &ignored, error)) return false;
  AddUnread(ignored, &built->unread);
  auto grammar = std::make_shared<AnswerGrammar>(*params.form);
  grammar->start = built->grammar_start;
  built->request.sampling.grammar = std::move(grammar);
  built->request.fields.grammar = params.form_field;
  for (GenerateRequest& other : built->others) {
    other.sampling.grammar = built->request.sampling.grammar;
    other.fields.grammar = params.form_field;
  }
  built->plan.is_constrained = true;
  return true;
}

// Where a prompt of a completion stands in its request.
struct PromptSource {
  const std::string* text = nullptr;  // null: ids
  const std::vector<int64_t>* ids = nullptr;
  std::string field;  // for errors
};

std::vector<PromptSource> SourcesOf(const ApiParams& params) {
  if (params.prompt.has_value()) return {{&*params.prompt, nullptr, "prompt"}};
  if (params.prompts.empty()) {
    return {{nullptr, &params.prompt_token_ids, std::string(params.prompt_token_field)}};
  }
  std::vector<PromptSource> sources;
  for (const ApiPrompt& prompt : params.prompts) {
    std::string field = fmt::format("prompt[{}]", sources.size());
    const std::string* text = prompt.text.has_value() ? &*prompt.text : nullptr;
    sources.push_back({text, &prompt.token_ids, std::move(field)});
  }
  return sources;
}

// The tokens of the conversation.
bool EncodeMessages(const ApiParams& params, const Arrival& arrival, BuiltRequest* built,
                    RequestError* error) {
  AnswerPlan& plan = built->plan;
  const ModelInfo& model = *plan.model;
  ChatPrompt prompt;
  if (!RenderMessages(model, params, arrival.wall_unix_ms, &prompt, error)) return false;
  built->unread = UnreadVariables(model, params);
  built->request.prompt = std::move(prompt.tokens);
  const std::string& source = model.TemplateFor(params.tools.may_call())->source();
  built->grammar_start = GrammarStartOf(source, prompt.text);
  const bool thinks = TemplateThinks(source);
  plan.splits_reasoning = plan.splits_reasoning && (thinks || plan.has_channels());
  plan.opens_reasoning = plan.splits_reasoning && PromptOpensReasoning(prompt.text);
  return true;
}

// The prompt's tokens, and its text where the answer repeats it.
bool EncodePrompt(const PromptSource& source, const AnswerPlan& plan, GenerateRequest* request,
                  PlannedPrompt* planned, RequestError* error) {
  const ModelInfo& model = *plan.model;
  std::vector<TokenId> tokens;
  if (source.text != nullptr) {
    if (plan.echo) planned->echo_text = *source.text;
    const TextField field = {source.field, *source.text};
    if (!TokenizeText(model, field, {.add_special = true}, &tokens, error)) return false;
    request->prompt = std::move(tokens);
    return true;
  }
  if (!CheckTokenIds(model, *source.ids, source.field, error)) return false;
  tokens.assign(source.ids->begin(), source.ids->end());
  request->prompt = std::move(tokens);
  return !plan.echo || DetokenizeIds(model, *source.ids, source.field, &planned->echo_text, error);
}

// Sets max_tokens and min_tokens of a request with a prompt from what the context leaves. `field`:
// the client's name for that prompt.
bool SetLengths(const ApiParams& params, std::string_view field, const AnswerPlan& plan,
                GenerateRequest* request, RequestError* error) {
  const bool is_chat = IsConversation(plan.endpoint);
  const ModelInfo& model = *plan.model;
  const size_t num_prompt_tokens = request->prompt.size();
  if (num_prompt_tokens == 0) {
    return Fail(error, ErrorCode::kInvalidValue, field, "at least one token long");
  }
  if (num_prompt_tokens >= model.max_context) {
    *error = ContextLengthError(field, static_cast<uint32_t>(num_prompt_tokens), model.max_context);
    if (params.embeds) {
      error->expected = fmt::format("at most {} tokens, one less than max_model_len, it has {}",
                                    model.max_context - 1, num_prompt_tokens);
    }
    return false;
  }
  const int64_t room = static_cast<int64_t>(model.max_context - num_prompt_tokens);
  const std::optional<int64_t> asked =
      params.max_completion_tokens.has_value() ? params.max_completion_tokens : params.max_tokens;
  const int64_t wanted = asked.value_or(is_chat ? room : kDefaultCompletionTokens);
  if (params.max_completion_tokens.has_value()) {
    request->fields.max_tokens = "max_completion_tokens";
  } else {
    request->fields.max_tokens = params.names.max_tokens;
  }
  const int64_t min_tokens = params.min_tokens.value_or(0);
  if (min_tokens > wanted) {
    std::string from = is_chat ? "that the context leaves" : "that are the default";
    if (asked.has_value()) from = fmt::format("of {}", request->fields.max_tokens);
    return Fail(error, ErrorCode::kConflict, "min_tokens",
                fmt::format("it must be at most the {} tokens {}", wanted, from));
  }
  SamplingParams& sampling = request->sampling;
  request->fields.prompt = is_chat                             ? params.names.messages
                           : params.prompt_token_field.empty() ? "prompt"
                                                               : params.prompt_token_field;
  sampling.max_tokens = static_cast<uint32_t>(std::min(wanted, room));
  request->names_length = wanted <= room && (asked.has_value() || !is_chat);
  sampling.min_tokens = static_cast<uint32_t>(std::min(min_tokens, room));
  return true;
}

// Makes built->request, which has everything else, the request of the first prompt, and those of
// further prompts from it.
bool SetPrompts(const ApiParams& params, const Arrival& arrival, BuiltRequest* built,
                RequestError* error) {
  AnswerPlan& plan = built->plan;
  if (IsConversation(plan.endpoint)) {
    if (!EncodeMessages(params, arrival, built, error) ||
        !SetLengths(params, params.names.messages, plan, &built->request, error)) {
      return false;
    }
    plan.prompts.front().num_tokens = static_cast<uint32_t>(built->request.prompt.size());
    return true;
  }
  const std::vector<PromptSource> sources = SourcesOf(params);
  built->others.assign(sources.size() - 1, built->request);
  plan.prompts.assign(sources.size(), {});
  for (size_t i = 0; i < sources.size(); ++i) {
    GenerateRequest* request = i == 0 ? &built->request : &built->others[i - 1];
    // Equal prompts have different answers, unless the client gave the seed.
    if (i > 0 && !request->names_seed) request->sampling.seed = RandomU64();
    if (!EncodePrompt(sources[i], plan, request, &plan.prompts[i], error) ||
        !SetLengths(params, sources[i].field, plan, request, error)) {
      return false;
    }
    plan.prompts[i].num_tokens = static_cast<uint32_t>(request->prompt.size());
  }
  plan.echo_alone = built->request.sampling.max_tokens == 0;
  return true;
}

// Asks for the log-probabilities of the prompts, where the answer has them.
bool SetPromptLog(const ApiParams& params, BuiltRequest* built, RequestError* error) {
  AnswerPlan& plan = built->plan;
  plan.logs_echo = plan.echo && plan.logprobs;
  if (params.prompt_logprobs.has_value()) {
    plan.prompt_logprobs = static_cast<uint32_t>(*params.prompt_logprobs);
  }
  if (!plan.logs_prompt()) return true;
  const std::string_view field = plan.prompt_log_field();
  const uint64_t num_of_token = uint64_t{1} + plan.top_of_prompt();
  const uint64_t limit = plan.stream ? kMaxStreamedPromptLogprobs : kMaxPromptLogprobs;
  for (size_t i = 0; i < plan.prompts.size(); ++i) {
    GenerateRequest& request = i == 0 ? built->request : built->others[i - 1];
    const uint64_t num_entries = request.prompt.size() * num_of_token;
    if (num_entries > limit) {
      return Fail(error, ErrorCode::kConflict, field,
                  fmt::format("a prompt of {} tokens has {} log-probabilities with {} alternatives "
                              "each, and {} has at most {}; ask for {}fewer alternatives",
                              request.prompt.size(), num_entries, num_of_token - 1,
                              plan.stream ? "a stream" : "an answer", limit,
                              plan.stream ? "a whole answer or " : ""));
    }
    plan.prompts[i].tokens = request.prompt;
    request.echoes_alone = plan.echo_alone;
    request.fields.prompt_logprobs = field;
    request.sampling.max_tokens = std::max(request.sampling.max_tokens, 1u);
    // The first token has none.
    if (request.prompt.size() > 1) request.sampling.prompt_logprobs = plan.top_of_prompt();
  }
  return true;
}

// Refuses prompts that would be repeated in more bytes than kMaxEchoBytes.
bool CheckEcho(const BuiltRequest& built, RequestError* error) {
  const uint32_t num_choices = built.request.num_choices;
  size_t num_bytes = 0;
  for (const PlannedPrompt& prompt : built.plan.prompts) num_bytes += prompt.echo_text.size();
  if (num_bytes * num_choices <= kMaxEchoBytes) return true;
  if (!built.others.empty()) {
    return Fail(error, ErrorCode::kConflict, "echo",
                fmt::format("the prompts of {} bytes are repeated for {} choices each, and echo "
                            "has room for {} bytes; send several requests",
                            num_bytes, num_choices, kMaxEchoBytes));
  }
  return Fail(error, ErrorCode::kConflict, num_choices > 1 ? built.request.fields.choices : "echo",
              fmt::format("the prompt of {} bytes is repeated for each choice, and echo has room "
                          "for {} bytes",
                          num_bytes, kMaxEchoBytes));
}

// Names the penalties beyond OpenAI's range of +-2. They are served as they are.
std::string PenaltyWarnings(const ApiParams& params) {
  std::string warnings;
  const auto add = [&warnings](std::string_view name, const std::optional<double>& penalty) {
    if (!penalty.has_value() || (*penalty >= -2.0 && *penalty <= 2.0)) return;
    warnings += fmt::format("{}{} beyond 2", warnings.empty() ? "" : ", ", name);
  };
  add("presence_penalty", params.presence_penalty);
  add("frequency_penalty", params.frequency_penalty);
  return warnings;
}

bool SetSampling(const ApiParams& params, const ModelInfo& model, BuiltRequest* built,
                 RequestError* error) {
  SamplingParams& sampling = built->request.sampling;
  sampling.temperature = static_cast<float>(params.temperature.value_or(1.0));
  sampling.top_p = static_cast<float>(params.top_p.value_or(1.0));
  sampling.top_k = static_cast<uint32_t>(std::max<int64_t>(params.top_k.value_or(0), 0));
  sampling.min_p = static_cast<float>(params.min_p.value_or(0.0));
  sampling.repetition_penalty = static_cast<float>(params.repetition_penalty.value_or(1.0));
  sampling.presence_penalty = static_cast<float>(params.presence_penalty.value_or(0.0));
  sampling.frequency_penalty = static_cast<float>(params.frequency_penalty.value_or(0.0));
  built->warnings = PenaltyWarnings(params);
  sampling.seed = params.seed.has_value() ? static_cast<uint64_t>(*params.seed) : RandomU64();
  built->request.names_seed = params.seed.has_value();
  sampling.ignore_eos = params.ignore_eos.value_or(false);
  if (!CheckTokenIds(model, params.stop_token_ids, "stop_token_ids", error)) return false;
  sampling.stop_token_ids.assign(params.stop_token_ids.begin(), params.stop_token_ids.end());
  std::vector<int64_t> biased;
  for (const auto& [token, bias] : params.logit_bias) {
    biased.push_back(token);
    sampling.logit_bias.push_back(
        {.token = static_cast<TokenId>(token), .bias = static_cast<float>(bias)});
  }
  if (!CheckTokenIds(model, biased, "logit_bias", error)) return false;

  AnswerPlan& plan = built->plan;
  const bool is_chat = IsConversation(plan.endpoint);
  plan.logprobs = is_chat ? params.logprobs.value_or(false) : params.logprobs_count.has_value();
  plan.top_logprobs = static_cast<uint32_t>(is_chat ? params.top_logprobs.value_or(0)
                                                    : params.logprobs_count.value_or(0));
  const int64_t n = params.n.value_or(1);
  const int64_t best_of = params.best_of.value_or(n);
  plan.num_choices = static_cast<uint32_t>(n);
  built->request.num_choices = static_cast<uint32_t>(best_of);
  if (best_of > n) built->request.fields.choices = "best_of";
  // Ranking choices needs their log-probabilities, asked for or not.
  sampling.logprobs = plan.logprobs || best_of > n;
  sampling.top_logprobs = plan.top_logprobs;
  return true;
}

// A form that is complete ends the answer, whatever min_tokens says. Whether that happens depends
// on the answer, so every such request is warned.
void WarnOfEarlyEnd(BuiltRequest* built) {
  if (!built->plan.is_constrained || built->request.sampling.min_tokens == 0) return;
  built->warnings +=
      fmt::format("{}min_tokens ends with the form of {}", built->warnings.empty() ? "" : ", ",
                  built->request.fields.grammar);
}

bool SetStops(const ApiParams& params, GenerateRequest* request, RequestError* error) {
  if (params.stop.empty()) return true;
  StatusOr<StopMatcher> matcher = StopMatcher::Create(params.stop);
  if (!matcher.ok()) {
    return Fail(error, ErrorCode::kInvalidValue, params.names.stop,
                ExpectedOf(*FindParam(Endpoint::kChat, "stop")));
  }
  request->stop = *std::move(matcher);
  return true;
}

void SetNames(const ApiParams& params, const Arrival& arrival, BuiltRequest* built) {
  const bool is_chat = IsConversation(built->plan.endpoint);
  const std::string name = RandomRequestUid().ToHex();
  AnswerPlan& plan = built->plan;
  std::string_view prefix = is_chat ? "chatcmpl-" : "cmpl-";
  if (!arrival.answer_id_prefix.empty()) prefix = arrival.answer_id_prefix;
  plan.id = fmt::format("{}{}", prefix, name);
  plan.request_id = IsUsableRequestId(params.request_id)    ? params.request_id
                    : IsUsableRequestId(arrival.request_id) ? arrival.request_id
                                                            : name;
  plan.created_unix_s = arrival.wall_unix_ms / 1000;
  plan.received_us = arrival.now_us;
  plan.received_unix_us = arrival.wall_unix_ms * 1000;
  plan.stream = arrival.stream || params.stream.value_or(false);
  plan.include_usage = params.include_usage.value_or(false);
  plan.continuous_usage = plan.include_usage && params.continuous_usage_stats.value_or(false);
  plan.echo = params.echo.value_or(false);
  plan.splits_reasoning = is_chat && params.splits_reasoning.value_or(arrival.splits_reasoning);
  plan.stop = params.stop;

  GenerateRequest& request = built->request;
  request.request_id = plan.request_id;
  request.answer_id = plan.id;
  request.is_streamed = plan.stream;
  request.path = params.path;
  request.reports_progress =
      plan.stream && arrival.tells_progress && params.return_progress.value_or(false);
  request.priority = static_cast<int32_t>(params.priority.value_or(0));
  built->tenant = arrival.tenant;
  request.tenant = TenantOfKey(arrival.tenant, params.cache_salt);
  request.trace = arrival.trace;
  request.received_us = arrival.now_us;
  built->timeout_us = params.timeout_ms.value_or(0) * 1000;
  request.timeout_us = built->timeout_us;
  const bool ends_first = request.timeout_us == 0 || arrival.timeout_us < request.timeout_us;
  if (arrival.timeout_us > 0 && ends_first) {
    request.timeout_us = arrival.timeout_us;
    request.fields.timeout = kGrpcTimeout;
  }
}

// Makes the requests of `built` ask for vectors of their prompts. False: the model gives none, or
// none of `params.dimensions` elements, as `error` says.
bool SetEmbeds(const ApiParams& params, BuiltRequest* built, RequestError* error) {
  const ModelInfo& model = *built->plan.model;
  if (model.embedding_size == 0) {
    const std::string expected =
        model.embedding_refusal.empty()
            ? "a model whose workers are of a release that gives embeddings"
            : fmt::format("a model that pools by mean or last token; this one's pooling is \"{}\"",
                          model.embedding_refusal);
    return Fail(error, ErrorCode::kUnsupported, "model", expected);
  }
  if (params.dimensions.has_value() && *params.dimensions != model.embedding_size) {
    return Fail(error, ErrorCode::kUnsupported, "dimensions",
                fmt::format("{}, which the model's vectors have, or absent", model.embedding_size));
  }
  built->plan.embeds = true;
  built->request.embeds = true;
  for (GenerateRequest& other : built->others) other.embeds = true;
  return true;
}

}  // namespace

std::shared_ptr<const ModelInfo> ResolveModel(const Submitter& submitter, const ModelName& name,
                                              RequestError* error) {
  const std::string_view id = name.id;
  const std::shared_ptr<const ModelDirectory> models = submitter.models();
  std::shared_ptr<const ModelInfo> model;
  ModelFound found = models->Find(id, &model);
  // Ollama's clients add this tag to names without one.
  constexpr std::string_view kLatest = ":latest";
  if (found == ModelFound::kUnknown && name.may_have_tag && id.size() > kLatest.size() &&
      id.ends_with(kLatest)) {
    found = models->Find(id.substr(0, id.size() - kLatest.size()), &model);
  }
  switch (found) {
    case ModelFound::kServed:
      break;
    case ModelFound::kNoWorkers:
      if (model != nullptr && name.may_be_gone) break;
      *error = PlainError(ErrorCode::kNoWorkers);
      return nullptr;
    case ModelFound::kNotOne:
      *error = FieldError(ErrorCode::kMissingField, "model",
                          fmt::format("one of {}", models->NameList()));
      break;
    case ModelFound::kUnknown:
      *error = FieldError(ErrorCode::kModelNotFound, "model", models->NameList());
  }
  return model;
}

bool IsOpeningTooLarge(const AnswerPlan& plan, size_t num_bytes, RequestError* error) {
  if (num_bytes <= kMaxOpeningBytes) return false;
  *error = FieldError(ErrorCode::kConflict, plan.prompt_log_field(),
                      fmt::format("the prompt's log-probabilities make an event of {} bytes, and a "
                                  "stream has room for {}; ask for a whole answer or fewer "
                                  "alternatives",
                                  num_bytes, kMaxOpeningBytes));
  return true;
}

bool BuildRequest(const ApiParams& params, const Arrival& arrival, const Submitter& submitter,
                  BuiltRequest* built, RequestError* error) {
  built->plan.endpoint = arrival.endpoint;
  SetNames(params, arrival, built);
  if (!CheckCombinations(params, arrival, error)) return false;
  std::shared_ptr<const ModelInfo> model =
      ResolveModel(submitter,
                   {.id = params.model,
                    .may_have_tag = arrival.may_have_tag,
                    .may_be_gone = !arrival.idempotency_keys.empty()},
                   error);
  if (model == nullptr) return false;
  built->plan.model = model;
  built->request.model = model;
  if (!SetSampling(params, *model, built, error) || !SetStops(params, &built->request, error)) {
    return false;
  }
  SetToolReading(params, arrival.tool_style, built);
  built->plan.tool_metrics = arrival.tool_metrics;
  if (!SetPrompts(params, arrival, built, error) || !CheckEcho(*built, error) ||
      !SetPromptLog(params, built, error) || !SetForm(params, *model, built, error) ||
      !SetToolGrammar(params, built, error)) {
    return false;
  }
  if (params.return_progress.value_or(false) && !built->request.reports_progress) {
    built->unread.emplace_back("return_progress");
  }
  const SamplingParams& sampling = built->request.sampling;
  // The end of a form is the model's own: ignore_eos does not hold there.
  built->plan.ignore_eos = sampling.ignore_eos && !sampling.grammar;
  WarnOfEarlyEnd(built);
  return !params.embeds || SetEmbeds(params, built, error);
}

bool IsUsableRequestId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestIdBytes && IsVisibleAscii(id);
}

bool TokenizeText(const ModelInfo& model, const TextField& field, const EncodeOptions& options,
                  std::vector<TokenId>* tokens, RequestError* error) {
  StatusOr<std::vector<TokenId>> encoded = model.tokenizer->Encode(field.text, options);
  if (!encoded.ok()) {
    return Fail(error, ErrorCode::kInvalidValue, field.name,
                fmt::format("UTF-8 text of at most {} bytes", kMaxEncodeBytes));
  }
  *tokens = *std::move(encoded);
  return true;
}

bool DetokenizeIds(const ModelInfo& model, const std::vector<int64_t>& ids, std::string_view field,
                   std::string* text, RequestError* error) {
  if (ids.size() > kMaxPromptTokens) {
    return Fail(error, ErrorCode::kInvalidValue, field, kExpectedTokenCount);
  }
  if (!CheckTokenIds(model, ids, field, error)) return false;
  const std::vector<TokenId> tokens(ids.begin(), ids.end());
  StatusOr<std::string> decoded = model.tokenizer->Decode(tokens, /*skip_special=*/false);
  if (!decoded.ok()) {
    return Fail(error, ErrorCode::kInvalidValue, field, "token ids of the model");
  }
  *text = *std::move(decoded);
  return true;
}

namespace {

// A template sees all values of messages, documents, tools and chat_template_kwargs. This many fit
// its memory whatever their form; published agents send below 5,000.
constexpr size_t kMaxTemplateValues = 100'000;

// Variables that come in a field of their own; others come in chat_template_kwargs.
bool HasOwnField(std::string_view variable) {
  return variable == "documents" || variable == "tools" || variable == "reasoning_effort";
}

struct JsonSize {
  size_t num_values = 0;
  size_t num_bytes = 0;  // of names and texts
};

void AddJsonSize(const JsonValue& value, JsonSize* size) {
  ++size->num_values;
  if (const std::string* text = value.AsString()) size->num_bytes += text->size();
  if (const JsonValue::Array* array = value.AsArray()) {
    for (const JsonValue& item : *array) AddJsonSize(item, size);
  }
  if (const JsonValue::Object* object = value.AsObject()) {
    for (const auto& [name, member] : *object) {
      size->num_bytes += name.size();
      AddJsonSize(member, size);
    }
  }
}

// False, with an error that names the field, where a template would get too much: the messages and
// its variables count together.
bool CheckTemplateSize(const ApiParams& params, RequestError* error) {
  JsonSize size;
  for (const ChatMessage& message : params.messages) {
    JsonSize members;
    for (const auto& [name, value] : message.members) AddJsonSize(value, &members);
    size.num_values += members.num_values + 1;
    size.num_bytes += std::max(message.content.size(), members.num_bytes);
  }
  std::string_view field = params.names.messages;
  for (size_t i = 0; i <= params.template_variables.size(); ++i) {
    if (size.num_bytes > kMaxEncodeBytes) {
      return Fail(
          error, ErrorCode::kInvalidValue, field,
          fmt::format("at most {} bytes of text, these have {}", kMaxEncodeBytes, size.num_bytes));
    }
    if (size.num_values > kMaxTemplateValues) {
      return Fail(
          error, ErrorCode::kInvalidValue, field,
          fmt::format("at most {} JSON values, these are {}", kMaxTemplateValues, size.num_values));
    }
    if (i == params.template_variables.size()) break;
    const auto& [name, value] = params.template_variables[i];
    field = HasOwnField(name) ? std::string_view(name) : "chat_template_kwargs";
    AddJsonSize(value, &size);
  }
  return true;
}

}  // namespace

bool RenderMessages(const ModelInfo& model, const ApiParams& params, int64_t wall_unix_ms,
                    ChatPrompt* prompt, RequestError* error) {
  const bool continues = params.continue_final_message.value_or(false);
  if (continues && params.add_generation_prompt.value_or(false)) {
    return Fail(error, ErrorCode::kConflict, "continue_final_message",
                "it continues the last message, and add_generation_prompt opens a new one; at most "
                "one of the two may be true");
  }
  if (model.chat_template == nullptr) {
    return Fail(error, ErrorCode::kUnsupported, params.names.messages,
                model.has_broken_template
                    ? "used with a model whose chat template is not broken (the router's log says "
                      "how this one is); /v1/completions works"
                    : "used with a model that has a chat template; /v1/completions works");
  }
  if (!CheckTemplateSize(params, error)) return false;
  const RenderOptions options{
      .add_generation_prompt = params.add_generation_prompt.value_or(!continues),
      .continue_final_message = continues,
      .now_unix_s = wall_unix_ms / 1000,
      .variables = params.template_variables};
  const ChatTemplate& chat_template = *model.TemplateFor(params.tools.may_call());
  const bool rewrites = NeedsToolMessages(chat_template, params);
  StatusOr<ChatPrompt> encoded =
      EncodeChat(*model.tokenizer, chat_template,
                 rewrites ? MessagesWithTools(params) : params.messages, options);
  if (!encoded.ok()) {
    if (IsServerFault(encoded.status(), error)) return false;
    return Fail(error, ErrorCode::kInvalidValue, params.names.messages,
                ExpectedByTemplate(model, encoded.status(), wall_unix_ms));
  }
  *prompt = *std::move(encoded);
  return true;
}

namespace {

// True where the template names a member that holds thoughts: `m.thinking`, `m['reasoning']`. The
// variable `enable_thinking` is none.
bool ReadsThoughts(std::string_view source) {
  for (const std::string_view name : {"reasoning_content", "reasoning", "thinking"}) {
    for (size_t at = source.find(name); at != std::string_view::npos;
         at = source.find(name, at + 1)) {
      const char before = at == 0 ? ' ' : source[at - 1];
      const size_t end = at + name.size();
      const char after = end == source.size() ? ' ' : source[end];
      const bool is_quoted = (before == '\'' || before == '"') && after == before;
      const bool is_attribute = before == '.' && after != '_' && !absl::ascii_isalnum(after);
      if (is_quoted || is_attribute) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<std::string> UnreadVariables(const ModelInfo& model, const ApiParams& params) {
  std::vector<std::string> unread;
  const ChatTemplate* const chat_template = model.TemplateFor(params.tools.may_call());
  for (size_t i = 0; i < params.template_variables.size(); ++i) {
    const auto& [name, value] = params.template_variables[i];
    const JsonValue::Array* list = value.AsArray();
    const bool is_empty = value.is_null() || (list != nullptr && list->empty());
    if (is_empty || chat_template == nullptr || chat_template->Reads(name)) continue;
    // The system message has them instead.
    if (name == "tools" && params.tools.may_call()) continue;
    if (unread.size() == kMaxIgnoredNames) break;
    unread.push_back(params.variable_fields[i]);
  }
  if (chat_template != nullptr && !ReadsThoughts(chat_template->source())) {
    AddUnread(params.thought_fields, &unread);
  }
  return unread;
}

}  // namespace baton::api
