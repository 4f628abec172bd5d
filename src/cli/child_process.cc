#include "src/cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

#include "src/base/errno_text.h"
#include "src/base/log_sink.h"
#include "src/cli/child_program.h"

namespace baton::cli {
namespace {

constexpr size_t kMaxReportBytes = size_t{16} << 10;

// This process's environment with the child's own descriptors (ours stay ours).
std::vector<std::string> ChildEnvironment(const ChildSpec& spec, int report_fd) {
  const std::string report = std::string(kReportFdVariable) + "=";
  const std::string model = std::string(kModelFdVariable) + "=";
  const std::string cores = std::string(kCoresFdVariable) + "=";
  const std::string weights = std::string(kWeightsFdVariable) + "=";
  const std::string tokenizers = std::string(kTokenizerFdsVariable) + "=";
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const bool is_ours = text.starts_with(report) || text.starts_with(model) ||
                         text.starts_with(cores) || text.starts_with(weights) ||
                         text.starts_with(tokenizers);
    if (!is_ours) variables.emplace_back(text);
  }
  variables.push_back(report + std::to_string(report_fd));
  if (spec.model_fd >= 0) {
    variables.push_back(fmt::format("{}{} {}", model, spec.model_fd, spec.model_id));
  }
  if (spec.cores_fd >= 0) {
    variables.push_back(fmt::format("{}{} {}", cores, spec.cores_fd, spec.core_member));
  }
  if (spec.weights_fd >= 0) {
    variables.push_back(fmt::format("{}{} {}", weights, spec.weights_fd,
                                    spec.weights_need_huge_pages ? "huge" : "any"));
  }
  if (!spec.tokenizer_fds.empty()) {
    variables.push_back(tokenizers + absl::StrJoin(spec.tokenizer_fds, " "));
  }
  return variables;
}

constexpr char kThisProgram[] = "/proc/self/exe";

// Arguments of execve, made before the fork.
struct ExecArgs {
  char* const* argv;
  char* const* envp;
};

// In the child, between fork and exec: only async-signal-safe calls.
[[noreturn]] void ExecChild(ExecArgs args, int log_fd, std::span<const int> kept, pid_t parent) {
  ::setpgid(0, 0);
  DieWithParent(parent);
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  const int null_fd = ::open("/dev/null", O_RDONLY);
  ::dup2(null_fd, STDIN_FILENO);
  ::dup2(log_fd, STDOUT_FILENO);
  ::dup2(log_fd, STDERR_FILENO);
  for (const int fd : kept) {
    if (fd >= 0) ::fcntl(fd, F_SETFD, 0);
  }
  ::execve(kThisProgram, args.argv, args.envp);
  const char* const reason = ErrnoText(errno);
  // stderr is the log, of which the parent repeats the last line. ErrnoText is async-signal-safe.
  for (const char* piece : {"cannot execute ", kThisProgram, ": ", reason, "\n"}) {
    if (::write(STDERR_FILENO, piece, std::strlen(piece)) < 0) break;
  }
  ::_exit(127);
}

}  // namespace

void SendReportToParent(const ChildReport& report) {
  const char* text = std::getenv(kReportFdVariable);
  int fd = -1;
  if (text == nullptr || !absl::SimpleAtoi(text, &fd)) return;
  nlohmann::json object(report);
  const std::string line = object.dump() + "\n";
  size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t n = ::write(fd, line.data() + sent, line.size() - sent);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
}

StatusOr<ChildProcess> ChildProcess::Start(const ChildSpec& spec) {
  std::string log_file = spec.log_file;
  UniqueFd log(::open(spec.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log) {
    const std::string failure = fmt::format("cannot write {}: {}", spec.log_file, ErrnoText(errno));
    if (!spec.starts_without_log) return Unavailable("{}", failure);
    PrintToStderr("{}; {} logs here\n", failure, spec.name);
    log_file.clear();
    log.reset(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
    if (!log) return Unavailable("stderr: {}", ErrnoText(errno));
  }
  const off_t log_begin = std::max<off_t>(0, ::lseek(log.get(), 0, SEEK_END));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Unavailable("pipe: {}", ErrnoText(errno));
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> args = {"baton", spec.role};
  args.insert(args.end(), spec.args.begin(), spec.args.end());
  std::vector<char*> argv;
  argv.reserve(args.size() + 1);
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  std::vector<std::string> variables = ChildEnvironment(spec, writer.get());
  std::vector<char*> envp;
  envp.reserve(variables.size() + 1);
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);
  std::vector<int> kept = spec.tokenizer_fds;
  kept.insert(kept.end(), {writer.get(), spec.model_fd, spec.cores_fd, spec.weights_fd});
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ExecChild({.argv = argv.data(), .envp = envp.data()}, log.get(), kept, parent);
  }
  if (pid < 0) return Unavailable("fork: {}", ErrnoText(errno));
  ChildProcess process(pid, std::move(reader));
  process.log_file_ = std::move(log_file);
  process.log_begin_ = log_begin;
  return process;
}

StatusOr<std::optional<ChildReport>> ChildProcess::ReadReport() {
  char piece[4096];
  bool is_at_end = false;
  for (;;) {
    const ssize_t n = ::read(report_.get(), piece, sizeof(piece));
    if (n < 0 && errno == EINTR) continue;
    is_at_end = n == 0;
    if (n <= 0) break;  // EAGAIN: nothing more now
    buffer_.append(piece, static_cast<size_t>(n));
    if (buffer_.size() > kMaxReportBytes) return DataLoss("report of {} bytes", buffer_.size());
  }
  const size_t end = buffer_.find('\n');
  if (end == std::string::npos) {
    if (!is_at_end) return std::optional<ChildReport>();
    report_.reset();
    return DataLoss("the process closed its report pipe");
  }
  const nlohmann::json object =
      nlohmann::json::parse(buffer_.substr(0, end), nullptr, /*allow_exceptions=*/false);
  buffer_.erase(0, end + 1);
  if (!object.is_object()) return DataLoss("the report is no JSON object");
  ChildReport report;
  for (const auto& [key, value] : object.items()) {
    if (value.is_string()) report[key] = value.get<std::string>();
  }
  return std::optional<ChildReport>(std::move(report));
}

void ChildProcess::Signal(int number) const { ::kill(pid_, number); }

std::string ChildProcess::LastLogLine() const {
  return baton::cli::LastLogLine(log_file_, log_begin_);
}

std::string LastLogLine(const std::string& path, off_t begin) {
  std::ifstream file(path, std::ios::ate);
  const auto size = static_cast<off_t>(file.tellg());
  file.seekg(size < begin ? 0 : begin);
  std::string line;
  std::string last;
  while (std::getline(file, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

}  // namespace baton::cli
