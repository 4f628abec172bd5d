// ClusterDiary: turns looks at a cluster into the events of /v1/cluster/events (API.md, "Cluster
// events"). No text of a prompt or an answer is in them, and no name that a client gave: a request
// is named by the first characters of its answer's id, which its own client can recognise.
//
// One thread at a time. Pure: times come with each look.
//
// Invariants
//  1. Each finished answer that a look has is told at most once, and so is each hand-off.
//  2. One look adds at most kMaxPerLook answers and as many hand-offs; what is above that is
//     counted in `skipped` of the next `cluster` event.
#ifndef BATON_API_CLUSTER_DIARY_H_
#define BATON_API_CLUSTER_DIARY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/api/json_writer.h"
#include "src/api/trace_json.h"
#include "src/base/ids.h"
#include "src/router/request_traces.h"
#include "src/router/topology.h"

namespace baton::api {

// The state of a cluster at one time.
struct ClusterLook {
  router::Topology topology;                                        // the router's own row first
  std::vector<std::shared_ptr<const router::RequestTrace>> traces;  // as RouterCore::Traces
  ClockPair now;
};

// See the file comment.
class ClusterDiary {
 public:
  static constexpr int kVersion = 1;
  static constexpr size_t kMaxPast = 48;      // events that a new viewer is told
  static constexpr size_t kMaxFirst = 16;     // answers from before the first look
  static constexpr size_t kMaxPerLook = 64;   // answers
  static constexpr size_t kMaxRequests = 64;  // live ones in a `cluster` event
  // A `cluster` event that says the same as the one before is left out for so long.
  static constexpr int64_t kQuietUs = 5'000'000;

  // The events since the look before, as text of server-sent events; "" = nothing has changed.
  std::string Add(const ClusterLook& look);
  // A viewer reads this first: `hello`, the last `cluster` event, and the last other events.
  // `interval_us`: the least time between two looks.
  std::string Welcome(const ClockPair& now, int64_t interval_us) const;
  // Forgets everything: nobody looks for a while.
  void Clear() { *this = ClusterDiary(); }

 private:
  // A process as the last look had it.
  struct KnownProcess {
    std::string incarnation;
    bool ready = false;
    bool draining = false;
    std::map<std::string, bool> links;  // by decode worker: up
  };
  // A request as the last look had it.
  struct KnownRequest {
    bool is_live = false;
    bool handoff_told = false;
    uint32_t num_resumes = 0;
    uint32_t num_tokens = 0;
  };
  // How fast streams got tokens between two looks.
  struct Pace {
    int64_t elapsed_us = 0;  // between the looks
    double stream_us = 0;    // elapsed_us, summed over the streams that got some
    double num_steps = 0;    // tokens of one choice
    double num_tokens = 0;   // of all choices
  };
  // Something happened to a process, a link or a request; "" = without.
  struct Notice {
    std::string_view kind;
    std::string_view worker;
    std::string_view to;   // the other end of a link
    std::string_view why;  // a clause
    std::string_view id;   // the request
  };

  void CompareProcesses(const ClusterLook& look);
  void CompareProcess(const router::ProcessView& process, int64_t time_ms);
  void CompareLinks(const router::ProcessView& process, KnownProcess& known, int64_t time_ms);
  void CompareRequests(const ClusterLook& look);
  void CompareRequest(const router::RequestTrace& trace, const KnownRequest& known,
                      const ClockPair& now);
  void TellHandoff(const router::RequestTrace& trace, const ClockPair& now);
  void TellAnswer(const router::RequestTrace& trace, const ClockPair& now);
  void Tell(const Notice& notice, int64_t time_ms);
  // Keeps the event for new viewers, and for this look's result.
  void Keep(JsonWriter& json);
  std::string ClusterBody(const ClusterLook& look) const;
  void WriteRequests(const ClusterLook& look, JsonWriter* json) const;

  bool has_looked_ = false;
  std::map<std::string, KnownProcess> processes_;  // by worker id
  std::map<RequestUid, KnownRequest> requests_;
  std::string router_incarnation_;
  Pace pace_;                 // since the look before
  int64_t look_us_ = 0;       // steady time of the last look
  uint64_t num_skipped_ = 0;  // events that were too many for their looks
  std::string new_events_;    // of the look under way
  std::deque<std::string> past_;
  std::string cluster_body_;   // of the last `cluster` event: all but its time
  std::string cluster_event_;  // the whole of it
  int64_t cluster_us_ = 0;     // when it was told
};

}  // namespace baton::api

#endif  // BATON_API_CLUSTER_DIARY_H_
