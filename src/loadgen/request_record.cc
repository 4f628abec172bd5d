#include "src/loadgen/request_record.h"

namespace baton::loadgen {

std::string_view OutcomeName(RequestOutcome outcome) {
  static constexpr std::string_view kNames[kNumOutcomes] = {
      "unfinished", "ok",        "connect_failed", "http_error", "server_error",
      "malformed",  "broke_off", "timed_out",      "local_error"};
  return kNames[static_cast<size_t>(outcome)];
}

std::string_view StageName(size_t stage) {
  static constexpr std::string_view kNames[kNumStages] = {"queue", "prefill", "kv_wait",
                                                          "first_step", "decode"};
  return kNames[stage];
}

double StageMs(const StageTimes& stages, size_t stage) {
  const double values[kNumStages] = {stages.queue_ms, stages.prefill_ms, stages.kv_wait_ms,
                                     stages.first_step_ms, stages.decode_ms};
  return values[stage];
}

uint64_t RequestRecord::NumOutput() const {
  return facts.completion_tokens ? *facts.completion_tokens : token_us.size();
}

std::optional<double> TtftUs(const RequestRecord& record) {
  if (record.token_us.empty()) return std::nullopt;
  return static_cast<double>(record.token_us.front() - record.intended_us);
}

std::optional<double> TtftSentUs(const RequestRecord& record) {
  if (record.token_us.empty()) return std::nullopt;
  return static_cast<double>(record.token_us.front() - record.sent_us);
}

std::optional<double> TtftServerUs(const RequestRecord& record) {
  if (!record.facts.stages) return std::nullopt;
  return (record.facts.stages->queue_ms + record.facts.stages->prefill_ms) * 1e3;
}

std::optional<double> SecondTokenUs(const RequestRecord& record) {
  if (record.token_us.size() < 2) return std::nullopt;
  return static_cast<double>(record.token_us[1] - record.intended_us);
}

std::optional<double> TpotUs(const RequestRecord& record) {
  const uint64_t tokens = record.NumOutput();
  if (record.token_us.size() < 2 || tokens < 2) return std::nullopt;
  return static_cast<double>(record.token_us.back() - record.token_us.front()) /
         static_cast<double>(tokens - 1);
}

std::optional<double> E2eUs(const RequestRecord& record) {
  if (!record.ok()) return std::nullopt;
  return static_cast<double>(record.end_us - record.intended_us);
}

std::vector<double> ItlUs(const RequestRecord& record) {
  std::vector<double> gaps;
  for (size_t i = 1; i < record.token_us.size(); ++i) {
    gaps.push_back(static_cast<double>(record.token_us[i] - record.token_us[i - 1]));
  }
  return gaps;
}

}  // namespace baton::loadgen
