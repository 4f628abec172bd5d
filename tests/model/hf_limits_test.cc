// The memory that the texts of a hostile model folder can make their readers hold, and the limits
// that they meet.
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/model/folder_error.h"
#include "src/model/hf_config.h"
#include "src/model/hf_index.h"
#include "src/model/safetensors.h"
#include "tests/model/memory_meter.h"

namespace baton::model {
namespace {

using ::testing::ElementsAre;
using E = FolderErrorCode;

// `open`, then `piece` again and again up to about `bytes`.
std::string Repeated(const std::string& open, const std::string& piece, size_t bytes) {
  std::string out = open;
  out.reserve(bytes + piece.size());
  while (out.size() + piece.size() <= bytes) out += piece;
  return out;
}

TEST(HfIndexTest, GivesTheTensorsOfEachFile) {
  const auto index = ReadHfIndex(
      R"({"metadata": {"total_size": 8, "weight_map": {"x": [1]}}, "more": [[], {}, null],)"
      R"( "weight_map": {"b": "1.safetensors", "c": "2.safetensors", "a": "1.safetensors",)"
      R"( "d": "text/..b/1.safetensors"}})");
  ASSERT_TRUE(index.ok()) << index.status();
  ASSERT_EQ(index->size(), 3u);
  EXPECT_THAT(index->at("text/..b/1.safetensors"), ElementsAre("d"));
  EXPECT_THAT(index->at("1.safetensors"), ElementsAre("b", "a"));
  EXPECT_THAT(index->at("2.safetensors"), ElementsAre("c"));
}

TEST(HfIndexTest, RefusesEachKindOfDamage) {
  std::string many_files = R"({"weight_map":{"t":"x.safetensors")";
  for (size_t i = 0; i < kMaxHfShards; ++i) {
    many_files += fmt::format(R"(,"{}":"{}.safetensors")", i, i);
  }
  const std::vector<std::pair<E, std::string>> cases = {
      {E::kNone, R"({"weight_map":{}})"},
      {E::kBadJson, ""},
      {E::kBadJson, "[]"},
      {E::kBadJson, "3"},
      {E::kBadJson, R"({"metadata":{}})"},
      {E::kBadJson, R"([{"weight_map":{}}])"},
      {E::kBadJson, R"({"x":{"weight_map":{}}})"},
      {E::kBadJson, R"({"weight_map":3})"},
      {E::kBadJson, R"({"weight_map":[]})"},
      {E::kBadJson, R"({"weight_map":"a.safetensors"})"},
      {E::kBadJson, R"({"weight_map":{},"weight_map":{}})"},
      {E::kBadJson, R"({"weight_map":{"a":"a.safetensors"})"},
      {E::kBadJson, R"({"weight_map":{}}x)"},
      {E::kBadIndex, R"({"weight_map":{"a":3}})"},
      {E::kBadIndex, R"({"weight_map":{"a":null}})"},
      {E::kBadIndex, R"({"weight_map":{"a":["a.safetensors"]}})"},
      {E::kBadIndex, R"({"weight_map":{"a":{"b":"a.safetensors"}}})"},
      {E::kBadIndex, R"({"weight_map":{"a":"../a.safetensors"}})"},
      {E::kBadIndex, R"({"weight_map":{"a":"b/../../a.safetensors"}})"},
      {E::kBadIndex, R"({"weight_map":{"a":"./a.safetensors"}})"},
      {E::kBadIndex, R"({"weight_map":{"a":"/tmp/a.safetensors"}})"},
      {E::kBadIndex, R"({"weight_map":{"a":"b//a.safetensors"}})"},
      {E::kBadIndex, R"({"weight_map":{"a":"a.bin"}})"},
      {E::kBadIndex, R"({"weight_map":{"a":"\u0000.safetensors"}})"},
      {E::kBadIndex, many_files + "}}"},
      {E::kBadIndex, Repeated(R"({"weight_map":{"a":"a.safetensors")", R"(,"":"a.safetensors")",
                              (kMaxHfTensors + 100) * 19) +
                         "}}"},
      {E::kFileTooLarge, std::string(kMaxHfIndexBytes + 1, ' ')},
  };
  for (const auto& [code, text] : cases) {
    const absl::Status status = ReadHfIndex(text).status();
    EXPECT_EQ(FolderErrorName(FolderErrorOf(status)), FolderErrorName(code))
        << text.substr(0, 100) << ": " << status;
    EXPECT_EQ(status.ok(), code == E::kNone) << status;
  }
}

// 16 MiB that became 400 MB as a tree, and the other shapes that ask for most.
TEST(HfIndexTest, MemoryFollowsTheTextAndNotItsShape) {
  const std::string open = R"({"weight_map":{"a":"a.safetensors")";
  const std::string texts[] = {
      Repeated(R"({"x":[[])", ",[]", kMaxHfIndexBytes),
      std::string(kMaxHfIndexBytes, '['),
      Repeated(open, R"(,"":"a.safetensors")", kMaxHfIndexBytes),
      open + R"(,")" + std::string(kMaxHfIndexBytes - 100, 'x') + R"(":"a.safetensors"}})",
  };
  for (const std::string& text : texts) {
    const MemoryMeter meter;
    const absl::StatusOr<HfIndex> index = ReadHfIndex(text);
    EXPECT_LT(meter.PeakBytes(), 8 * text.size() + (size_t{64} << 20)) << text.substr(0, 50);
    RecordProperty("peak", fmt::format("{}", meter.PeakBytes()));
  }
}

// The bytes of a safetensors file with this header and no data.
std::vector<std::byte> HeaderOnly(std::string_view header) {
  std::vector<std::byte> out(8 + header.size());
  const uint64_t size = header.size();
  std::memcpy(out.data(), &size, 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  return out;
}

TEST(SafetensorsTest, MemoryIsBelowEightTimesTheHeader) {
  const std::string entry = R"("":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const size_t bytes = size_t{4} << 20;
  const std::string texts[] = {
      Repeated("{" + entry, "," + entry, bytes) + "}",
      Repeated(R"({"a":{"dtype":"F32","shape":[1,1,1,1],"data_offsets":[0,4]})",
               R"(,"sixteen letters.":{"dtype":"F32","shape":[1,1,1,1],"data_offsets":[0,4]})",
               bytes) +
          "}",
      R"({")" + std::string(bytes, 'x') + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":")" + std::string(bytes, 'x') + R"(","shape":[1],"data_offsets":[0,4]}})",
      R"({"__metadata__":{"a":")" + std::string(bytes, 'x') + R"("}})",
      std::string(bytes, '['),
  };
  for (const std::string& text : texts) {
    std::vector<std::byte> file = HeaderOnly(text);
    file.resize(file.size() + 4);
    const MemoryMeter meter;
    const absl::Status status = SafetensorsFile::FromBytes(file).status();
    EXPECT_LT(meter.PeakBytes(), 8 * text.size() + 4096) << text.substr(0, 50) << status;
  }
}

// The largest config.json may become a tree, however deep or wide.
TEST(HfConfigTest, ALargeTreeIsBounded) {
  const std::string deep(kMaxHfConfigBytes / 2 - 16, '[');
  const std::string texts[] = {
      R"({"x":)" + deep + std::string(deep.size(), ']') + "}",
      Repeated(R"({"x":[[])", ",[]", kMaxHfConfigBytes - 2) + "]}",
      Repeated(R"({"x":[{})", ",{}", kMaxHfConfigBytes - 2) + "]}",
  };
  for (const std::string& text : texts) {
    const MemoryMeter meter;
    const auto config = ReadHfConfig(text);
    EXPECT_EQ(FolderErrorOf(config.status()), E::kMissingKey) << config.status();
    EXPECT_LT(meter.PeakBytes(), size_t{64} << 20);
  }
}

}  // namespace
}  // namespace baton::model
