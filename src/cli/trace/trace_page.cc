#include "src/cli/trace/trace_page.h"

#include <algorithm>
#include <utility>

#include "nlohmann/json.hpp"

#include "src/cli/admin_page.h"
#include "src/cli/json_fields.h"
#include "src/cli/top/top_frame.h"
#include "src/obs/request_lifetime.h"

namespace baton::cli {

using obs::kNumRequestStages;
using obs::RequestStage;
using obs::StageName;

namespace {

using nlohmann::json;

const json& ObjectOf(const json& row, const char* key) {
  static const json kEmpty = json::object();
  const auto found = row.find(key);
  return found != row.end() && found->is_object() ? *found : kEmpty;
}

BesideLoad BesideOf(const json& load, const char* key) {
  const json& row = ObjectOf(load, key);
  return {.running = NumberOf(row, "running"),
          .waiting = NumberOf(row, "waiting"),
          .free_blocks = NumberOf(row, "free_blocks"),
          .num_blocks = NumberOf(row, "num_blocks")};
}

void ReadWork(const json& row, TracedRequest* request) {
  request->num_prompt_tokens = NumberOf(row, "prompt_tokens");
  request->num_cached_tokens = NumberOf(row, "cached_tokens");
  request->num_output_tokens = NumberOf(row, "output_tokens");
  request->disaggregated = TextOf(row, "path") == "disagg";
  request->route = TextOf(row, "route");
  request->num_held_tokens = NumberOf(row, "held_tokens");
  const auto for_prefix = row.find("for_prefix");
  request->for_prefix =
      for_prefix != row.end() && for_prefix->is_boolean() && for_prefix->get<bool>();
  request->prefill_worker = TextOf(row, "prefill_worker");
  request->decode_worker = TextOf(row, "decode_worker");
  request->transport = TextOf(row, "transport");
  request->kv_bytes = NumberOf(row, "kv_bytes");
  request->longest_gap_us = SignedOf(row, "longest_gap_us");
  request->longest_gap_idx = NumberOf(row, "longest_gap_idx");
}

void ReadLoad(const json& row, TracedRequest* request) {
  const json& load = ObjectOf(row, "load");
  request->num_running = NumberOf(load, "running");
  request->num_waiting = NumberOf(load, "waiting");
  request->prefill_load = BesideOf(load, "prefill");
  request->decode_load = BesideOf(load, "decode");
  request->placed_again_us = SignedOf(row, "placed_again_us");
  for (const auto& [reason, count] : ObjectOf(row, "resumes").items()) {
    if (count.is_number_unsigned()) request->resumes[reason] = count.get<uint64_t>();
  }
}

// A time that another process told. It is clamped: whatever that process says, sums and differences
// of a few times stay in range.
int64_t TimeOf(const json& row, const char* key) {
  constexpr int64_t kFarthest = int64_t{1} << 58;
  return std::clamp(SignedOf(row, key), -kFarthest, kFarthest);
}

TracedRequest RequestOf(const json& row, int64_t wall_minus_steady_us) {
  TracedRequest request;
  request.request_uid = TextOf(row, "request_uid");
  request.request_id = TextOf(row, "request_id");
  request.answer_id = TextOf(row, "answer_id");
  request.model = TextOf(row, "model");
  request.state = TextOf(row, "state");
  request.status = NumberOf(row, "status");
  request.error = TextOf(row, "error");
  request.num_attempts = NumberOf(row, "attempt");
  request.accepted_us = TimeOf(row, "accepted_us") + wall_minus_steady_us;
  request.end_us = TimeOf(row, "end_us") + wall_minus_steady_us;
  request.queue_us = TimeOf(row, "queue_us");
  const json& stages = ObjectOf(row, "stages_us");
  for (size_t i = 0; i < kNumRequestStages; ++i) {
    const std::string name(StageName(static_cast<RequestStage>(i)));
    request.stages.push_back({name, TimeOf(stages, name.c_str())});
  }
  ReadWork(row, &request);
  ReadLoad(row, &request);
  return request;
}

TracedStep StepOf(const json& row, int64_t wall_minus_steady_us) {
  return {.end_us = TimeOf(row, "end_us") + wall_minus_steady_us,
          .elapsed_us = TimeOf(row, "elapsed_us"),
          .num_prefill_tokens = NumberOf(row, "prefill_tokens"),
          .num_decode_rows = NumberOf(row, "decode_rows")};
}

}  // namespace

StatusOr<TracePage> ReadTracePage(std::string_view text) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || !root.contains("steady_us")) {
    return DataLoss("the answer is no page of /debug/trace");
  }
  TracePage page;
  page.role = TextOf(root, "role");
  page.worker_id = TextOf(root, "worker_id");
  const int64_t offset_us = TimeOf(root, "unix_us") - TimeOf(root, "steady_us");
  for (const char* key : {"requests", "steps"}) {
    const auto rows = root.find(key);
    if (rows == root.end()) continue;
    if (!rows->is_array()) return DataLoss("\"{}\" is no array", key);
    for (const json& row : *rows) {
      if (!row.is_object()) return DataLoss("an entry of \"{}\" is no object", key);
      if (key[0] == 'r') page.requests.push_back(RequestOf(row, offset_us));
      if (key[0] == 's') page.steps.push_back(StepOf(row, offset_us));
    }
  }
  return page;
}

const TracedRequest* FindRequest(const TracePage& page, std::string_view name) {
  const TracedRequest* found = nullptr;
  for (const TracedRequest& request : page.requests) {
    const bool is_longer = found == nullptr || request.elapsed_us() > found->elapsed_us();
    const bool is_named =
        name == request.request_uid || name == request.request_id || name == request.answer_id;
    const bool is_newer = found == nullptr || request.accepted_us >= found->accepted_us;
    if (name.empty() ? is_longer : is_named && is_newer) found = &request;
  }
  return found;
}

StatusOr<std::vector<TracePage>> FetchTracePages(const std::string& admin,
                                                 std::vector<std::string>* errors) {
  BATON_ASSIGN_OR_RETURN(const std::string topology_text, ReadAdminPage(admin, "/v1/topology"));
  BATON_ASSIGN_OR_RETURN(const TopSnapshot topology, ReadTopTopology(topology_text));
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadAdminPage(admin, "/debug/trace"));
  std::vector<TracePage> pages(1);
  BATON_ASSIGN_OR_RETURN(pages[0], ReadTracePage(text));
  for (const TopWorker& worker : topology.workers) {
    const StatusOr<std::string> steps = ReadAdminPage(worker.admin, "/debug/trace");
    StatusOr<TracePage> page = steps.ok() ? ReadTracePage(*steps) : steps.status();
    if (page.ok()) {
      pages.push_back(*std::move(page));
    } else {
      errors->push_back(worker.worker_id + ": " + std::string(page.status().message()));
    }
  }
  return pages;
}

}  // namespace baton::cli
