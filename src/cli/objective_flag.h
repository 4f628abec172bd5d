// The flag --slo of `serve`, `router`, `prefill` and `decode`: serve passes it on unchanged.
#ifndef BATON_CLI_OBJECTIVE_FLAG_H_
#define BATON_CLI_OBJECTIVE_FLAG_H_

#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/cli/flags.h"
#include "src/router/service_objective.h"

namespace baton::cli {

void DeclareObjective(FlagSet& flags, std::string& text);

// "ttft=500ms,itl=50ms", either part alone; "" = no objective. InvalidArgument that names the part,
// its value and its range: 1 ms to 600 s of ttft, 1 ms to 60 s of itl.
StatusOr<router::ServiceObjective> ParseObjective(std::string_view text);

// The flag that gives another process the same objective.
void AppendObjective(const std::string& text, std::vector<std::string>& args);

}  // namespace baton::cli

#endif  // BATON_CLI_OBJECTIVE_FLAG_H_
