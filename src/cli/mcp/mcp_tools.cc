#include "src/cli/mcp/mcp_tools.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "src/cli/admin_page.h"
#include "src/cli/mcp/captured_run.h"
#include "src/cli/top/top_frame.h"
#include "src/cli/trace/trace_page.h"
#include "src/cli/trace/why_report.h"

namespace baton::cli {
namespace {

using nlohmann::json;
using Kind = McpParam::Kind;

constexpr int64_t kLookMs = 15'000;
constexpr int64_t kDoctorMs = 60'000;
constexpr int64_t kPlanMs = 30'000;
// A load ends by itself after 30 s and what then still runs after 30 s more.
constexpr int64_t kBenchMs = 90'000;
constexpr int64_t kMaxBenchRequests = 200;
constexpr int64_t kMaxBenchUsers = 16;
constexpr int64_t kMaxBenchTokens = 4096;
constexpr int64_t kMaxLedgerWaitS = 30;
constexpr int64_t kMaxTraced = 512;  // what a router remembers
constexpr int64_t kMaxPlanTokens = 1'000'000;
constexpr size_t kMaxSampleBytes = size_t{256} << 10;

std::string TextArg(const json& arguments, const char* name, const std::string& otherwise = "") {
  const auto found = arguments.find(name);
  return found == arguments.end() ? otherwise : found->get<std::string>();
}

int64_t CountArg(const json& arguments, const char* name, int64_t otherwise) {
  const auto found = arguments.find(name);
  return found == arguments.end() ? otherwise : found->get<int64_t>();
}

McpResult ErrorResult(const Status& status) {
  return {.text = std::string(status.message()), .is_error = true};
}

McpResult TextResult(const StatusOr<std::string>& text) {
  return text.ok() ? McpResult{.text = *text} : ErrorResult(text.status());
}

// Runs a subcommand and answers with what it prints. A subcommand that fails with something on its
// standard output has an answer all the same: doctor fails when it has found a problem.
McpResult Run(const std::vector<std::string>& args, int64_t timeout_ms) {
  const StatusOr<CapturedRun> run = RunCaptured(args, {.timeout_ms = timeout_ms});
  if (!run.ok()) return ErrorResult(WithPrefix(run.status(), "baton " + args.front()));
  if (!run->out.empty()) return {.text = run->out};
  return {.text = run->error, .is_error = run->exit_code != 0};
}

// The address whose /metrics is asked for: the router's, or that of the worker of this id.
StatusOr<std::string> AdminOf(const McpTarget& target, const std::string& worker_id) {
  if (worker_id.empty()) return target.admin;
  BATON_ASSIGN_OR_RETURN(const std::string page, ReadAdminPage(target.admin, "/v1/topology"));
  BATON_ASSIGN_OR_RETURN(const TopSnapshot cluster, ReadTopTopology(page));
  std::string names;
  for (const TopWorker& worker : cluster.workers) {
    if (worker.worker_id == worker_id) return worker.admin;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", worker.worker_id);
  }
  return NotFound("'worker' names no worker of this cluster; there are: {}", names);
}

McpResult QueryMetrics(const McpTarget& target, const json& arguments) {
  const StatusOr<std::string> admin = AdminOf(target, TextArg(arguments, "worker"));
  if (!admin.ok()) return ErrorResult(admin.status());
  const StatusOr<std::string> page = ReadAdminPage(*admin, "/metrics");
  if (!page.ok()) return ErrorResult(page.status());
  std::string samples =
      MatchingSamples(*page, TextArg(arguments, "name"), TextArg(arguments, "label"));
  if (samples.empty()) {
    return {.text = "no sample has a name and a label like that; the name baton_ has all",
            .is_error = true};
  }
  if (samples.size() > kMaxSampleBytes) {
    return {.text = fmt::format("{} bytes of samples, at most {} are given: name one metric",
                                samples.size(), kMaxSampleBytes),
            .is_error = true};
  }
  return {.text = std::move(samples)};
}

json RowOf(const TracedRequest& request) {
  json stages = json::object();
  for (const StageSpan& stage : request.stages) {
    stages[stage.name] = static_cast<double>(stage.elapsed_us) / 1000;
  }
  return {{"request_uid", request.request_uid},
          {"request_id", request.request_id},
          {"answer_id", request.answer_id},
          {"model", request.model},
          {"state", request.state},
          {"status", request.status},
          {"accepted_unix_us", request.accepted_us},
          {"elapsed_ms", static_cast<double>(request.elapsed_us()) / 1000},
          {"stages_ms", std::move(stages)},
          {"prompt_tokens", request.num_prompt_tokens},
          {"cached_tokens", request.num_cached_tokens},
          {"output_tokens", request.num_output_tokens},
          {"prefill_worker", request.prefill_worker},
          {"decode_worker", request.decode_worker},
          {"transport", request.transport},
          {"kv_bytes", request.kv_bytes}};
}

// The pages of the cluster; the router's is the first. What a worker keeps silent about is only
// missing from the answer.
StatusOr<std::vector<TracePage>> Pages(const McpTarget& target) {
  std::vector<std::string> errors;
  return FetchTracePages(target.admin, &errors);
}

McpResult Trace(const McpTarget& target, const json& arguments) {
  const StatusOr<std::vector<TracePage>> pages = Pages(target);
  if (!pages.ok()) return ErrorResult(pages.status());
  const std::vector<TracedRequest>& all = pages->front().requests;
  const size_t count = std::min(all.size(), static_cast<size_t>(CountArg(arguments, "last", 20)));
  json rows = json::array();
  for (auto it = all.end() - static_cast<std::ptrdiff_t>(count); it != all.end(); ++it) {
    rows.push_back(RowOf(*it));
  }
  return {.text = rows.dump(1, ' ', false, json::error_handler_t::replace)};
}

McpResult Why(const McpTarget& target, const json& arguments) {
  const StatusOr<std::vector<TracePage>> pages = Pages(target);
  if (!pages.ok()) return ErrorResult(pages.status());
  const TracedRequest* request = FindRequest(pages->front(), TextArg(arguments, "request"));
  if (request == nullptr) {
    return ErrorResult(NotFound("the router remembers {} requests, none of that name",
                                pages->front().requests.size()));
  }
  return {.text = WhyJson(*request, StepsBeside(*request, *pages))};
}

McpResult Doctor(const McpTarget& target, const json& arguments) {
  const int64_t wait_s = CountArg(arguments, "ledger_wait_s", -1);
  if (wait_s < 0) return Run({"doctor", "--json"}, kDoctorMs);
  return Run(
      {"doctor", "--ledger", "--json", "--admin=" + target.admin, fmt::format("--wait={}", wait_s)},
      kDoctorMs);
}

McpResult Plan(const json& arguments) {
  const std::string model = TextArg(arguments, "model");
  if (model.empty() || model.front() == '-') {
    return ErrorResult(InvalidArgument("'model' must be a file, a folder or a catalogue name"));
  }
  std::vector<std::string> args = {"plan", model, "--json"};
  for (const char* name : {"device", "rate", "ttft", "itl", "measured", "memory", "link"}) {
    const std::string value = TextArg(arguments, name);
    if (!value.empty()) args.push_back(fmt::format("--{}={}", name, value));
  }
  for (const char* name : {"input", "output"}) {
    args.push_back(fmt::format("--{}={}", name, CountArg(arguments, name, 1)));
  }
  return Run(args, kPlanMs);
}

McpResult Bench(const McpTarget& target, const json& arguments) {
  std::vector<std::string> args = {
      "bench",
      target.url,
      "--duration=30s",
      "--timeout=30s",
      fmt::format("--requests={}", CountArg(arguments, "requests", 20)),
      fmt::format("--users={}", CountArg(arguments, "users", 2)),
      fmt::format("--input={}", CountArg(arguments, "input", 128)),
      fmt::format("--output={}", CountArg(arguments, "output", 64))};
  if (!target.api_key_env.empty()) args.push_back("--api-key-env=" + target.api_key_env);
  return Run(args, kBenchMs);
}

std::vector<McpParam> PlanParams() {
  return {
      {"model", Kind::kText, "a .gguf file, a Hugging Face folder or a catalogue name", true},
      {"device", Kind::kText, "cpu, or a GPU as its driver calls it: NVIDIA H200", true},
      {"input", Kind::kCount, "tokens of a prompt", true, 1, kMaxPlanTokens},
      {"output", Kind::kCount, "tokens of an answer", true, 1, kMaxPlanTokens},
      {"rate", Kind::kText, "requests a second: 4", true},
      {"ttft", Kind::kText, "objective of the first token: 500ms", true},
      {"itl", Kind::kText, "objective of the gap between tokens: 50ms", true},
      {"measured", Kind::kText, "with device cpu: a file of `baton bench model --json`"},
      {"memory", Kind::kText, "memory of one worker: 16GiB"},
      {"link", Kind::kText, "GB/s from a prefill to a decode worker"},
  };
}

}  // namespace

std::string MatchingSamples(const std::string& page, const std::string& prefix,
                            const std::string& label) {
  const size_t equals = label.find('=');
  const std::string name = label.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : label.substr(equals + 1);
  const std::string wanted = fmt::format("{}=\"{}\"", name, value);
  std::string found;
  std::string_view rest = page;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.empty() || line.front() == '#' || !line.starts_with(prefix)) continue;
    const bool has_label = line.find("{" + wanted) != std::string_view::npos ||
                           line.find("," + wanted) != std::string_view::npos;
    if (label.empty() || has_label) found += fmt::format("{}\n", line);
  }
  return found;
}

