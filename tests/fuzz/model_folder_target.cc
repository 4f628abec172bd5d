// A Hugging Face folder: config.json, an index (may be empty), one or two .safetensors files.

#include "src/model/gguf.h"
#include "src/model/hf_folder.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/gguf_checks.h"
#include "tests/fuzz/input_bytes.h"
#include "tests/fuzz/scratch_folder.h"

BATON_FUZZ_TARGET(model_folder) {
  using namespace baton;         // NOLINT: the whole target
  using namespace baton::model;  // NOLINT
  using namespace baton::fuzz;   // NOLINT
  static const ScratchFolder folder;
  const auto files = CutFiles(input, 4);
  const bool has_index = !files[1].empty();
  folder.Put("config.json", files[0]);
  folder.Put("model.safetensors.index.json", files[1]);
  folder.Put("model.safetensors", has_index ? "" : files[2]);
  folder.Put("model-00001-of-00002.safetensors", has_index ? files[2] : "");
  folder.Put("model-00002-of-00002.safetensors", has_index ? files[3] : "");
  const auto file = OpenHfFolder(folder.path());
  if (!file.ok()) return CheckRefusal(file.status());
  BATON_CHECK((*file)->is_folder(), "a folder is taken for a file");
  CheckDirectory(**file);
  CheckConfigAndTokenizer(**file);
}
