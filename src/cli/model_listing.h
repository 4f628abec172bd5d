// What lies in a models folder, by the names that people use. Any thread.
#ifndef BATON_CLI_MODEL_LISTING_H_
#define BATON_CLI_MODEL_LISTING_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace baton {

// A model that was fetched.
struct ListedModel {
  std::string name;  // of the catalogue, else the path inside the folder
  std::string path;  // of a .gguf file, or of a folder with a config.json
  uint64_t bytes = 0;
};

// The models below `folder`, by name. Links are not followed into folders; what cannot be read is
// left out.
std::vector<ListedModel> ListModels(const std::string& folder);

// Removes the model of that name, and the folder of its repository when nothing else lies there.
// NotFound names the nearest; nothing outside `folder` can be named.
StatusOr<ListedModel> RemoveModel(const std::string& folder, std::string_view name);

}  // namespace baton

#endif  // BATON_CLI_MODEL_LISTING_H_
