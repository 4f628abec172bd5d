// Reads the reference results of tests/golden (format: tests/golden/README.md). Trusted files.
#ifndef BATON_TESTS_MODEL_GOLDEN_FILE_H_
#define BATON_TESTS_MODEL_GOLDEN_FILE_H_

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "src/base/ids.h"
#include "src/base/status.h"

namespace baton::model {

// The reference's numbers about the logits after one token.
struct GoldenRow {
  uint32_t row = 0;
  TokenId argmax = 0;
  float margin = 0;  // largest minus second largest
  float largest = 0;
  float rms = 0;              // root mean square over the vocabulary
  std::vector<float> logits;  // of GoldenFile::ids
};

// One prompt and its kept rows.
struct GoldenPrompt {
  std::vector<TokenId> tokens;
  std::vector<GoldenRow> rows;
};

// A whole file.
struct GoldenFile {
  uint32_t vocab = 0;
  std::vector<TokenId> ids;
  std::vector<GoldenPrompt> prompts;
  std::vector<TokenId> text;  // perplexity text; may be empty
  double mean_nll = 0;        // mean of -log p over text[1..]
};

// Walks the bytes of a golden file; `ok` turns false at the first read beyond the end.
class GoldenReader {
 public:
  explicit GoldenReader(std::string bytes) : bytes_(std::move(bytes)) {}
  template <typename T>
  T Get() {
    T value{};
    if (bytes_.size() - at_ < sizeof(T)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  template <typename T>
  std::vector<T> Array(size_t count) {
    std::vector<T> out;
    for (size_t i = 0; i < count && ok_; ++i) out.push_back(Get<T>());
    return out;
  }
  bool AtEnd() const { return ok_ && at_ == bytes_.size(); }

 private:
  std::string bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

inline absl::StatusOr<GoldenFile> ReadGolden(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  GoldenReader reader(std::string(std::istreambuf_iterator<char>(in), {}));
  const std::vector<char> magic = reader.Array<char>(8);
  if (std::string(magic.begin(), magic.end()) != "BATONGLD") return NotFound("no golden {}", path);
  GoldenFile out;
  out.vocab = reader.Get<uint32_t>();
  const uint32_t num_ids = reader.Get<uint32_t>();
  out.prompts.resize(reader.Get<uint32_t>());
  out.ids = reader.Array<TokenId>(num_ids);
  for (GoldenPrompt& prompt : out.prompts) {
    const uint32_t num_tokens = reader.Get<uint32_t>();
    prompt.rows.resize(reader.Get<uint32_t>());
    prompt.tokens = reader.Array<TokenId>(num_tokens);
    for (GoldenRow& row : prompt.rows) {
      row.row = reader.Get<uint32_t>();
      row.argmax = reader.Get<TokenId>();
      row.margin = reader.Get<float>();
      row.largest = reader.Get<float>();
      row.rms = reader.Get<float>();
      row.logits = reader.Array<float>(num_ids);
    }
  }
  const uint32_t num_text = reader.Get<uint32_t>();
  out.mean_nll = reader.Get<double>();
  out.text = reader.Array<TokenId>(num_text);
  if (!reader.AtEnd()) return DataLoss("{} is damaged", path);
  return out;
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_GOLDEN_FILE_H_
