// What is on this machine: `list`, `show` and `rm` of models, `ps` of servers.
#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

#include "src/base/print.h"
#include "src/base/regular_file.h"
#include "src/base/size_text.h"
#include "src/base/unique_fd.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/home_folder.h"
#include "src/cli/model_listing.h"
#include "src/cli/model_store.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTopologyBytes = size_t{4} << 20;

// Whether a server lives in the run folder: it holds the lock.
bool IsHeld(const fs::path& folder) {
  const UniqueFd lock(::open((folder / "lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  return lock && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0;
}

std::string Text(const nlohmann::json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (!object.is_object() || found == object.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

// Prints the processes of one server.
void PrintServer(const fs::path& folder) {
  const StatusOr<std::string> text =
      ReadInput((folder / "topology.json").string(), kMaxTopologyBytes);
  if (!text.ok()) return;
  const auto root = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const std::string model = Text(root, "model");
  const auto rows = root.is_object() ? root.find("processes") : root.end();
  if (!root.is_object() || rows == root.end() || !rows->is_array()) return;
  for (const nlohmann::json& row : *rows) {
    const std::string http = Text(row, "http");
    Print("{:<20} {:<12} {:<8} {:<22} {}\n", model, Text(row, "worker_id"), Text(row, "pid"),
          http.empty() ? Text(row, "grpc") : "http://" + http, folder.string());
  }
}

}  // namespace

int RunList(const std::vector<std::string>& args) {
  FlagSet flags("list", "Lists the models in ${BATON_HOME:-~/.cache/baton}/models.");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (const Status status = HomeFolder().status(); !status.ok()) return Fail("list", status);
  const std::string folder = ModelsFolder();
  const std::vector<ListedModel> models = ListModels(folder);
  for (const ListedModel& model : models) {
    Print("{:<40} {:>10}  {}\n", model.name, FormatSize(model.bytes), model.path);
  }
  if (models.empty()) Print("no models in {}; fetch one with: baton pull smollm2:135m\n", folder);
  return kExitOk;
}

int RunRm(const std::vector<std::string>& args) {
  FlagSet flags("rm", "Removes a model from ${BATON_HOME:-~/.cache/baton}/models.");
  std::string name;
  flags.Add("MODEL", name, "a name that `baton list` shows");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (name.empty()) return Fail("rm", InvalidArgument("MODEL is missing"), kExitUsage);
  if (const Status status = HomeFolder().status(); !status.ok()) return Fail("rm", status);
  const StatusOr<ListedModel> model = RemoveModel(ModelsFolder(), name);
  if (!model.ok()) return Fail("rm", model.status());
  Print("removed {} ({})\n", model->path, FormatSize(model->bytes));
  return kExitOk;
}

int RunPs(const std::vector<std::string>& args) {
  FlagSet flags("ps",
                "Lists the processes of this user's servers that have no --run-dir of their own.");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  const StatusOr<std::string> home = WritableHome();
  if (!home.ok()) return Fail("ps", home.status());
  std::vector<fs::path> folders;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(*home + "/run", error)) {
    if (entry.is_directory(error) && IsHeld(entry.path())) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  for (const fs::path& folder : folders) PrintServer(folder);
  if (folders.empty()) {
    Print("no server has its folder in {}/run; of one with --run-dir ask `baton topo --admin`\n",
          *home);
  }
  return kExitOk;
}

int RunShow(const std::vector<std::string>& args) { return RunInspectCommand(args); }

}  // namespace baton
