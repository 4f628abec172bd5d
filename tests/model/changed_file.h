// ChangedFile: a golden GGUF file whose keys and tensors a test changes.
#ifndef BATON_TESTS_MODEL_CHANGED_FILE_H_
#define BATON_TESTS_MODEL_CHANGED_FILE_H_

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "src/model/gguf.h"
#include "src/model/gguf_writer.h"
#include "tests/model/test_model.h"

namespace baton::model {

// A tensor of a file that a test writes.
struct TensorCopy {
  std::string name;
  std::vector<uint64_t> dims;
  uint32_t type_id = 0;
  std::vector<std::byte> data;
};

// A golden file whose keys and tensors a test changes.
class ChangedFile {
 public:
  explicit ChangedFile(const char* golden) {
    auto file = GgufFile::Open(GoldenPath(golden));
    EXPECT_TRUE(file.ok()) << file.status();
    golden_ = *std::move(file);
    for (const GgufTensor& tensor : golden_->tensors()) {
      tensors_.push_back({std::string(tensor.name),
                          {tensor.dims.begin(), tensor.dims.begin() + tensor.num_dims},
                          tensor.type->id,
                          {tensor.data.begin(), tensor.data.end()}});
    }
  }

  std::vector<TensorCopy>& tensors() { return tensors_; }
  TensorCopy& Find(std::string_view name) {
    const auto it = std::find_if(tensors_.begin(), tensors_.end(),
                                 [&](const TensorCopy& tensor) { return tensor.name == name; });
    EXPECT_NE(it, tensors_.end()) << name;
    return *it;
  }
  // Instead of the key that the file has, if it has it.
  void SetU32(std::string key, uint32_t value) { numbers_.push_back({std::move(key), value}); }
  void SetBools(std::string key, std::vector<bool> values) {
    bools_.push_back({std::move(key), std::move(values)});
  }
  void SetFalse(std::string key) { false_keys_.push_back(std::move(key)); }
  void SetInts(std::string key, std::vector<int32_t> values) {
    lists_.push_back({std::move(key), std::move(values)});
  }

  std::vector<std::byte> Bytes() const {
    GgufWriter writer;
    const auto is_set = [this](std::string_view key) {
      const auto has_key = [&](const auto& row) { return row.first == key; };
      return std::any_of(numbers_.begin(), numbers_.end(), has_key) ||
             std::any_of(lists_.begin(), lists_.end(), has_key) ||
             std::any_of(bools_.begin(), bools_.end(), has_key);
    };
    for (const GgufEntry& entry : golden_->entries()) {
      if (!is_set(entry.key)) writer.AddValue(entry.key, entry.value);
    }
    for (const auto& [key, value] : numbers_) writer.AddU32(key, value);
    for (const auto& [key, values] : lists_) writer.AddInts(key, values);
    for (const auto& [key, values] : bools_) writer.AddBools(key, values);
    for (const std::string& key : false_keys_) writer.AddBool(key, false);
    for (const TensorCopy& tensor : tensors_) {
      writer.AddTensor({tensor.name, tensor.dims, tensor.type_id, tensor.data.size()});
    }
    std::vector<std::byte> bytes = writer.Header();
    for (const TensorCopy& tensor : tensors_) {
      bytes.insert(bytes.end(), tensor.data.begin(), tensor.data.end());
      bytes.resize(GgufWriter::Padded(bytes.size()));
    }
    return bytes;
  }

  std::string Write(const std::string& name) const {
    const std::string path = ::testing::TempDir() + name;
    const std::vector<std::byte> bytes = Bytes();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    return path;
  }

 private:
  std::unique_ptr<GgufFile> golden_;
  std::vector<TensorCopy> tensors_;
  std::vector<std::pair<std::string, uint32_t>> numbers_;
  std::vector<std::pair<std::string, std::vector<int32_t>>> lists_;
  std::vector<std::pair<std::string, std::vector<bool>>> bools_;
  std::vector<std::string> false_keys_;
};

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_CHANGED_FILE_H_
