// `baton completion SHELL`: a script with which a shell completes subcommands and flags.
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_replace.h"
#include "fmt/ranges.h"

#include "src/base/nearest_name.h"
#include "src/base/print.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"

namespace baton::cli {
namespace {

// A script for one shell. COMMANDS stands for the names of all subcommands. Flags are those that
// --help of the subcommand lists when they are asked for, and codes and models are those that
// `explain` and `list` print, so no list of them can be out of date.
struct Shell {
  std::string_view name;
  std::string_view script;
};

constexpr Shell kShells[] = {
    {"bash", R"sh(# In ~/.bashrc: source <(baton completion bash)
_baton() {
  local word="${COMP_WORDS[COMP_CWORD]}" words=""
  if [[ $COMP_CWORD -eq 1 ]]; then
    words="COMMANDS"
  elif [[ $word == -* ]]; then
    words="$("${COMP_WORDS[0]}" "${COMP_WORDS[1]}" --help 2>/dev/null |
      sed -nE 's/^ +(-[a-z],)?(--[a-z0-9-]+).*/\2/p')"
  elif [[ $COMP_CWORD -eq 2 ]]; then
    case "${COMP_WORDS[1]}" in
      completion) words="bash zsh fish" ;;
      explain) words="$("${COMP_WORDS[0]}" explain 2>/dev/null | sed 's/ .*//')" ;;
      serve | run | show | inspect | rm)
        words="$("${COMP_WORDS[0]}" list 2>/dev/null | sed 's/ .*//')" ;;
    esac
  fi
  COMPREPLY=()
  [[ -n $words ]] && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _baton baton
)sh"},
    {"zsh", R"sh(#compdef baton
# In ~/.zshrc, after compinit: source <(baton completion zsh)
_baton() {
  if (( CURRENT == 2 )); then
    compadd -- COMMANDS
  elif [[ ${words[CURRENT]} == -* ]]; then
    compadd -- $("${words[1]}" "${words[2]}" --help 2>/dev/null |
      sed -nE 's/^ +(-[a-z],)?(--[a-z0-9-]+).*/\2/p')
  elif (( CURRENT == 3 )) && [[ ${words[2]} == completion ]]; then
    compadd -- bash zsh fish
  elif (( CURRENT == 3 )) && [[ ${words[2]} == explain ]]; then
    compadd -- $("${words[1]}" explain 2>/dev/null | sed 's/ .*//')
  else
    if (( CURRENT == 3 )) && [[ ${words[2]} == (serve|run|show|inspect|rm) ]]; then
      compadd -- $("${words[1]}" list 2>/dev/null | sed 's/ .*//')
    fi
    _files
  fi
}
compdef _baton baton
)sh"},
    {"fish", R"sh(# baton completion fish > ~/.config/fish/completions/baton.fish
function __baton_flags
  baton (commandline -opc)[2] --help 2>/dev/null |
    string replace -rf -- '^ +(-[a-z],)?(--[a-z0-9-]+).*' '$2'
end
complete -c baton -f -n __fish_use_subcommand -a 'COMMANDS'
complete -c baton -n 'not __fish_use_subcommand; and string match -q -- "-*" (commandline -ct)' \
  -a '(__baton_flags)'
function __baton_second
  test (count (commandline -opc)) -eq 2; and contains -- (commandline -opc)[2] $argv
end
complete -c baton -f -n '__baton_second completion' -a 'bash zsh fish'
complete -c baton -f -n '__baton_second explain' \
  -a '(baton explain 2>/dev/null | string replace -r " .*" "")'
complete -c baton -n '__baton_second serve run show inspect rm' \
  -a '(baton list 2>/dev/null | string replace -r " .*" "")'
)sh"},
};

}  // namespace

int RunCompletion(const std::vector<std::string>& args) {
  FlagSet flags("completion",
                "Prints a script with which a shell completes subcommands and flags.");
  std::string wanted;
  flags.Add("SHELL", wanted, "bash, zsh or fish");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  std::vector<std::string_view> names;
  for (const Command& command : Commands()) names.push_back(command.name);
  std::vector<std::string_view> shells;
  for (const Shell& shell : kShells) {
    if (shell.name == wanted) {
      Print("{}", absl::StrReplaceAll(std::string(shell.script),
                                      {{"COMMANDS", fmt::format("{}", fmt::join(names, " "))}}));
      return kExitOk;
    }
    shells.push_back(shell.name);
  }
  const std::string nearest = NearestName(wanted, std::span<const std::string_view>(shells));
  return Fail("completion",
              InvalidArgument("SHELL is {}: give bash, zsh or fish{}",
                              wanted.empty() ? "missing" : fmt::format("'{}'", wanted),
                              nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)),
              kExitUsage);
}

}  // namespace baton::cli
