// `baton trace` and `baton why`: what a cluster remembers of its last requests.
#include <cstdio>

#include "src/base/print.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/json_fields.h"
#include "src/cli/replace_file.h"
#include "src/cli/trace/perfetto.h"
#include "src/cli/trace/trace_page.h"
#include "src/cli/trace/why_report.h"

namespace baton::cli {
namespace {

StatusOr<std::vector<TracePage>> Fetch(const std::string& command, const std::string& admin) {
  std::vector<std::string> errors;
  StatusOr<std::vector<TracePage>> pages = FetchTracePages(admin, &errors);
  for (const std::string& error : errors) {
    Print(stderr, "baton {}: without {}\n", command, Printable(error));
  }
  return pages;
}

void PrintSummary(const std::vector<TracePage>& pages, const std::string& out) {
  size_t num_steps = 0;
  for (const TracePage& page : pages) num_steps += page.steps.size();
  Print(stderr, "{}: {} requests, {} steps of {} processes; open it at ui.perfetto.dev\n", out,
        pages.front().requests.size(), num_steps, pages.size());
}

}  // namespace

int RunTrace(const std::vector<std::string>& args) {
  FlagSet flags("trace",
                "Writes what a cluster remembers of its last requests and steps as a trace for "
                "ui.perfetto.dev: a track a process, a span a request with its stages. No text of "
                "prompts or answers is in it.");
  std::string admin = "127.0.0.1:9090";
  std::string out = "-";
  flags.AddAdmin("--admin", admin, "admin address of a router");
  flags.AddHint("--url", "give the router's admin address: --admin HOST:PORT");
  flags.Add("--out", out, "file to write, - = standard output");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  const StatusOr<std::vector<TracePage>> pages = Fetch("trace", admin);
  if (!pages.ok()) return Fail("trace", pages.status());
  const std::string text = PerfettoJson(*pages);
  if (out == "-") {
    const bool is_written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
    if (!is_written) return Fail("trace", Unavailable("standard output cannot be written"));
    return kExitOk;
  }
  constexpr mode_t kMode = 0644;
  if (const Status s = WriteOutput(out, text, kMode); !s.ok()) return Fail("trace", s);
  PrintSummary(*pages, out);
  return kExitOk;
}

int RunWhy(const std::vector<std::string>& args) {
  FlagSet flags("why",
                "Says what one request waited for: each stage with its share, the longest named, "
                "and the load beside it. Routers remember the last 512 requests that a worker had, "
                "the last 64 that none had, and those that live.");
  std::string admin = "127.0.0.1:9090";
  std::string name;
  bool json = false;
  flags.AddAdmin("--admin", admin, "admin address of the router that had the request");
  flags.AddHint("--url", "give the router's admin address: --admin HOST:PORT");
  flags.Add("--json", json, "JSON instead of text");
  flags.Add("REQUEST", name,
            "its X-Request-Id, the id of its answer (chatcmpl-..) or its uid; without it the one "
            "that took longest");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  const StatusOr<std::vector<TracePage>> pages = Fetch("why", admin);
  if (!pages.ok()) return Fail("why", pages.status());
  const TracedRequest* const request = FindRequest(pages->front(), name);
  if (request == nullptr) {
    return Fail("why", NotFound("the router remembers {} requests, none of that name; another "
                                "router may have had it",
                                pages->front().requests.size()));
  }
  const StepsMeanwhile steps = StepsBeside(*request, *pages);
  std::fputs((json ? WhyJson(*request, steps) : WhyText(*request, steps)).c_str(), stdout);
  return kExitOk;
}

}  // namespace baton::cli
