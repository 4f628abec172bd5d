// `baton inspect FILE`: describes a model file.
#ifndef BATON_CLI_INSPECT_H_
#define BATON_CLI_INSPECT_H_

#include <ostream>
#include <string>

#include "src/base/status.h"

namespace baton {

// Prints the description of the model file at `path` to `out` and returns 0. For any file that
// `serve` would refuse (for the file's sake, not for want of memory here) returns 1 after exactly
// one line on `err` with the reason (and, when the file could at least be read, its description on
// `out`). `name`: what is wrong with the file's name, if anything.
int RunInspect(const std::string& path, const Status& name, std::ostream& out, std::ostream& err);

}  // namespace baton

#endif  // BATON_CLI_INSPECT_H_
