// AnswerBudget: the memory that the log-probabilities of all answers that are being collected whole
// may take together. Any thread.
//
// A request that names its length reserves its worst case before it is submitted, so that its
// answer is never given up half way. A request that names none would reserve the whole context; it
// reserves a step, and another one whenever its tokens have filled the last. Where there is no
// further step, the answer ends with an error.
#ifndef BATON_API_ANSWER_BUDGET_H_
#define BATON_API_ANSWER_BUDGET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "src/api/build_request.h"
#include "src/base/clock.h"
#include "src/router/request_error.h"

namespace baton::api {

// See the file comment.
class AnswerBudget {
 public:
  // A router of the chart has 1 GiB. 128 choices of 8,160 tokens with 20 alternatives take 179 MiB.
  static constexpr size_t kMaxBytes = size_t{384} << 20;
  static constexpr size_t kMaxBytesOfOne = size_t{256} << 20;
  static_assert(kMaxBytesOfOne <= kMaxBytes, "else a request could wait for ever");

  // Gives its bytes back when it is destroyed. Moved, not copied. One thread at a time.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(num_bytes_, other.num_bytes_);
      std::swap(since_us_, other.since_us_);
      return *this;
    }
    ~Share();

    // False: so many more are not left, and the share is as before.
    bool TryGrow(size_t num_bytes);
    size_t num_bytes() const { return num_bytes_; }

   private:
    friend class AnswerBudget;
    AnswerBudget* budget_ = nullptr;
    size_t num_bytes_ = 0;
    int64_t since_us_ = 0;  // of the budget's clock
  };

  // `clock` outlives this.
  explicit AnswerBudget(const Clock* clock = &SystemClock()) : clock_(clock) {}

  // False: so many are not left. `share` is empty before.
  bool TryTake(size_t num_bytes, Share* share);
  size_t used() const { return used_.load(); }
  // Others hold the room: Retry-After is when the next share is likely to come back, by how long
  // shares were held until now and by how many are.
  router::RequestError FullError() const;

 private:
  bool TryAdd(size_t num_bytes);

  const Clock* const clock_;
  std::atomic<size_t> used_{0};
  std::atomic<int64_t> num_shares_{0};
  std::atomic<int64_t> held_us_{0};  // exponential average of the shares that came back; 0 = none
};

// AnswerRoom: the memory that one answer has reserved and how much its tokens have filled. One
// thread at a time.
class AnswerRoom {
 public:
  // An answer without a step of room left takes this much more of the budget, if there is so much.
  static constexpr size_t kStepBytes = size_t{1} << 20;

  // Needs none: tokens take nothing.
  AnswerRoom() = default;
  // The prompts take `prompt_bytes` of `share`, and each token `bytes_per_token`.
  // `max_tokens_field`: the request's, for errors.
  AnswerRoom(AnswerBudget* budget, AnswerBudget::Share share, size_t prompt_bytes,
             size_t bytes_per_token, std::string_view max_tokens_field)
      : budget_(budget),
        share_(std::move(share)),
        bytes_per_token_(bytes_per_token),
        filled_bytes_(prompt_bytes),
        max_tokens_field_(max_tokens_field) {}

  // Counts one token. False: there is no room for it, as `error` says.
  bool AddToken(router::RequestError* error);

 private:
  AnswerBudget* budget_ = nullptr;
  AnswerBudget::Share share_;
  size_t bytes_per_token_ = 0;
  size_t filled_bytes_ = 0;
  std::string_view max_tokens_field_;
};

// Bytes of one element of a vector as JSON: "-0.012345678,".
inline constexpr size_t kJsonBytesOfElement = 13;

// Bytes of one token's log-probabilities while an answer is collected and written: `num_top`
// alternatives. gRPC builds its whole message, in which each alternative is a message of its own.
enum class AnswerForm : uint8_t { kJson, kProto };
size_t AnswerBytesPerToken(AnswerForm form, size_t num_top);

// Reserves the first room for the answer to `built` (see the file comment); for a stream that of
// its prompts' log-probabilities, and nothing without any. False: `error` says by how much it is
// too large, or that others take the room.
bool ReserveAnswer(const BuiltRequest& built, AnswerForm form, AnswerBudget* budget,
                   AnswerRoom* room, router::RequestError* error);

}  // namespace baton::api

#endif  // BATON_API_ANSWER_BUDGET_H_
