// A model split into up to three GGUF files: found by their names, joined, or refused.
#include <string>

#include "src/model/gguf.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/gguf_checks.h"
#include "tests/fuzz/input_bytes.h"
#include "tests/fuzz/scratch_folder.h"

BATON_FUZZ_TARGET(gguf_split) {
  using namespace baton;         // NOLINT: the whole target
  using namespace baton::model;  // NOLINT
  using namespace baton::fuzz;   // NOLINT
  static const ScratchFolder folder;
  const auto parts = CutFiles(input, 3);
  uint64_t file_bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    folder.Put("m-0000" + std::to_string(i + 1) + "-of-00003.gguf", parts[i]);
    file_bytes += parts[i].size();
  }
  const auto file = GgufFile::Open(folder.PathOf("m-00001-of-00003.gguf"));
  if (!file.ok()) return CheckRefusal(file.status());
  BATON_CHECK((*file)->split().num_parts <= 3, "{} parts", (*file)->split().num_parts);
  BATON_CHECK((*file)->file_bytes() <= file_bytes, "{} bytes of {}", (*file)->file_bytes(),
              file_bytes);
  CheckDirectory(**file);
  CheckConfigAndTokenizer(**file);
}
