// Subcommands about this machine: `list` and `rm` of models, `ps` of servers.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "nlohmann/json.hpp"

#include "src/base/file_lock.h"
#include "src/base/folder_entries.h"
#include "src/base/print.h"
#include "src/base/quoted_text.h"
#include "src/base/regular_file.h"
#include "src/base/size_text.h"
#include "src/base/unique_fd.h"
#include "src/cli/commands.h"
#include "src/cli/flags.h"
#include "src/cli/home_folder.h"
#include "src/cli/json_fields.h"
#include "src/cli/model_listing.h"
#include "src/cli/model_store.h"
#include "src/text/utf8.h"

namespace baton::cli {

using text::ValidUtf8Prefix;

namespace {

namespace fs = std::filesystem;

// A name of a file as a terminal may show it: in quotes, with other than printable ASCII bytes by
// their numbers, where it has control characters or is no UTF-8.
std::string Shown(const std::string& name) {
  const bool is_plain =
      ValidUtf8Prefix(name) == name.size() && LineForMessage(name, name.size()) == name;
  return is_plain ? name : fmt::format("\"{}\"", absl::CHexEscape(name));
}

constexpr size_t kMaxTopologyBytes = size_t{4} << 20;

std::string Text(const nlohmann::json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (!object.is_object() || found == object.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

// The topology.json of a run folder; null when there is none.
nlohmann::json TopologyIn(const fs::path& folder) {
  const StatusOr<std::string> text =
      ReadInput((folder / "topology.json").string(), kMaxTopologyBytes);
  if (!text.ok()) return nullptr;
  return nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
}

// Whether a server lives in the run folder: it holds the lock. On a file system without locks: one
// of its processes is there.
bool Lives(const fs::path& folder) {
  const UniqueFd lock(::open((folder / "lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!lock) return false;
  const LockState state = TryFileLock(lock.get(), LOCK_SH | LOCK_NB).state;
  if (state != LockState::kNoLocks) return state == LockState::kHeld;
  const nlohmann::json rows = ArrayOf(TopologyIn(folder), "processes");
  return std::any_of(rows.begin(), rows.end(), [](const nlohmann::json& row) {
    pid_t pid = 0;
    return absl::SimpleAtoi(Text(row, "pid"), &pid) && pid > 0 && ::kill(pid, 0) == 0;
  });
}

// " (3 of 3 parts)" for a split model, and what is missing of one that is not whole.
std::string PartsText(const ListedModel& model) {
  if (!model.is_whole()) return fmt::format(" ({})", Shown(IncompleteText(model)));
  if (model.num_parts == 1) return "";
  return fmt::format(" ({} of {} parts)", model.paths.size(), model.num_parts);
}

// Prints the processes of one server.
void PrintServer(const fs::path& folder) {
  const nlohmann::json root = TopologyIn(folder);
  const std::string model = Text(root, "model");
  const nlohmann::json rows = ArrayOf(root, "processes");
  for (const nlohmann::json& row : rows) {
    const std::string http = Text(row, "http");
    const std::string scheme = row.contains("https") ? "https://" : "http://";
    Print("{:<20} {:<12} {:<8} {:<22} {}\n", Shown(model), Text(row, "worker_id"), Text(row, "pid"),
          http.empty() ? Text(row, "grpc") : scheme + http, Shown(folder.string()));
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
    Print("{:<40} {:>10}  {}{}\n", Shown(model.name), FormatSize(model.bytes), Shown(model.path),
          PartsText(model));
  }
  if (models.empty()) Print("no models in {}; fetch one with: baton pull smollm2:135m\n", folder);
  return kExitOk;
}

int RunRm(const std::vector<std::string>& args) {
  FlagSet flags("rm", "Removes a model from ${BATON_HOME:-~/.cache/baton}/models.");
  std::string name;
  flags.Add("MODEL", name, "a name that `baton list` shows, or the name it was pulled by");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  if (name.empty()) return Fail("rm", InvalidArgument("MODEL is missing"), kExitUsage);
  if (const Status status = HomeFolder().status(); !status.ok()) return Fail("rm", status);
  const StatusOr<ListedModel> model = RemoveModel(ModelsFolder(), name);
  if (!model.ok()) return Fail("rm", model.status());
  Print("removed {} ({})\n", Shown(model->path), FormatSize(model->bytes));
  return kExitOk;
}

int RunPs(const std::vector<std::string>& args) {
  FlagSet flags("ps",
                "Lists the processes of this user's servers that have no --run-dir of their own.");
  if (std::optional<int> code = flags.Parse(args)) return *code;
  const StatusOr<std::string> home = WritableHome();
  if (!home.ok()) return Fail("ps", home.status());
  std::vector<fs::path> folders;
  for (const fs::directory_entry& entry : FolderEntries(*home + "/run")) {
    std::error_code error;
    if (entry.is_directory(error) && Lives(entry.path())) folders.push_back(entry.path());
  }
  for (const fs::path& folder : folders) PrintServer(folder);
  if (folders.empty()) {
    Print("no server has its folder in {}/run; of one with --run-dir ask `baton topo --admin`\n",
          *home);
  }
  return kExitOk;
}

}  // namespace baton::cli
