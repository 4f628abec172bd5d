#include "src/api/answer_budget.h"

#include "fmt/format.h"

#include "src/api/token_log.h"

namespace baton {
namespace {

constexpr double kBytesPerMib = 1 << 20;
// Measured for a message with two short strings and a float, its share of the field's array
// included: libprotobuf 3.21 on x86-64.
constexpr size_t kProtoBytesPerEntry = 144;

}  // namespace

bool AnswerBudget::TryTake(size_t num_bytes, Share* share) {
  size_t used = used_.load();
  do {
    if (num_bytes > kMaxBytes - used) return false;
  } while (!used_.compare_exchange_weak(used, used + num_bytes));
  share->budget_ = this;
  share->num_bytes_ = num_bytes;
  return true;
}

size_t AnswerBytesPerToken(AnswerForm form, size_t num_top) {
  const size_t collected = TokenLog::BytesOf(num_top);
  return form == AnswerForm::kJson ? collected : collected + (1 + num_top) * kProtoBytesPerEntry;
}

bool ReserveAnswer(const BuiltRequest& built, AnswerForm form, AnswerBudget* budget,
                   AnswerBudget::Share* share, RequestError* error) {
  if (built.plan.stream || !built.plan.logprobs) return true;
  const GenerateRequest& request = built.request;
  // At most 128 choices of 2^20 tokens of some KiB: no overflow.
  const size_t num_bytes = size_t{request.num_choices} * request.sampling.max_tokens *
                           AnswerBytesPerToken(form, built.plan.top_logprobs);
  if (num_bytes > AnswerBudget::kMaxBytesOfOne) {
    *error = FieldError(
        ErrorCode::kConflict,
        request.num_choices > 1 ? request.fields.choices : request.fields.max_tokens,
        fmt::format("the log-probabilities of {} choices of up to {} tokens take {:.0f} MiB, and a "
                    "whole answer has room for {:.0f} MiB; stream it, or ask for fewer choices, "
                    "tokens or alternatives",
                    request.num_choices, request.sampling.max_tokens,
                    static_cast<double>(num_bytes) / kBytesPerMib,
                    static_cast<double>(AnswerBudget::kMaxBytesOfOne) / kBytesPerMib));
    return false;
  }
  if (budget->TryTake(num_bytes, share)) return true;
  *error = PlainError(ErrorCode::kQueueFull);
  return false;
}

}  // namespace baton