std::vector<McpTool> McpTools(const McpTarget& target) {
  const McpParam last = {"last", Kind::kCount, "the newest requests: 20 without it", false,
                         1,      kMaxTraced};
  return {
      {"status",
       "Pools, workers, queues, KV blocks and links of the cluster, over one second.",
       {},
       [target](const json&) {
         return Run({"top", "--once", "--admin=" + target.admin}, kLookMs);
       }},
      {"topology",
       "The processes of the cluster as JSON: roles, addresses, blocks, links.",
       {},
       [target](const json&) { return TextResult(ReadAdminPage(target.admin, "/v1/topology")); }},
      {"metrics",
       "Samples of the router's metrics, or of one worker's, in Prometheus' format.",
       {{"name", Kind::kText, "what the name begins with: baton_requests", true},
        {"label", Kind::kText, "NAME=VALUE that a sample must have: code=200"},
        {"worker", Kind::kText, "id of a worker: decode-0; the router without it"}},
       [target](const json& arguments) { return QueryMetrics(target, arguments); }},
      {"trace",
       "The last requests with their stages in milliseconds. No text of them is in it.",
       {last},
       [target](const json& arguments) { return Trace(target, arguments); }},
      {"why",
       "What one request waited for, and the load beside it.",
       {{"request", Kind::kText,
         "its X-Request-Id, the id of its answer or its uid; the longest without it"}},
       [target](const json& arguments) { return Why(target, arguments); }},
      {"doctor",
       "Whether this host is fit to serve; with ledger_wait_s, whether each KV block of "
       "the cluster has an owner.",
       {{"ledger_wait_s", Kind::kCount, "seconds that a block must stay without owner", false, 0,
         kMaxLedgerWaitS}},
       [target](const json& arguments) { return Doctor(target, arguments); }},
      {"plan", "How many workers a load needs, and whether a split helps.", PlanParams(),
       [](const json& arguments) { return Plan(arguments); }},
      {"bench",
       "Loads the cluster for at most a minute and says what it measured.",
       {{"requests", Kind::kCount, "requests: 20 without it", false, 1, kMaxBenchRequests},
        {"users", Kind::kCount, "users at a time: 2 without it", false, 1, kMaxBenchUsers},
        {"input", Kind::kCount, "tokens of a prompt: 128", false, 1, kMaxBenchTokens},
        {"output", Kind::kCount, "tokens of an answer: 64", false, 1, kMaxBenchTokens}},
       [target](const json& arguments) { return Bench(target, arguments); }},
  };
}

}  // namespace baton::cli
