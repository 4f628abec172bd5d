#include "src/api/answer_budget.h"

#include <algorithm>

#include "fmt/format.h"

#include "src/api/json_fields.h"
#include "src/api/prompt_fan_in.h"
#include "src/api/token_log.h"
#include "src/router/retry_estimate.h"

namespace baton::api {

using router::ErrorCode;
using router::GenerateRequest;
using router::PlainError;
using router::RequestError;
using router::RetrySeconds;

namespace {

constexpr double kBytesPerMib = 1 << 20;
// Measured for a message with two short strings and a float, its share of the field's array
// included: libprotobuf 3.21 on x86-64.
constexpr size_t kProtoBytesPerEntry = 144;
// Weight of the latest share in the average of how long shares are held: 1/8.
constexpr int64_t kShareWeight = 8;

double Mib(size_t num_bytes) { return static_cast<double>(num_bytes) / kBytesPerMib; }

}  // namespace

AnswerBudget::Share::~Share() {
  if (budget_ == nullptr) return;
  budget_->used_.fetch_sub(num_bytes_);
  budget_->num_shares_.fetch_sub(1);
  // Two shares that come back at once may count as one: this is an estimate.
  const int64_t held_us = std::max<int64_t>(1, budget_->clock_->NowUs() - since_us_);
  const int64_t mean_us = budget_->held_us_.load();
  budget_->held_us_.store(mean_us == 0 ? held_us : mean_us + (held_us - mean_us) / kShareWeight);
}

bool AnswerBudget::Share::TryGrow(size_t num_bytes) {
  if (!budget_->TryAdd(num_bytes)) return false;
  num_bytes_ += num_bytes;
  return true;
}

bool AnswerBudget::TryAdd(size_t num_bytes) {
  size_t used = used_.load();
  do {
    if (num_bytes > kMaxBytes - used) return false;
  } while (!used_.compare_exchange_weak(used, used + num_bytes));
  return true;
}

bool AnswerBudget::TryTake(size_t num_bytes, Share* share) {
  if (!TryAdd(num_bytes)) return false;
  num_shares_.fetch_add(1);
  share->budget_ = this;
  share->num_bytes_ = num_bytes;
  share->since_us_ = clock_->NowUs();
  return true;
}

RequestError AnswerBudget::FullError() const {
  RequestError error = PlainError(ErrorCode::kQueueFull);
  error.retry_after_s = RetrySeconds(held_us_.load() / std::max<int64_t>(1, num_shares_.load()));
  return error;
}

bool AnswerRoom::AddToken(RequestError* error) {
  if (bytes_per_token_ == 0) return true;
  const size_t wanted_bytes = filled_bytes_ + bytes_per_token_;
  if (wanted_bytes > AnswerBudget::kMaxBytesOfOne) {
    return Fail(
        error, ErrorCode::kConflict, max_tokens_field_,
        fmt::format("without it the log-probabilities of this answer came to take {:.0f} MiB, and "
                    "a whole answer has room for no more; stream it, or ask for fewer choices, "
                    "tokens or alternatives",
                    Mib(AnswerBudget::kMaxBytesOfOne)));
  }
  if (wanted_bytes > share_.num_bytes() && !share_.TryGrow(kStepBytes)) {
    *error = budget_->FullError();
    return false;
  }
  filled_bytes_ = wanted_bytes;
  return true;
}

size_t AnswerBytesPerToken(AnswerForm form, size_t num_top) {
  const size_t collected = TokenLog::BytesOf(num_top);
  return form == AnswerForm::kJson ? collected : collected + (1 + num_top) * kProtoBytesPerEntry;
}

namespace {

// Bytes of the log-probabilities of the prompts. A whole answer over gRPC has them once for each
// choice. A stream has those of the prompts under way, once, in its own form; as JSON they take
// about as much as in protobuf.
size_t PromptLogBytes(const BuiltRequest& built, AnswerForm form) {
  const AnswerPlan& plan = built.plan;
  if (!plan.logs_prompt()) return 0;
  size_t num_tokens = 0;
  size_t most_tokens = 0;
  for (const PlannedPrompt& prompt : plan.prompts) {
    num_tokens += prompt.tokens.size();
    most_tokens = std::max(most_tokens, prompt.tokens.size());
  }
  if (plan.stream) {
    num_tokens = std::min(num_tokens, most_tokens * PromptFanIn::kAtOnce);
    return num_tokens * AnswerBytesPerToken(AnswerForm::kProto, plan.top_of_prompt());
  }
  const size_t num_copies = form == AnswerForm::kProto ? plan.num_choices : 1;
  return num_copies * num_tokens * AnswerBytesPerToken(form, plan.top_of_prompt());
}

}  // namespace

namespace {

// Reserves the room of the vectors. They are written in pieces, so that their JSON takes none.
bool ReserveEmbeddings(const BuiltRequest& built, AnswerBudget* budget, AnswerRoom* room,
                       RequestError* error) {
  const AnswerPlan& plan = built.plan;
  const size_t num_bytes = plan.prompts.size() * size_t{plan.model->embedding_size} * sizeof(float);
  if (num_bytes > AnswerBudget::kMaxBytesOfOne) {
    return Fail(
        error, ErrorCode::kConflict, built.request.fields.prompt,
        fmt::format("the vectors of {} inputs take {:.0f} MiB, and an answer has "
                    "room for {:.0f} MiB; send several requests",
                    plan.prompts.size(), Mib(num_bytes), Mib(AnswerBudget::kMaxBytesOfOne)));
  }
  AnswerBudget::Share share;
  if (!budget->TryTake(num_bytes, &share)) {
    *error = budget->FullError();
    return false;
  }
  *room = AnswerRoom(budget, std::move(share), num_bytes, 0, built.request.fields.max_tokens);
  return true;
}

}  // namespace

bool ReserveAnswer(const BuiltRequest& built, AnswerForm form, AnswerBudget* budget,
                   AnswerRoom* room, RequestError* error) {
  if (built.plan.embeds) return ReserveEmbeddings(built, budget, room, error);
  const bool has_logprobs = built.plan.logprobs || built.plan.logs_prompt();
  const bool streams = built.plan.stream;
  if (!has_logprobs || (streams && !built.plan.logs_prompt())) return true;
  const GenerateRequest& request = built.request;
  const size_t prompt_bytes = PromptLogBytes(built, form);
  if (prompt_bytes > AnswerBudget::kMaxBytesOfOne) {
    return Fail(
        error, ErrorCode::kConflict, request.fields.prompt_logprobs,
        fmt::format(
            "the log-probabilities of the prompts take {:.0f} MiB, and an answer has room for "
            "{:.0f} MiB; ask for fewer prompts, choices or alternatives",
            Mib(prompt_bytes), Mib(AnswerBudget::kMaxBytesOfOne)));
  }
  const size_t bytes_per_token =
      built.plan.logprobs && !streams ? AnswerBytesPerToken(form, built.plan.top_logprobs) : 0;
  size_t num_tokens = request.sampling.max_tokens;
  uint32_t most_tokens = request.sampling.max_tokens;
  bool names_length = request.names_length;
  for (const GenerateRequest& other : built.others) {
    num_tokens += other.sampling.max_tokens;
    most_tokens = std::max(most_tokens, other.sampling.max_tokens);
    names_length = names_length && other.names_length;
  }
  // At most 1024 choices of 2^20 tokens of some KiB: no overflow.
  const size_t worst_bytes =
      prompt_bytes + size_t{request.num_choices} * num_tokens * bytes_per_token;
  if (names_length && worst_bytes > AnswerBudget::kMaxBytesOfOne) {
    return Fail(
        error, ErrorCode::kConflict,
        built.num_computed() > 1 && built.others.empty() ? request.fields.choices
                                                         : request.fields.max_tokens,
        fmt::format("the log-probabilities of {} choices of up to {} tokens take {:.0f} MiB, and a "
                    "whole answer has room for {:.0f} MiB; stream it, or ask for fewer choices, "
                    "tokens or alternatives",
                    built.num_computed(), most_tokens, Mib(worst_bytes),
                    Mib(AnswerBudget::kMaxBytesOfOne)));
  }
  const size_t first_bytes =
      names_length ? worst_bytes : std::min(worst_bytes, prompt_bytes + AnswerRoom::kStepBytes);
  AnswerBudget::Share share;
  if (!budget->TryTake(first_bytes, &share)) {
    *error = budget->FullError();
    return false;
  }
  *room = AnswerRoom(budget, std::move(share), prompt_bytes, bytes_per_token,
                     request.fields.max_tokens);
  return true;
}

}  // namespace baton::api
