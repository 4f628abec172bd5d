#include "tests/kernels/gpu_check/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "src/base/status.h"

extern char** environ;

namespace baton::kernels::gpu_check {

std::string FindProgram(const std::string& name, const std::vector<std::string>& folders) {
  const char* const path = std::getenv("PATH");
  std::vector<std::string> all;
  std::string_view rest = path != nullptr ? path : "";
  while (!rest.empty()) {
    const size_t end = rest.find(':');
    all.emplace_back(rest.substr(0, end));
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  all.insert(all.end(), folders.begin(), folders.end());
  for (const std::string& folder : all) {
    const std::string candidate = folder + "/" + name;
    if (!folder.empty() && access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

std::string OwnPath() {
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : "";
}

Program::~Program() {
  Kill();
  Wait();
  if (pipe_ >= 0) close(pipe_);
}

absl::Status Program::Start(const std::vector<std::string>& words) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Unavailable("pipe: {}", std::strerror(errno));
  pipe_ = ends[0];
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  const int error = posix_spawnp(&id_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error == 0) return absl::OkStatus();
  id_ = -1;
  return Unavailable("{}: {}", words[0], std::strerror(error));
}

bool Program::Read(bool wait, std::string* output) {
  if (pipe_ < 0) return false;
  while (true) {
    pollfd ready = {pipe_, POLLIN, 0};
    if (poll(&ready, 1, wait ? -1 : 0) <= 0) return true;
    char buffer[4096];
    const ssize_t count = read(pipe_, buffer, sizeof(buffer));
    if (count <= 0) return false;
    output->append(buffer, static_cast<size_t>(count));
    wait = false;
  }
}

void Program::Kill() const {
  if (id_ > 0) kill(id_, SIGKILL);
}

int Program::Wait() {
  if (id_ <= 0) return 127;
  int status = 0;
  while (waitpid(id_, &status, 0) < 0 && errno == EINTR) {
  }
  id_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<std::string> WithinSeconds(double seconds, const std::vector<std::string>& words) {
  std::vector<std::string> all = {"timeout", "--kill-after=1", fmt::format("{:.1f}", seconds),
                                  "env", "CUDA_MODULE_LOADING=LAZY"};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

absl::StatusOr<int> RunProgram(const std::vector<std::string>& words,
                               const std::function<absl::Status(std::string_view)>& on_line) {
  Program program;
  BATON_RETURN_IF_ERROR(program.Start(words));
  std::string output;
  bool is_open = true;
  while (is_open) {
    is_open = program.Read(/*wait=*/true, &output);
    if (!is_open && !output.empty() && output.back() != '\n') output += '\n';
    size_t done = 0;
    for (size_t end = output.find('\n'); end != std::string::npos; end = output.find('\n', done)) {
      BATON_RETURN_IF_ERROR(on_line(std::string_view(output).substr(done, end - done)));
      done = end + 1;
    }
    output.erase(0, done);
  }
  return program.Wait();
}

std::vector<std::string> PackagesOf(const std::string& python) {
  if (python.empty()) return {};
  std::vector<std::string> folders;
  const auto note = [&folders](std::string_view line) {
    if (line.starts_with("/")) folders.emplace_back(line);
    return absl::OkStatus();
  };
  const auto code = RunProgram({python, "-c", "import sys; print('\\n'.join(sys.path))"}, note);
  return code.ok() && *code == 0 ? folders : std::vector<std::string>();
}

}  // namespace baton::kernels::gpu_check
