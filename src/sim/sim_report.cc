#include "src/sim/sim_report.h"

#include <algorithm>
#include <numeric>

#include "fmt/format.h"

#include "src/sim/sim_draws.h"

namespace baton::sim {

using obs::kResumeReasonNames;
using obs::kResumeSourceNames;
using router::ErrorCode;
using router::ErrorNameOf;

namespace {

constexpr size_t kMaxKept = 20;

template <typename Array>
uint64_t Sum(const Array& values) {
  return std::accumulate(values.begin(), values.end(), uint64_t{0});
}

template <typename Array>
void AddAll(const Array& from, Array* to) {
  for (size_t i = 0; i < from.size(); ++i) (*to)[i] += from[i];
}

std::string Row(std::string_view name, uint64_t value) {
  return fmt::format("{:<26} {}\n", name, value);
}

}  // namespace

uint64_t SimReport::NumFailed() const { return Sum(failed); }
uint64_t SimReport::NumFaults() const { return Sum(faults); }

uint64_t SimReport::Violations(std::string_view kind) const {
  const auto it = violations.find(std::string(kind));
  return it == violations.end() ? 0 : it->second;
}

void SimReport::Add(const SimReport& other) {
  num_requests += other.num_requests;
  num_finished += other.num_finished;
  num_cancelled += other.num_cancelled;
  num_lost += other.num_lost;
  num_refused += other.num_refused;
  longest_silence_us = std::max(longest_silence_us, other.longest_silence_us);
  AddAll(other.failed, &failed);
  num_tokens += other.num_tokens;
  num_resumed += other.num_resumed;
  for (size_t i = 0; i < resumes.size(); ++i) AddAll(other.resumes[i], &resumes[i]);
  AddAll(other.faults, &faults);
  messages.delayed += other.messages.delayed;
  messages.duplicated += other.messages.duplicated;
  messages.reordered += other.messages.reordered;
  messages.flipped += other.messages.flipped;
  messages.held += other.messages.held;
  num_checksum_faults += other.num_checksum_faults;
  for (const auto& [kind, count] : other.violations) violations[kind] += count;
  for (const SimViolation& violation : other.first_violations) {
    if (first_violations.size() < kMaxKept) first_violations.push_back(violation);
  }
  num_events += other.num_events;
  num_turns += other.num_turns;
  num_fills += other.num_fills;
  simulated_us = std::max(simulated_us, other.simulated_us);
  digest = SplitMix(digest ^ SplitMix(other.digest));
}

std::string SimReport::ToTable() const {
  std::string table = Row("seed", seed);
  table += Row("requests", num_requests);
  table += Row("  finished", num_finished);
  table += Row("  cancelled by clients", num_cancelled);
  table += Row("  lost with their router", num_lost);
  table += Row("  failed", NumFailed());
  for (size_t i = 0; i < failed.size(); ++i) {
    if (failed[i] == 0) continue;
    table += Row(fmt::format("    {}", ErrorNameOf(static_cast<ErrorCode>(i))), failed[i]);
  }
  table += Row("refused, asked again", num_refused);
  table += Row("tokens", num_tokens);
  table += Row("faults", NumFaults());
  for (size_t i = 0; i < faults.size(); ++i) {
    if (faults[i] == 0) continue;
    table += Row(fmt::format("  {}", FaultKindName(static_cast<FaultKind>(i))), faults[i]);
  }
  table += Row("messages held", messages.held);
  table += Row("messages delayed", messages.delayed);
  table += Row("messages duplicated", messages.duplicated);
  table += Row("messages reordered", messages.reordered);
  table += Row("messages flipped", messages.flipped);
  table += Row("slices refused", num_checksum_faults);
  table += Row("requests resumed", num_resumed);
  for (size_t r = 0; r < resumes.size(); ++r) {
    for (size_t s = 0; s < resumes[r].size(); ++s) {
      if (resumes[r][s] == 0) continue;
      table += Row(fmt::format("  {} / {}", kResumeReasonNames[r], kResumeSourceNames[s]),
                   resumes[r][s]);
    }
  }
  table += Row("longest silence, ms", static_cast<uint64_t>(longest_silence_us / 1000));
  table += Row("pool-filling requests", num_fills);
  table += Row("wrong tokens", Violations("wrong token"));
  table += Row("leaked blocks", Violations("leak"));
  table += Row("hung", Violations("hung"));
  for (const auto& [kind, count] : violations) {
    if (kind == "wrong token" || kind == "leak" || kind == "hung") continue;
    table += Row(kind, count);
  }
  table += Row("events", num_events);
  table += Row("engine turns", num_turns);
  table +=
      fmt::format("{:<26} {:.1f}\n", "simulated seconds", static_cast<double>(simulated_us) * 1e-6);
  table += fmt::format("{:<26} {:016x}\n", "digest", digest);
  return table;
}

}  // namespace baton::sim
