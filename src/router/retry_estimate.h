// RetryEstimate: predicts when a request that found no room would get a place, for Retry-After. A
// running answer is taken to become as long as finished answers were, at most its own limit. Its
// tokens are taken to come at today's pace: the pace under another load says little. Pure; owned by
// the router's thread.
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
  // Finished answers that the usual length needs; each new one has an eighth of the averages. With
  // one answer, four clients of six were told to wait 16 to 24 s, and nobody waited for 10: that
  // answer had a large prompt.
  static constexpr uint32_t kMinAnswers = 8;

  // A request was served: it had its place for `us`, and `num_tokens` tokens of all choices.
  void OnServed(int64_t us, uint32_t num_tokens);
  // Whether the last Look is old enough for another one, which costs O(n log n) of the requests.
  bool IsStale(int64_t now_us) const;
  void Look(const std::vector<RunningAnswer>& running, int64_t now_us);
  // So many answers of the model ended that a request may be refused by how long they are.
  bool KnowsAnswers() const { return num_served_ >= kMinAnswers; }
  // The time until a request with `num_ahead` others before it may get a place, by the last Look;
  // nothing where nothing runs.
  std::optional<int64_t> AfterUs(size_t num_ahead) const;
  // AfterUs in whole seconds, from limits::kMinRetryAfterS to limits::kMaxRetryAfterS; the least
  // where nothing runs.
  uint32_t AfterS(size_t num_ahead) const;

 private:
  // Means of the answers that decode now.
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
