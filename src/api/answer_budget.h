// AnswerBudget: what the log-probabilities of all answers that are being collected whole may take
// in memory together. A request reserves its worst case before it is submitted, so that no answer
// has to be given up half way. Any thread.
#ifndef BATON_API_ANSWER_BUDGET_H_
#define BATON_API_ANSWER_BUDGET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "src/api/build_request.h"
#include "src/router/request_error.h"

namespace baton {

// See the file comment.
class AnswerBudget {
 public:
  // A router of the chart has 1 GiB. 128 choices of 8,160 tokens with 20 alternatives take 179 MiB.
  static constexpr size_t kMaxBytes = size_t{384} << 20;
  static constexpr size_t kMaxBytesOfOne = size_t{256} << 20;
  static_assert(kMaxBytesOfOne <= kMaxBytes, "else a request could wait for ever");

  // Gives its bytes back when it is destroyed. Moved, not copied.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(num_bytes_, other.num_bytes_);
      return *this;
    }
    ~Share() {
      if (budget_ != nullptr) budget_->used_.fetch_sub(num_bytes_);
    }

   private:
    friend class AnswerBudget;
    AnswerBudget* budget_ = nullptr;
    size_t num_bytes_ = 0;
  };

  // False: so many are not left. `share` is empty before.
  bool TryTake(size_t num_bytes, Share* share);
  size_t used() const { return used_.load(); }

 private:
  std::atomic<size_t> used_{0};
};

// Bytes of one token's log-probabilities while an answer is collected and written: `num_top`
// alternatives. gRPC builds its whole message, in which each alternative is a message of its own.
enum class AnswerForm : uint8_t { kJson, kProto };
size_t AnswerBytesPerToken(AnswerForm form, size_t num_top);

// Reserves what the answer to `built` may need; nothing for a stream or without log-probabilities.
// False: `error`, which says by how much it is too large, or that others take the room.
bool ReserveAnswer(const BuiltRequest& built, AnswerForm form, AnswerBudget* budget,
                   AnswerBudget::Share* share, RequestError* error);

}  // namespace baton

#endif  // BATON_API_ANSWER_BUDGET_H_
