// ReplayClient: one client of a replay, which notes when its tokens came. One thread.
#ifndef BATON_SIM_REPLAY_CLIENT_H_
#define BATON_SIM_REPLAY_CLIENT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "src/router/request_error.h"
#include "src/router/submit.h"

namespace baton::sim {

// See the file comment.
class ReplayClient final : public router::ResponseSink {
 public:
  // How it ended.
  enum class End : uint8_t { kNone, kFinished, kRefused, kFailed };

  ReplayClient(std::function<int64_t()> now_us, std::function<void(ReplayClient&)> on_end)
      : now_us_(std::move(now_us)), on_end_(std::move(on_end)), asked_us_(now_us_()) {}

  // ---- ResponseSink.
  void OnToken(const router::TokenOutput& /*token*/) override {
    const int64_t now_us = now_us_();
    if (first_us_ == 0) {
      first_us_ = now_us;
    } else {
      gaps_us_.push_back(now_us - last_us_);
    }
    last_us_ = now_us;
  }
  void OnFinished(const router::GenerateResult& result) override {
    num_cached_ = result.timings.cached_tokens;
    num_prompt_ = result.num_prompt_tokens;
    Finish(End::kFinished);
  }
  void OnFailed(const router::RequestError& error) override {
    const int status = router::HttpStatusOf(error.code);
    Finish(first_us_ == 0 && (status == 429 || status == 503) ? End::kRefused : End::kFailed);
  }
  size_t buffered_bytes() const override { return 0; }

  End end() const { return end_; }
  int64_t asked_us() const { return asked_us_; }
  int64_t ttft_us() const { return first_us_ - asked_us_; }
  int64_t e2e_us() const { return last_us_ - asked_us_; }
  // Between tokens; the first is that before the second token.
  const std::vector<int64_t>& gaps_us() const { return gaps_us_; }
  uint32_t num_prompt() const { return num_prompt_; }
  uint32_t num_cached() const { return num_cached_; }

  // As the load client judges a request: 99 % of the gaps, that before the second token too.
  bool Meets(int64_t ttft_limit_us, int64_t itl_limit_us) const {
    if (end_ != End::kFinished || ttft_us() > ttft_limit_us) return false;
    const auto num_long = static_cast<size_t>(
        std::ranges::count_if(gaps_us_, [&](int64_t gap_us) { return gap_us > itl_limit_us; }));
    return num_long <= gaps_us_.size() / 100;
  }

 private:
  void Finish(End end) {
    end_ = end;
    on_end_(*this);
  }

  const std::function<int64_t()> now_us_;
  const std::function<void(ReplayClient&)> on_end_;
  const int64_t asked_us_;
  int64_t first_us_ = 0;
  int64_t last_us_ = 0;
  std::vector<int64_t> gaps_us_;
  uint32_t num_prompt_ = 0;
  uint32_t num_cached_ = 0;
  End end_ = End::kNone;
};

}  // namespace baton::sim

#endif  // BATON_SIM_REPLAY_CLIENT_H_
