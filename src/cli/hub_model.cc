#include "src/cli/hub_model.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "src/base/quoted_text.h"
#include "src/cli/json_fields.h"
#include "src/cli/web_client.h"

namespace baton::cli {
namespace {

constexpr std::string_view kForms =
    "hf:ORG/REPO/FILE.gguf, hf:ORG/REPO:QUANT (for example hf:ORG/REPO:Q4_K_M) or hf:ORG/REPO";
constexpr const char* kPreferredQuants[] = {"Q4_K_M", "Q8_0"};
constexpr std::string_view kSuffix = ".gguf";
// A list of more names than fit on a screen helps nobody.
constexpr size_t kMaxListed = 40;
constexpr size_t kMaxListingBytes = size_t{32} << 20;

// The numbers of "...-00002-of-00003.gguf".
struct SplitName {
  std::string stem;  // what stands before
  int part = 0;
  int count = 0;
};

// part 0 when the file is not named like a part.
SplitName ParseSplitName(const std::string& file) {
  constexpr size_t kTail = sizeof("-00001-of-00001.gguf") - 1;
  SplitName split;
  if (file.size() <= kTail || !file.ends_with(kSuffix)) return split;
  const std::string tail = file.substr(file.size() - kTail);
  const auto number = [&tail](size_t begin) {
    const std::string digits = tail.substr(begin, 5);
    int value = 0;
    const bool all_digits = std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit);
    return all_digits && absl::SimpleAtoi(digits, &value) ? value : -1;
  };
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || number(1) < 0 || number(10) < 0) {
    return split;
  }
  split.stem = file.substr(0, file.size() - kTail);
  split.part = number(1);
  split.count = number(10);
  return split;
}

// Nothing that leads out of the repository's folder, or that a terminal would act on.
bool IsPlainPath(std::string_view path) {
  const std::vector<std::string> parts = absl::StrSplit(std::string(path), '/');
  for (const std::string& part : parts) {
    if (part.empty() || part == "." || part == "..") return false;
    for (const char c : part) {
      if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) return false;
    }
  }
  return true;
}

bool IsPart(const std::string& file) {
  const SplitName split = ParseSplitName(file);
  return !split.stem.empty();
}

bool IsModel(const std::string& file) {
  const std::string name = absl::AsciiStrToLower(file.substr(file.rfind('/') + 1));
  return name.ends_with(kSuffix) && !absl::StrContains(name, "mmproj") &&
         !absl::StrContains(name, "imatrix");
}

// The type that is asked for, "q4_k_m", stands between other characters than those of a type's
// name.
bool HasWord(const std::string& text, const std::string& word) {
  const auto is_inside = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !is_inside(text[at - 1]);
    if (begins && (end == text.size() || !is_inside(text[end]))) return true;
  }
  return false;
}

// The first file of a split model stands for all.
std::vector<std::string> ModelsIn(const std::vector<std::string>& files) {
  std::set<std::string> models;
  for (const std::string& file : files) {
    if (!IsModel(file)) continue;
    const SplitName split = ParseSplitName(file);
    const bool is_whole_name = split.stem.empty();
    models.insert(is_whole_name
                      ? file
                      : fmt::format("{}-00001-of-{:05}{}", split.stem, split.count, kSuffix));
  }
  return {models.begin(), models.end()};
}

std::vector<std::string> OfQuant(const std::vector<std::string>& models, const std::string& quant) {
  const std::string word = absl::AsciiStrToLower(quant);
  // "UD-Q4_K_M" is another type than "Q4_K_M", which it contains.
  const bool is_dynamic = absl::StrContains(word, "ud-");
  std::vector<std::string> found;
  for (const std::string& model : models) {
    const std::string lower = absl::AsciiStrToLower(model);
    const bool is_other = !is_dynamic && HasWord(lower, "ud-" + word);
    if (HasWord(lower, word) && !is_other) found.push_back(model);
  }
  return found;
}

std::string Listed(const std::string& repository, const std::vector<std::string>& models) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < models.size() && i < kMaxListed; ++i) {
    lines.push_back(fmt::format("hf:{}/{}", repository, models[i]));
  }
  if (models.size() > kMaxListed) {
    lines.push_back(fmt::format("and {} more", models.size() - kMaxListed));
  }
  return absl::StrJoin(lines, ", ");
}

}  // namespace

StatusOr<HubName> ParseHubName(std::string_view name) {
  const Status wrong = InvalidArgument("{} is not of the form {}", QuotedForMessage(name), kForms);
  if (!name.starts_with("hf:")) return wrong;
  std::vector<std::string> parts = absl::StrSplit(std::string(name.substr(3)), '/');
  if (parts.size() < 2) return wrong;
  HubName hub;
  if (parts.size() == 2) {
    const size_t colon = parts[1].find(':');
    if (colon != std::string::npos) {
      hub.quant = parts[1].substr(colon + 1);
      parts[1].resize(colon);
      if (hub.quant.empty()) return wrong;
    }
  }
  if (!IsPlainPath(absl::StrJoin(parts, "/"))) return wrong;
  for (size_t i = 0; i < 2; ++i) {
    // ORG--REPO is the folder of a repository: with other dashes two would share one.
    const std::string& part = parts[i];
    if (!absl::StrContains(part, "--") && !part.starts_with('-') && !part.ends_with('-')) continue;
    return InvalidArgument(
        "{}: {} has \"--\", or a \"-\" at an end, which no name on a hub has; the forms are {}",
        QuotedForMessage(name), QuotedForMessage(part), kForms);
  }
  hub.repository = parts[0] + "/" + parts[1];
  if (parts.size() == 2) return hub;
  hub.file = absl::StrJoin(parts.begin() + 2, parts.end(), "/");
  if (!hub.file.ends_with(kSuffix)) {
    return Unimplemented("{}: only .gguf files can be pulled from a hub; the forms are {}",
                         QuotedForMessage(name), kForms);
  }
  BATON_RETURN_IF_ERROR(PartsOf(hub.file).status());
  return hub;
}

