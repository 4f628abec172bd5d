// Flags of every process about who may reach its HTTP ports from a browser; serve passes them on
// unchanged.
#ifndef BATON_CLI_SITE_FLAGS_H_
#define BATON_CLI_SITE_FLAGS_H_

#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/cli/flags.h"
#include "src/http/site_rules.h"

namespace baton::cli {

// Lists as typed.
struct SiteFlags {
  std::string allowed_hosts;
  std::string cors_origins;
};

void DeclareSites(FlagSet& flags, SiteFlags& sites);

// InvalidArgument naming the flag and the element that is wrong.
StatusOr<http::SiteRules> SitesOf(const SiteFlags& sites);

// The flags that tell another process the same.
void AppendSites(const SiteFlags& sites, std::vector<std::string>& args);

}  // namespace baton::cli

#endif  // BATON_CLI_SITE_FLAGS_H_
