// RetryEstimate: when places come free for requests that found no room. A running answer has the
// tokens left that finished ones had, at most its own limit, at the pace at which tokens come now:
// what answers took under another load says little. For Retry-After. Pure; owned by the router's
// thread.
#ifndef BATON_ROUTER_RETRY_ESTIMATE_H_
#define BATON_ROUTER_RETRY_ESTIMATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace baton::router {

// `us` in whole seconds, rounded up, from limits::kMinRetryAfterS to limits::kMaxRetryAfterS.
uint32_t RetrySeconds(int64_t us);

// How far a running request is.
struct RunningAnswer {
  int64_t age_us = 0;       // since it got its place
  int64_t decode_us = 0;    // since its first token
  uint32_t num_tokens = 0;  // so far, of all choices
  uint32_t max_tokens = 0;  // at most, of all choices
};

// The places of one model; see the file comment.
class RetryEstimate {
 public:
  // Answers from which their usual length is taken; each has an eighth of the averages. After one,
  // four clients of six were told to wait 16 to 24 s where nobody waited for 10: the one that ran
  // had a large prompt, and all that waited were taken to be like it.
  static constexpr uint32_t kMinAnswers = 8;

  // A request was served: it had its place for so long, and so many tokens of all choices.
  void OnServed(int64_t us, uint32_t num_tokens);
  // The last Look is so old that another one is worth its cost, O(n log n) of the running requests.
  bool IsStale(int64_t now_us) const;
  void Look(const std::vector<RunningAnswer>& running, int64_t now_us);
  // So many answers of the model ended that a request may be refused by how long they are.
  bool KnowsAnswers() const { return num_served_ >= kMinAnswers; }
  // After so long a place may be free for a request after `num_ahead` others, by the last Look;
  // nothing where nothing runs.
  std::optional<int64_t> AfterUs(size_t num_ahead) const;
  // Seconds after which a place may be free for a request after `num_ahead` others, by the last
  // Look. The least where nothing runs.
  uint32_t AfterS(size_t num_ahead) const;

 private:
  // The answers that decode now have this in common.
  struct Pace {
    double token_us = 0;   // between two tokens of one answer; 0 = nothing decodes
    double prompt_us = 0;  // from its place to its first token
  };

  static Pace PaceOf(const std::vector<RunningAnswer>& running);
  int64_t LeftUs(const RunningAnswer& answer, const Pace& common) const;

  std::optional<double> served_us_;  // exponential averages
  double served_tokens_ = 0;
  uint64_t num_served_ = 0;
  int64_t looked_us_ = INT64_MIN;
  std::vector<int64_t> left_us_;  // of the running answers, ascending
  int64_t whole_us_ = 0;          // a running answer's mean time in all, for those that wait longer
};

}  // namespace baton::router

#endif  // BATON_ROUTER_RETRY_ESTIMATE_H_
