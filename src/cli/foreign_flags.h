// Flags of other inference servers (vLLM, SGLang, llama-server, Ollama, TGI): what does their work
// here, or why nothing does. Pure; any thread.
#ifndef BATON_CLI_FOREIGN_FLAGS_H_
#define BATON_CLI_FOREIGN_FLAGS_H_

#include <span>
#include <string_view>

#include "src/cli/flags.h"

namespace baton::cli {

// One thing that others have flags for.
struct ForeignFlag {
  std::string_view names;  // of their flags, with blanks between
  std::string_view ours;   // the flag or argument here that does it; "" = holds for every command
  std::string_view text;   // one line for an error message
};

std::span<const ForeignFlag> ForeignFlags();

// Gives `flags` a hint for each of these names. A row whose flag this set lacks gets `elsewhere`
// before its text, and no hint where that is "".
void AddForeignHints(FlagSet& flags, std::string_view elsewhere = "");

}  // namespace baton::cli

#endif  // BATON_CLI_FOREIGN_FLAGS_H_
