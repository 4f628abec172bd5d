// A golden model file with some bytes of a tensor replaced.
#ifndef BATON_TESTS_MODEL_DAMAGED_MODEL_H_
#define BATON_TESTS_MODEL_DAMAGED_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

#include "src/model/gguf.h"
#include "tests/model/golden_bytes.h"

namespace baton::model {

// Bit patterns that are no numbers.
inline constexpr uint32_t kNanFloat = 0x7FC00000;
inline constexpr uint16_t kNanHalf = 0x7E00;

// Writes tests/golden's `name` with `value` at the beginning of `tensor`; returns the path.
template <class T>
std::string DamagedModel(const std::string& name, std::string_view tensor, T value) {
  std::vector<std::byte> bytes = BytesOfGolden(name);
  const auto file = GgufFile::FromBytes(bytes);
  EXPECT_TRUE(file.ok()) << file.status();
  const GgufTensor* found = (*file)->FindTensor(tensor);
  EXPECT_NE(found, nullptr) << tensor;
  std::memcpy(&bytes[static_cast<size_t>(found->data.data() - bytes.data())], &value, sizeof(T));
  const std::string path = ::testing::TempDir() + "damaged_model.gguf";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  return path;
}

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_DAMAGED_MODEL_H_
