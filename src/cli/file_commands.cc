// Subcommands about files: pull, inspect, version; and the table of all subcommands.
#include <cstdio>
#include <iostream>

#include "src/base/log.h"
#include "src/base/print.h"
#include "src/base/version.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/inspect.h"
#include "src/cli/model_store.h"

namespace baton::cli {
namespace {

constexpr int64_t kMaxPullWaitS = 7 * 86'400;

constexpr Command kCommands[] = {
    {"serve", "start a router and its workers on this host", &RunServe},
    {"run", "start a private server and chat with it", &RunRun},
    {"chat", "chat with a running server", &RunChat},
    {"router", "the process that clients talk to", &RunRouter},
    {"prefill", "a worker that computes prompts", &RunPrefill},
    {"decode", "a worker that generates tokens", &RunDecode},
    {"pull", "fetch a model file", &RunPull},
    {"list", "list the models that were fetched", &RunList},
    {"rm", "remove a model that was fetched", &RunRm},
    {"ps", "list the processes of this user's servers", &RunPs},
    {"show", "as inspect", &RunShow},
    {"inspect", "describe a model file", &RunInspectCommand},
    {"convert", "write a model as a GGUF file of another type", &RunConvert},
    {"eval", "measure how well a model predicts a text", &RunEval},
    {"sim", "simulate a cluster with faults and check every promise", &RunSim},
    {"bench", "load a server, or measure the forward pass of a model", &RunBench},
    {"plan", "say how many workers a load needs, and whether a split helps", &RunPlan},
    {"drain", "let one worker of a running cluster go", &RunDrain},
    {"doctor", "examine this host, or audit the KV ledger of a cluster", &RunDoctor},
    {"top", "watch the pools, queues and links of a running cluster", &RunTop},
    {"topo", "show how KV crosses between the workers of a running cluster", &RunTopo},
    {"trace", "write the last requests and steps of a cluster for ui.perfetto.dev", &RunTrace},
    {"why", "say what one request waited for", &RunWhy},
    {"explain", "say what an error code means and what to do", &RunExplain},
    {"mcp", "serve read-only tools about a cluster to a model's client", &RunMcp},
    {"completion", "print a script with which a shell completes flags", &RunCompletion},
    {"version", "print the version", &RunVersion},
};

}  // namespace

std::span<const Command> Commands() { return kCommands; }

int RunPull(const std::vector<std::string>& args) {
  FlagSet flags("pull", "Fetches a model into ${BATON_HOME:-~/.cache/baton}/models.");
  std::string model;
  int64_t wait_s = kPullWaitS;
  flags.Add("MODEL", model,
            CatalogueText() +
                ", hf:ORG/REPO/FILE.gguf, hf:ORG/REPO:QUANT or hf:ORG/REPO "
                "(HF_ENDPOINT, HF_TOKEN, HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE)");
  flags.Add("--wait", wait_s, {0, kMaxPullWaitS},
            "longest wait for another process that fetches the same file, seconds");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (const Status s = CheckPullName(model); !s.ok()) return Fail("pull", s, kExitUsage);
  const StatusOr<ModelFile> file = PullModel(model, wait_s);
  if (!file.ok()) return Fail("pull", file.status());
  Print("{}\n", file->path);
  return kExitOk;
}

namespace {

int Describe(std::string_view command, const std::vector<std::string>& args) {
  FlagSet flags(command, "Describes a model file: metadata, tensors, bytes, what is unsupported.");
  std::string model;
  flags.Add("MODEL", model, "a .gguf file, a Hugging Face folder or a catalogue name");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (const Status s = CheckPullName(model); !s.ok()) return Fail(command, s, kExitUsage);
  const StatusOr<ModelFile> file = ResolveModel(model);
  if (!file.ok()) return Fail(command, file.status());
  // A refusal is one line: no warning of a reader before it.
  if (const Status s = InitLog({.role = "inspect", .level = LogLevel::kOff}); !s.ok()) {
    return Fail(command, s);
  }
  return RunInspect(command, file->path, CheckModelId(*file), std::cout, std::cerr);
}

}  // namespace

int RunInspectCommand(const std::vector<std::string>& args) { return Describe("inspect", args); }
int RunShow(const std::vector<std::string>& args) { return Describe("show", args); }

int RunVersion(const std::vector<std::string>& args) {
  FlagSet flags("version", "Prints the version.");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  Print("baton {}\n", kVersion);
  return kExitOk;
}

}  // namespace baton::cli
