// Pages of a router and two workers that saw one request, for tests.
#ifndef BATON_TESTS_CLI_TRACE_TRACED_CLUSTER_H_
#define BATON_TESTS_CLI_TRACE_TRACED_CLUSTER_H_

#include <string_view>
#include <vector>

#include "src/cli/trace/trace_page.h"

namespace baton::cli {

// The router's steady clock began at 1,000 s, the worker's at 0: both pages are of one moment.
inline constexpr std::string_view kRouterPage = R"({"role":"router","worker_id":"router-0",
 "steady_us":1000000000,"unix_us":1700000000000000,"requests":[
 {"request_uid":"00ab","request_id":"mine","answer_id":"chatcmpl-1","model":"m","state":"DECODING",
  "status":200,"attempt":1,"accepted_us":999000000,"end_us":999100000,
  "events_us":{"accepted":0,"admitted":1000},
  "stages_us":{"admit":1000,"queue_prefill":2000,"prefill":30000,"kv_wait":0,"kv_transfer":3000,
               "queue_decode":4000,"first_step":10000,"decode":50000},
  "prompt_tokens":20,"cached_tokens":16,"output_tokens":6,"choices":1,"path":"disagg",
  "prefill_worker":"prefill-0","decode_worker":"decode-0","transport":"shm","kv_bytes":1048576,
  "longest_gap_us":12000,"longest_gap_idx":4,
  "load":{"running":3,"waiting":2,
          "prefill":{"running":1,"waiting":0,"free_blocks":90,"num_blocks":100},
          "decode":{"running":4,"waiting":1,"free_blocks":10,"num_blocks":100}},
  "placed_again_us":0,"resumes":{}},
 {"request_uid":"00cd","request_id":"other","answer_id":"chatcmpl-2","model":"m",
  "state":"PREFILLING","status":0,"attempt":3,"accepted_us":999050000,"end_us":999090000,
  "events_us":{},"stages_us":{"prefill":40000},"path":"disagg","prefill_worker":"prefill-0",
  "decode_worker":"decode-0","load":{},"placed_again_us":7000,
  "resumes":{"decode_lost":1}}]})";
inline constexpr std::string_view kDecodePage = R"({"role":"decode","worker_id":"decode-0",
 "steady_us":5000000,"unix_us":1700000000000000,"steps":[
 {"end_us":4000000,"elapsed_us":9000,"prefill_tokens":0,"decode_rows":1},
 {"end_us":4060000,"elapsed_us":8000,"prefill_tokens":0,"decode_rows":2},
 {"end_us":4090000,"elapsed_us":12000,"prefill_tokens":64,"decode_rows":4}]})";
inline constexpr std::string_view kPrefillPage = R"({"role":"prefill","worker_id":"prefill-0",
 "steady_us":7000000,"unix_us":1700000000000000,"steps":[
 {"end_us":6033000,"elapsed_us":30000,"prefill_tokens":4,"decode_rows":0}]})";

inline std::vector<TracePage> TracedCluster() {
  return {ReadTracePage(kRouterPage).value(), ReadTracePage(kPrefillPage).value(),
          ReadTracePage(kDecodePage).value()};
}

}  // namespace baton::cli

#endif  // BATON_TESTS_CLI_TRACE_TRACED_CLUSTER_H_
