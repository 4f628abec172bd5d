// `baton SUBCOMMAND ...`: one binary for every role.
#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include "src/base/errno_text.h"
#include "src/base/nearest_name.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"

namespace {

void PrintUsage(std::FILE* out) {
  fmt::print(out, "usage: baton SUBCOMMAND [flags]\n\n");
  for (const baton::Command& command : baton::Commands()) {
    fmt::print(out, "  {:<9} {}\n", command.name, command.about);
  }
  fmt::print(out, "\n`baton SUBCOMMAND --help` lists the flags.\n");
}

// What was printed counts as done only when it is written: a full disk is a failure.
int WithOutputWritten(const std::string& command, int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  fmt::print(stderr, "baton {}: cannot write the output: {}\n", command, baton::ErrnoText(errno));
  return code == baton::kExitOk ? baton::kExitFailure : code;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    PrintUsage(stderr);
    return baton::kExitUsage;
  }
  ::signal(SIGXFSZ, SIG_IGN);  // a file at its limit is an error of a write, not of the process
  const std::string name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    PrintUsage(stdout);
    return baton::kExitOk;
  }
  const std::string wanted = name == "--version" ? "version" : name;
  std::vector<std::string_view> names;
  for (const baton::Command& command : baton::Commands()) {
    if (command.name == wanted) {
      return WithOutputWritten(wanted,
                               command.run(std::vector<std::string>(argv + 2, argv + argc)));
    }
    names.push_back(command.name);
  }
  const std::string nearest = baton::NearestName(name, std::span<const std::string_view>(names));
  fmt::print(
      stderr, "baton: unknown subcommand '{}'{}\n", name,
      nearest.empty() ? "; `baton --help` lists them" : fmt::format("; did you mean {}?", nearest));
  return baton::kExitUsage;
}
