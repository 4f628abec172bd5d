// Runs a helper program and waits for it, so that neither it nor what it wrote outlives us. The
// calling thread forks; one program at a time.
#ifndef BATON_CLI_CHILD_PROGRAM_H_
#define BATON_CLI_CHILD_PROGRAM_H_

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace baton::cli {

// In a child that was just forked: it dies with `parent`, at once if that is dead already.
void DieWithParent(pid_t parent);

// Adds `signal` to `set` unless it is ignored, as SIGHUP is by nohup(1): whoever starts a program
// so wants it to outlive the terminal.
void AddUnlessIgnored(int signal, sigset_t* set);

// Holds back the signals that end a program (SIGINT, SIGTERM, SIGHUP; not those that are ignored)
// while it lives, so that files can be removed first. One that came takes effect when this object
// ends. Other threads must not let these signals through.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // Takes a signal that has come, waiting at most `wait_ms`; true once one has.
  bool HasCome(int wait_ms);
  // The mask that was there before, for a child.
  const sigset_t& before() const { return before_; }

 private:
  sigset_t held_;
  sigset_t before_;
  int come_ = 0;
};

// Exit codes of RunProgram beside the program's own.
inline constexpr int kProgramNotStarted = -1;   // no process, or the program was killed
inline constexpr int kProgramInterrupted = -2;  // a held signal came; the program was killed

// Runs `args` with its stdout discarded; its stderr is ours. Each "NAME=VALUE" of `environment` is
// added. The program dies with us. Returns its exit code, or one of the above.
int RunProgram(const std::vector<std::string>& args, const std::vector<std::string>& environment,
               HeldSignals& signals);

}  // namespace baton::cli

#endif  // BATON_CLI_CHILD_PROGRAM_H_
