#include "src/cli/site_flags.h"

namespace baton::cli {

using http::ParseAllowedHosts;
using http::ParseCorsOrigins;
using http::SiteRules;

void DeclareSites(FlagSet& flags, SiteFlags& sites) {
  flags.AddJoined(
      "--allowed-hosts", sites.allowed_hosts,
      "names (HOST or HOST:PORT, with commas) that requests may have in their Host field "
      "while a port listens on a loopback address, besides localhost, 127.0.0.0/8 and [::1]: "
      "those that a proxy on this host passes on; others are answered 403");
  flags.AddJoined(
      "--cors-origins", sites.cors_origins,
      "origins (SCHEME://HOST[:PORT], with commas) of web pages that may send requests and "
      "read the answers; a POST of any other page is answered 403; default: none");
}

StatusOr<SiteRules> SitesOf(const SiteFlags& sites) {
  SiteRules rules;
  BATON_ASSIGN_OR_RETURN(rules.hosts, ParseAllowedHosts(sites.allowed_hosts));
  BATON_ASSIGN_OR_RETURN(rules.origins, ParseCorsOrigins(sites.cors_origins));
  return rules;
}

void AppendSites(const SiteFlags& sites, std::vector<std::string>& args) {
  if (!sites.allowed_hosts.empty()) args.push_back("--allowed-hosts=" + sites.allowed_hosts);
  if (!sites.cors_origins.empty()) args.push_back("--cors-origins=" + sites.cors_origins);
}

}  // namespace baton::cli
