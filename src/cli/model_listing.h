// Lists, finds and removes the models in a models folder by the names that people use. Any thread.
#ifndef BATON_CLI_MODEL_LISTING_H_
#define BATON_CLI_MODEL_LISTING_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace baton::cli {

// A model that was fetched: one .gguf file, all parts of a split one, or a folder with a
// config.json.
struct ListedModel {
  std::string name;                // of the catalogue, else `inside`
  std::string inside;              // path inside the models folder; of a split model its first part
  std::string path;                // of the file, of the first part, or of the folder
  std::vector<std::string> paths;  // all that are there of it: parts in order, else `path` alone
  size_t num_parts = 1;            // that it has when it is whole
  uint64_t bytes = 0;              // that are there, those of unfinished downloads among them
  uint64_t partial_bytes = 0;      // of unfinished downloads alone
  uint64_t total_bytes = 0;        // of the file when it is whole; 0 = not known
  bool is_whole() const { return paths.size() == num_parts; }
};

// The models below `folder`, by name. A download that was cut short is a model that is not whole.
// Links are not followed into folders; what cannot be read and the scratch folders of downloads are
// left out.
std::vector<ListedModel> ListModels(const std::string& folder);

// Says how much of a model is here that is not whole, and how to get the rest: "incomplete, 12.0
// MiB of 93.8 MiB; `baton pull NAME` goes on". "" for a whole one.
std::string IncompleteText(const ListedModel& model);

// The model that `name` means: a name that ListModels shows, the path of any part of it inside
// `folder`, or hf:ORG/REPO/FILE, hf:ORG/REPO:QUANT or hf:ORG/REPO by the rules of ChooseFile. A
// model of which no file is whole is passed over where there is another.
// NotFound names the nearest; errors of hub_model.h for hf: names. Nothing outside `folder` can be
// named.
StatusOr<ListedModel> FindModel(const std::string& folder, std::string_view name);

// Removes the model that FindModel finds with all its parts, what was remembered about them and
// what unfinished downloads left, and the folders of its repository that are then empty.
// Unavailable, and nothing is removed, while a process downloads one of its files.
StatusOr<ListedModel> RemoveModel(const std::string& folder, std::string_view name);

}  // namespace baton::cli

#endif  // BATON_CLI_MODEL_LISTING_H_
