// The results of a simulation, as numbers and as the table that `baton sim` prints. Plain data.
#ifndef BATON_SIM_SIM_REPORT_H_
#define BATON_SIM_SIM_REPORT_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/obs/baton_metrics.h"
#include "src/router/request_error.h"
#include "src/sim/sim_faults.h"
#include "src/sim/sim_network.h"

namespace baton::sim {

// A promise that was broken.
struct SimViolation {
  std::string kind;  // "wrong token", "order", "two ends", "leak", "hung", "failed", ...
  std::string text;
  int64_t at_us = 0;          // simulated
  uint64_t num_requests = 0;  // made by then
  uint32_t num_faults = 0;    // begun by then
};

// See the file comment.
struct SimReport {
  uint64_t seed = 0;
  uint64_t num_requests = 0;
  uint64_t num_finished = 0;
  uint64_t num_cancelled = 0;      // by their clients
  uint64_t num_lost = 0;           // their router died
  uint64_t num_refused = 0;        // answers 429 and 503, after which the client asked again
  int64_t longest_silence_us = 0;  // between two tokens of one request
  std::array<uint64_t, router::kNumErrorCodes> failed{};
  uint64_t num_tokens = 0;
  uint64_t num_resumed = 0;  // requests that were placed again and finished
  std::array<std::array<uint64_t, obs::kResumeSourceNames.size()>, obs::kResumeReasonNames.size()>
      resumes{};
  std::array<uint64_t, kNumFaultKinds> faults{};
  NetworkCounts messages;
  uint64_t num_checksum_faults = 0;
  std::map<std::string, uint64_t> violations;  // by kind
  std::vector<SimViolation> first_violations;  // some of them
  uint64_t num_events = 0;
  uint64_t num_turns = 0;
  uint64_t num_fills = 0;  // pool-filling requests that succeeded
  int64_t simulated_us = 0;
  uint64_t digest = 0;

  bool ok() const { return violations.empty(); }
  uint64_t NumFailed() const;
  uint64_t NumFaults() const;
  uint64_t Violations(std::string_view kind) const;
  // Adds what another world found.
  void Add(const SimReport& other);
  // Rows "name value", without times that differ from run to run.
  std::string ToTable() const;
};

}  // namespace baton::sim

#endif  // BATON_SIM_SIM_REPORT_H_
