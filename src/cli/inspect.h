// `baton inspect FILE` and `baton show FILE`: describe a model file.
#ifndef BATON_CLI_INSPECT_H_
#define BATON_CLI_INSPECT_H_

#include <ostream>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton::cli {

// Prints the description of the model file at `path` to `out` and returns 0. Returns 1 for any file
// that `serve` would refuse for the file's sake, not for want of memory here. Then `err` gets
// exactly one line with the reason, and `out` gets the description when the file could at least be
// read. `command`: the subcommand, which begins that line; `name`: what is wrong with the file's
// name, if anything.
int RunInspect(std::string_view command, const std::string& path, const Status& name,
               std::ostream& out, std::ostream& err);

}  // namespace baton::cli

#endif  // BATON_CLI_INSPECT_H_
