// Other programs: run to their end, or beside us.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_PROGRAM_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_PROGRAM_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::kernels::gpu_check {

// The path of a program: on PATH, else in one of the folders; "" when it is nowhere.
std::string FindProgram(const std::string& name, const std::vector<std::string>& folders = {});

// The path of this program; "" when the system does not tell it.
std::string OwnPath();

// A running program whose output (both streams) is read; ended, by its id, with this object.
class Program {
 public:
  Program() = default;
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Unavailable when it cannot be started. Its first word is a path or is found on PATH.
  absl::Status Start(const std::vector<std::string>& words);
  // Gives the output that the program has written since the last call, and waits for some when told
  // to. False at its end.
  bool Read(bool wait, std::string* output);
  // Ends it; does not wait until it has ended.
  void Kill() const;
  // Its exit status, 128 + the signal that ended it; waits for it.
  int Wait();

 private:
  pid_t id_ = -1;
  int pipe_ = -1;
};

// Exit statuses of timeout(1): the program ended by itself when it was told to, or had to be
// killed.
inline constexpr int kExitStopped = 124;
inline constexpr int kExitStoppedByForce = 137;
// The exit status of env(1) when it did not find the program.
inline constexpr int kExitNoProgram = 127;

// timeout(1) around a program, which is killed when it has not ended a second after it was told to;
// `seconds` 0: as long as it takes. The program loads only those kernels of a library that run.
std::vector<std::string> WithinSeconds(double seconds, const std::vector<std::string>& words);

// Runs it to its end; `on_line` gets each line of its output as it comes, and ends it with an
// error. The exit status as Program::Wait's.
absl::StatusOr<int> RunProgram(const std::vector<std::string>& words,
                               const std::function<absl::Status(std::string_view)>& on_line);

// The folders in which a python finds packages; none for "", or when it does not run.
std::vector<std::string> PackagesOf(const std::string& python);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_PROGRAM_H_
