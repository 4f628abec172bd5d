// `baton SUBCOMMAND ...`: one binary for every role.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/errno_text.h"
#include "src/base/nearest_name.h"
#include "src/base/print.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"

namespace {

void PrintUsage(std::FILE* out) {
  baton::Print(out, "usage: baton SUBCOMMAND [flags]\n\n");
  for (const baton::Command& command : baton::Commands()) {
    baton::Print(out, "  {:<9} {}\n", command.name, command.about);
  }
  baton::Print(out, "\n`baton SUBCOMMAND --help` lists the flags.\n");
}

// Output counts as done only when it is written: a full disk is a failure.
int WithOutputWritten(const std::string& command, int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  // The error of an earlier write is not kept.
  const std::string why = errno == 0 ? "" : fmt::format(": {}", baton::ErrnoText(errno));
  baton::Print(stderr, "baton {}: cannot write the output{}\n", command, why);
  return code == baton::kExitOk ? baton::kExitFailure : code;
}

// A descriptor that is missing would be given to the next file that is opened, and what is printed
// would go there. Not open for writing: what is printed to a closed stdout is still an error.
void OpenStandardFiles() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDONLY);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  OpenStandardFiles();
  // A child is run by /proc/self/exe, whose name tools would show ("exe").
  (void)::prctl(PR_SET_NAME, "baton");
  // Ignored signals are inherited: without it no child's end would be seen.
  ::signal(SIGCHLD, SIG_DFL);
  if (argc < 2) {
    PrintUsage(stderr);
    return baton::kExitUsage;
  }
  ::signal(SIGXFSZ, SIG_IGN);  // a file at its limit is an error of a write, not of the process
  const std::string name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    PrintUsage(stdout);
    return WithOutputWritten("--help", baton::kExitOk);
  }
  const std::string wanted = name == "--version" ? "version" : name;
  std::vector<std::string_view> names;
  for (const baton::Command& command : baton::Commands()) {
    if (command.name == wanted) {
      return WithOutputWritten(wanted, command.run({argv + 2, argv + argc}));
    }
    names.push_back(command.name);
  }
  const std::string nearest = baton::NearestName(name, std::span<const std::string_view>(names));
  baton::Print(
      stderr, "baton: unknown subcommand '{}'{}\n", name,
      nearest.empty() ? "; `baton --help` lists them" : fmt::format("; did you mean {}?", nearest));
  return baton::kExitUsage;
}
