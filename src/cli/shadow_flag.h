// The flag --shadow, which `serve` hands unchanged to its router.
#ifndef BATON_CLI_SHADOW_FLAG_H_
#define BATON_CLI_SHADOW_FLAG_H_

#include <string>

#include "src/base/status.h"
#include "src/cli/flags.h"

namespace baton {

// `share` as typed; "0" by default.
void DeclareShadow(FlagSet& flags, std::string& share);

// A number from 0 to 1; InvalidArgument for anything else.
StatusOr<double> ParseShadow(const std::string& share);

}  // namespace baton

#endif  // BATON_CLI_SHADOW_FLAG_H_
