// `baton topo`: the links between prefill and decode workers of a running cluster.
#include <cstdio>

#include "src/cli/admin_page.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/top/topo_matrix.h"

namespace baton::cli {

int RunTopo(const std::vector<std::string>& args) {
  FlagSet flags("topo",
                "Shows the links from each prefill to each decode worker of a running cluster: how "
                "KV crosses, and how fast it did in the last hand-offs.");
  std::string admin = "127.0.0.1:9090";
  bool as_json = false;
  flags.AddAdmin("--admin", admin, "admin address of a router");
  flags.AddHint("--url", "give the router's admin address: --admin HOST:PORT");
  flags.Add("--json", as_json, "JSON instead of a table");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  const StatusOr<std::string> page = ReadAdminPage(admin, "/v1/topology");
  if (!page.ok()) return Fail("topo", page.status());
  const StatusOr<TopSnapshot> cluster = ReadTopTopology(*page);
  if (!cluster.ok()) return Fail("topo", cluster.status());
  std::fputs((as_json ? TopoJson(*cluster) : TopoText(*cluster)).c_str(), stdout);
  return kExitOk;
}

}  // namespace baton::cli
