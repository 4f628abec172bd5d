// The subcommands of `baton`. Each takes the arguments after its name and returns the exit code.
#ifndef BATON_CLI_COMMANDS_H_
#define BATON_CLI_COMMANDS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace baton::cli {

class FlagSet;

// A row of the command table.
struct Command {
  std::string_view name;
  std::string_view about;  // one line for `baton --help`
  int (*run)(const std::vector<std::string>& args);
};

// Every subcommand that works, in the order of --help.
std::span<const Command> Commands();

int RunServe(const std::vector<std::string>& args);  // serve.cc
// Tells `flags` which flags `baton serve` has, for errors about them.
void AddServeFlagsElsewhere(FlagSet& flags);                  // serve.cc
int RunRun(const std::vector<std::string>& args);             // chat_command.cc
int RunChat(const std::vector<std::string>& args);            // chat_command.cc
int RunRouter(const std::vector<std::string>& args);          // router_command.cc
int RunPrefill(const std::vector<std::string>& args);         // roles.cc
int RunDecode(const std::vector<std::string>& args);          // roles.cc
int RunPull(const std::vector<std::string>& args);            // file_commands.cc
int RunBench(const std::vector<std::string>& args);           // bench_command.cc
int RunBenchLoad(const std::vector<std::string>& args);       // bench_load_command.cc
int RunInspectCommand(const std::vector<std::string>& args);  // file_commands.cc
int RunConvert(const std::vector<std::string>& args);         // convert_command.cc
int RunEval(const std::vector<std::string>& args);            // eval_command.cc
int RunSim(const std::vector<std::string>& args);             // sim_command.cc
int RunPlan(const std::vector<std::string>& args);            // plan/plan_command.cc
int RunDrain(const std::vector<std::string>& args);           // drain_command.cc
int RunDoctor(const std::vector<std::string>& args);          // doctor_command.cc
int RunTop(const std::vector<std::string>& args);             // top/top_command.cc
int RunTopo(const std::vector<std::string>& args);            // top/topo_command.cc
int RunTrace(const std::vector<std::string>& args);           // trace/trace_commands.cc
int RunWhy(const std::vector<std::string>& args);             // trace/trace_commands.cc
int RunList(const std::vector<std::string>& args);            // model_commands.cc
int RunShow(const std::vector<std::string>& args);            // file_commands.cc
int RunRm(const std::vector<std::string>& args);              // model_commands.cc
int RunPs(const std::vector<std::string>& args);              // model_commands.cc
int RunCompletion(const std::vector<std::string>& args);      // completion_command.cc
int RunExplain(const std::vector<std::string>& args);         // explain_command.cc
int RunMcp(const std::vector<std::string>& args);             // mcp/mcp_command.cc
int RunVersion(const std::vector<std::string>& args);         // file_commands.cc

}  // namespace baton::cli

#endif  // BATON_CLI_COMMANDS_H_
