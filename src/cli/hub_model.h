// The files of a model hub that a name means: hf:ORG/REPO/FILE.gguf, hf:ORG/REPO:QUANT,
// hf:ORG/REPO. Pure functions, except ListHubFiles.
#ifndef BATON_CLI_HUB_MODEL_H_
#define BATON_CLI_HUB_MODEL_H_

#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace baton::cli {

// A name that begins with "hf:", taken apart.
struct HubName {
  std::string repository;  // ORG/REPO
  std::string file;        // path inside the repository, or "" when it is to be found
  std::string quant;       // "Q4_K_M" of hf:ORG/REPO:Q4_K_M, or ""
};

// InvalidArgument for a name of another form; Unimplemented for a file that is no .gguf.
StatusOr<HubName> ParseHubName(std::string_view name);

// All files of the model that `file` belongs to, in order: of NAME-00002-of-00003.gguf the three,
// else the file itself. InvalidArgument when its numbers make no sense, or are beyond kMaxParts.
inline constexpr int kMaxParts = 1000;
StatusOr<std::vector<std::string>> PartsOf(const std::string& file);

// Chooses one model among the .gguf files of a repository, and gives its first (or only) file.
// Projectors (mmproj) and importance matrices are no models. With `quant` the file's name, or the
// folder it is in, must have that word, in any case. Without, the only model, else the only one of
// Q4_K_M, else the only one of Q8_0. NotFound when there is none, InvalidArgument when there are
// several; both list the models and say how to choose.
StatusOr<std::string> ChooseFile(const HubName& name, const std::vector<std::string>& files);

// The names of all files of the repository, by the hub's API. Errors as WebCall's, NotFound for a
// repository that does not exist, PermissionDenied where HF_TOKEN is missing or may not read it.
StatusOr<std::vector<std::string>> ListHubFiles(const std::string& repository);

}  // namespace baton::cli

#endif  // BATON_CLI_HUB_MODEL_H_
