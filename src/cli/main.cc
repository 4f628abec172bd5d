// `baton SUBCOMMAND ...`: one binary for every role.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/synchronization/mutex.h"
#include <boost/system/system_error.hpp>

#include "src/base/errno_text.h"
#include "src/base/nearest_name.h"
#include "src/base/print.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"

namespace {

void PrintUsage(std::FILE* out) {
  baton::Print(out, "usage: baton SUBCOMMAND [flags]\n\n");
  for (const baton::cli::Command& command : baton::cli::Commands()) {
    baton::Print(out, "  {:<10} {}\n", command.name, command.about);
  }
  baton::Print(out, "\n`baton SUBCOMMAND --help` and `baton help SUBCOMMAND` list the flags.\n");
}

// A subcommand by the names that other programs give it, and the text that says what does its work.
struct ForeignCommand {
  std::string_view names;  // a blank before and after each
  std::string_view text;
};
constexpr ForeignCommand kForeign[] = {
    {" ls models ", "`baton list` lists the models that were fetched"},
    {" start server server-start up api ", "`baton serve MODEL` starts a server"},
    {" stop down kill ", "a server ends by Ctrl-C or SIGTERM; `baton ps` has its processes"},
    {" status ", "`baton ps` lists processes, `baton top` watches a cluster"},
    {" download fetch get install ", "`baton pull NAME` fetches a model"},
    {" delete remove uninstall ", "`baton rm MODEL` removes a model that was fetched"},
    {" info describe ", "`baton show MODEL` describes a model"},
    {" generate complete prompt ", "`baton run MODEL PROMPT` answers once"},
    {" quantize ", "`baton convert SRC DST --type TYPE` writes another type"},
    {" benchmark ", "`baton bench URL` loads a server, `baton bench model FILE` measures a model"},
    {" -v -V ", "`baton version` prints the version"},
    {" verify login create cp push embed ", "not supported in this build"},
};

std::string AnswerToUnknown(const std::string& name, std::span<const std::string_view> names) {
  for (const ForeignCommand& row : kForeign) {
    const bool is_one = name.find(' ') == std::string::npos && !name.empty();
    if (is_one && row.names.find(" " + name + " ") != std::string_view::npos) {
      return ": " + std::string(row.text);
    }
  }
  const std::string nearest = baton::NearestName(name, names);
  return nearest.empty() ? "; `baton --help` lists them"
                         : fmt::format("; did you mean {}?", nearest);
}

// Output counts as done only when it is written: a full disk is a failure.
int WithOutputWritten(const std::string& command, int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  // The error of an earlier write is not kept.
  const std::string why = errno == 0 ? "" : fmt::format(": {}", baton::ErrnoText(errno));
  baton::Print(stderr, "baton {}: cannot write the output{}\n", command, why);
  return code == baton::cli::kExitOk ? baton::cli::kExitFailure : code;
}

bool IsHelp(std::string_view word) { return word == "--help" || word == "-h" || word == "help"; }

// Runs the subcommand of that name with the arguments after it.
int Run(const std::string& name, const std::vector<std::string>& args) {
  const std::string wanted = name == "--version" ? "version" : name;
  std::vector<std::string_view> names;
  for (const baton::cli::Command& command : baton::cli::Commands()) {
    if (command.name == wanted) return WithOutputWritten(wanted, command.run(args));
    names.push_back(command.name);
  }
  baton::Print(stderr, "baton: unknown subcommand '{}'{}\n", name, AnswerToUnknown(name, names));
  return baton::cli::kExitUsage;
}

// The thing that is short when the system refuses it with this error, and its limit.
std::string_view LimitOf(const std::error_code& code) {
  if (code == std::errc::resource_unavailable_try_again) {
    return "threads (ulimit -u, TasksMax or pids.max of the control group) or memory (ulimit -v)";
  }
  if (code == std::errc::too_many_files_open) return "open files (ulimit -n)";
  if (code == std::errc::too_many_files_open_in_system) return "open files (fs.file-max)";
  if (code == std::errc::not_enough_memory) return "memory (ulimit -v, memory.max)";
  return "";
}

[[noreturn]] void EndAsShortOf(std::string_view limit, const char* what) {
  baton::Print(stderr, "baton: the system gives no more {}: {}; raise the limit\n", limit, what);
  _exit(baton::cli::kExitFailure);
}

// Threads, event loops and the heap throw where the system refuses them something. Nobody catches
// that: the owner would be half made. An operator can mend it, so it is said in one line.
[[noreturn]] void OnTerminate() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::system_error& error) {
    const std::string_view limit = LimitOf(error.code());
    if (!limit.empty()) EndAsShortOf(limit, error.what());
  } catch (const boost::system::system_error& error) {
    const std::string_view limit = LimitOf(error.code());
    if (!limit.empty()) EndAsShortOf(limit, error.what());
  } catch (const std::bad_alloc& error) {
    EndAsShortOf(LimitOf(std::make_error_code(std::errc::not_enough_memory)), error.what());
  } catch (const std::exception& error) {
    baton::Print(stderr, "baton: an exception that nobody expects: {}\n", error.what());
  } catch (...) {
    baton::Print(stderr, "baton: an exception that nobody expects\n");
  }
  std::abort();
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
  std::set_terminate(&OnTerminate);
  OpenStandardFiles();
  // A child is run by /proc/self/exe, whose name tools would show ("exe").
  (void)::prctl(PR_SET_NAME, "baton");
  // Ignored signals are inherited: without it no child's end would be seen.
  ::signal(SIGCHLD, SIG_DFL);
  if (argc < 2) {
    PrintUsage(stderr);
    return baton::cli::kExitUsage;
  }
  // Distributions build abseil so that each lock of gRPC would enter itself, under one lock of the
  // process, into a graph that is searched for deadlocks.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  ::signal(SIGXFSZ, SIG_IGN);  // a file at its limit is an error of a write, not of the process
  std::vector<std::string> args(argv + 1, argv + argc);
  if (IsHelp(args[0])) {
    if (args.size() == 1 || IsHelp(args[1])) {
      PrintUsage(stdout);
      return WithOutputWritten("--help", baton::cli::kExitOk);
    }
    args.erase(args.begin());
    args.emplace_back("--help");
  }
  return Run(args[0], {args.begin() + 1, args.end()});
}