StatusOr<std::vector<std::string>> PartsOf(const std::string& file) {
  if (!IsPart(file)) return std::vector<std::string>{file};
  const SplitName split = ParseSplitName(file);
  if (split.part < 1 || split.part > split.count || split.count > kMaxParts) {
    return InvalidArgument(
        "{} names part {} of {}; parts are numbered from 1, and a model has {} at most",
        QuotedForMessage(file), split.part, split.count, kMaxParts);
  }
  std::vector<std::string> parts;
  for (int i = 1; i <= split.count; ++i) {
    parts.push_back(fmt::format("{}-{:05}-of-{:05}{}", split.stem, i, split.count, kSuffix));
  }
  return parts;
}

StatusOr<std::string> ChooseFile(const HubName& name, const std::vector<std::string>& files) {
  const std::vector<std::string> models = ModelsIn(files);
  if (models.empty()) return NotFound("{} has no .gguf model", name.repository);
  if (!name.quant.empty()) {
    const std::vector<std::string> found = OfQuant(models, name.quant);
    if (found.size() == 1) return found[0];
    if (found.empty()) {
      return NotFound("{} has no model of type {}; choose one of: {}", name.repository,
                      QuotedForMessage(name.quant), Listed(name.repository, models));
    }
    return InvalidArgument("{} has several models of type {}; choose one of: {}", name.repository,
                           QuotedForMessage(name.quant), Listed(name.repository, found));
  }
  if (models.size() == 1) return models[0];
  for (const char* quant : kPreferredQuants) {
    const std::vector<std::string> found = OfQuant(models, quant);
    if (found.size() == 1) return found[0];
  }
  return InvalidArgument(
      "{} has {} models, and not exactly one of type Q4_K_M or Q8_0; choose one by its name or by "
      "hf:{}:QUANT: {}",
      name.repository, models.size(), name.repository, Listed(name.repository, models));
}

namespace {

// The names in an answer of the hub: {"siblings": [{"rfilename": ..}]}, or [{"path": ..}].
StatusOr<std::vector<std::string>> NamesIn(const std::string& body, const std::string& url) {
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> names;
  const bool is_list = json.is_array();
  if (!is_list && !json.is_object()) return DataLoss("{} answered no JSON", url);
  const nlohmann::json rows = is_list ? json : ArrayOf(json, "siblings");
  for (const nlohmann::json& row : rows) {
    const std::string file = row.is_object() ? TextOf(row, is_list ? "path" : "rfilename") : "";
    if (IsPlainPath(file)) names.push_back(file);
  }
  return names;
}

StatusOr<std::vector<std::string>> AskListing(const std::string& url, const std::string& token) {
  constexpr int kMaxRedirects = 5;
  WebRequest request{.url = url, .max_redirects = kMaxRedirects};
  if (!token.empty()) request.authorization = "Bearer " + token;
  std::string body;
  BATON_ASSIGN_OR_RETURN(
      const WebHead head, WebCall(request, nullptr, [&body](std::string_view piece) {
        body.append(piece);
        return body.size() <= kMaxListingBytes
                   ? OkStatus()
                   : ResourceExhausted("the list of files has more than {} bytes",
                                       kMaxListingBytes);
      }));
  if (head.status == 404) return NotFound("{} does not exist", url);
  if (head.status == 401 || head.status == 403) {
    return PermissionDenied(
        "{} answered {}: the repository does not exist, or HF_TOKEN must be a token that may read "
        "it",
        url, head.status);
  }
  if (head.status != 200) return Unavailable("{} answered {}; try again later", url, head.status);
  return NamesIn(body, url);
}

}  // namespace

StatusOr<std::vector<std::string>> ListHubFiles(const std::string& repository) {
  BATON_ASSIGN_OR_RETURN(const std::string base, HubEndpoint());
  BATON_ASSIGN_OR_RETURN(const std::string token, HubToken());
  const std::string url = fmt::format("{}/api/models/{}", base, UrlPart(repository));
  const StatusOr<std::vector<std::string>> files = AskListing(url, token);
  // Mirrors exist that have only one of the two calls.
  const bool try_tree = absl::IsNotFound(files.status()) || (files.ok() && files->empty());
  if (!try_tree) return files;
  StatusOr<std::vector<std::string>> tree = AskListing(url + "/tree/main?recursive=true", token);
  return tree.ok() ? tree : files;
}

}  // namespace baton::cli
