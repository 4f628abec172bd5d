// The GGUF reader on right files and on every kind of wrong one.
#include "src/model/gguf.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <functional>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/base/unique_fd.h"
#include "src/model/model_report.h"
#include "tests/model/gguf_builder.h"
#include "tests/model/memory_meter.h"
#include "tests/model/test_model.h"
#include "tests/test_seed.h"

namespace baton::model {
namespace {

using ::testing::HasSubstr;

// Processor time for any file, whatever it claims to hold: a busy machine does not stretch it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kParseLimitS = 60;
#else
constexpr double kParseLimitS = 1;
#endif

double SecondsSince(std::clock_t start) {
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Parses a copy of exactly the file's size, so that a sanitizer sees any read beyond it.
absl::StatusOr<std::unique_ptr<GgufFile>> ParseExact(std::span<const std::byte> bytes,
                                                     std::unique_ptr<std::byte[]>& storage) {
  storage = std::make_unique<std::byte[]>(bytes.size());
  std::memcpy(storage.get(), bytes.data(), bytes.size());
  return GgufFile::FromBytes({storage.get(), bytes.size()});
}

GgufErrorCode ErrorOf(const std::vector<std::byte>& bytes) {
  std::unique_ptr<std::byte[]> storage;
  return GgufErrorOf(ParseExact(bytes, storage).status());
}

TEST(GgufTest, ReadsWhatWasWritten) {
  GgufBuilder builder;
  builder.AddU32("a.u32", 7)
      .AddString("a.text", "hello")
      .AddStrings("a.texts", {"", "x", "yz"})
      .Add<int64_t>("a.minus", GgufValueType::kInt64, -3)
      .Add<uint8_t>("a.yes", GgufValueType::kBool, 1)
      .AddTensor("w", {32, 3}, 3, 60, 0x5A)
      .AddF32Tensor("v", {5});
  const std::vector<std::byte> bytes = builder.Build();
  const auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*(*file)->Uint("a.u32"), 7u);
  EXPECT_EQ(*(*file)->String("a.text"), "hello");
  EXPECT_EQ(*(*file)->BoolOr("a.yes", false), true);
  EXPECT_EQ(GgufErrorOf((*file)->Uint("a.minus").status()), GgufErrorCode::kWrongKeyType);
  EXPECT_EQ(GgufErrorOf((*file)->Uint("a.text").status()), GgufErrorCode::kWrongKeyType);
  EXPECT_EQ(GgufErrorOf((*file)->Uint("a.none").status()), GgufErrorCode::kMissingKey);
  EXPECT_EQ(*(*file)->UintOr("a.none", 9), 9u);
  GgufStringCursor cursor(*(*file)->FindValue("a.texts"));
  EXPECT_EQ(cursor.Next(), "");
  EXPECT_EQ(cursor.Next(), "x");
  EXPECT_EQ(cursor.Next(), "yz");
  EXPECT_EQ(cursor.Next(), std::nullopt);
  const GgufTensor* w = (*file)->FindTensor("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->type->name, "Q4_1");
  EXPECT_EQ(w->data.size(), 60u);
  EXPECT_EQ(w->data[59], std::byte{0x5A});
  EXPECT_EQ(w->DimsText(), "[32, 3]");
  EXPECT_EQ((*file)->FindTensor("v")->data.size(), 20u);
  EXPECT_EQ((*file)->FindTensor("none"), nullptr);
}

TEST(GgufTest, AcceptsVersion2AndLargeAlignment) {
  GgufBuilder builder;
  builder.version = 2;
  builder.alignment = 4096;
  builder.AddU32("general.alignment", 4096).AddF32Tensor("a", {1}).AddF32Tensor("b", {1});
  const std::vector<std::byte> bytes = builder.Build();
  const auto file = GgufFile::FromBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto distance =
      (*file)->FindTensor("b")->data.data() - (*file)->FindTensor("a")->data.data();
  EXPECT_EQ(distance, 4096);
}

TEST(GgufTest, ReadsTheDemoModel) {
  const auto file = GgufFile::Open(DemoModelPath());
  ASSERT_TRUE(file.ok()) << DemoModelPath() << ": " << file.status();
  EXPECT_EQ((*file)->tensors().size(), 272u);
  EXPECT_EQ((*file)->entries().size(), 33u);
  EXPECT_TRUE(CheckServable(**file).ok()) << CheckServable(**file);
}

// One way to be wrong and the reason that must be given.
struct BadFile {
  const char* what;
  GgufErrorCode code;
  std::function<void(GgufBuilder&)> make;
};

ByteWriter ArrayHeader(uint32_t type, uint64_t count) {
  ByteWriter out;
  out.Put<uint32_t>(type).Put<uint64_t>(count);
  return out;
}

std::vector<BadFile> BadHeaders() {
  using E = GgufErrorCode;
  return {
      {"magic", E::kBadMagic, [](GgufBuilder& b) { b.magic = "GGML"; }},
      {"reversed magic", E::kWrongEndian, [](GgufBuilder& b) { b.magic = "FUGG"; }},
      {"big-endian version", E::kWrongEndian, [](GgufBuilder& b) { b.version = 3u << 24; }},
      {"version 1", E::kBadVersion, [](GgufBuilder& b) { b.version = 1; }},
      {"version 4", E::kBadVersion, [](GgufBuilder& b) { b.version = 4; }},
      {"negative keys", E::kTooManyKeys, [](GgufBuilder& b) { b.key_count_delta = -1; }},
      {"2^62 keys", E::kTooManyKeys, [](GgufBuilder& b) { b.key_count_delta = int64_t{1} << 62; }},
      {"a key too many", E::kTruncated, [](GgufBuilder& b) { b.key_count_delta = 1; }},
      {"negative tensors", E::kTooManyTensors, [](GgufBuilder& b) { b.tensor_count_delta = -9; }},
      {"2^40 tensors", E::kTooManyTensors,
       [](GgufBuilder& b) { b.tensor_count_delta = int64_t{1} << 40; }},
      {"a tensor too many", E::kTruncated, [](GgufBuilder& b) { b.tensor_count_delta = 1; }},
      {"empty key", E::kBadKey, [](GgufBuilder& b) { b.AddU32("", 1); }},
      {"NUL in key", E::kBadKey, [](GgufBuilder& b) { b.AddU32(std::string_view("a\0b", 3), 1); }},
      {"long key", E::kStringTooLong,
       [](GgufBuilder& b) { b.AddU32(std::string(kMaxGgufKeyBytes + 1, 'k'), 1); }},
      {"key twice", E::kDuplicateKey, [](GgufBuilder& b) { b.AddU32("k", 1).AddU32("k", 2); }},
      {"value type 13", E::kBadValueType,
       [](GgufBuilder& b) { b.AddRaw("k", 13, ByteWriter().Put<uint64_t>(0)); }},
      {"element type 77", E::kBadValueType,
       [](GgufBuilder& b) { b.AddRaw("k", 9, ArrayHeader(77, 1)); }},
      {"array of arrays", E::kNestedArray,
       [](GgufBuilder& b) { b.AddRaw("k", 9, ArrayHeader(9, 1)); }},
      {"array of 2^61 u64", E::kArrayTooLong,
       [](GgufBuilder& b) { b.AddRaw("k", 9, ArrayHeader(10, uint64_t{1} << 61)); }},
      {"array of 2^30 u64", E::kTruncated,
       [](GgufBuilder& b) { b.AddRaw("k", 9, ArrayHeader(10, uint64_t{1} << 30)); }},
      {"array of 2^30 strings", E::kTruncated,
       [](GgufBuilder& b) { b.AddRaw("k", 9, ArrayHeader(8, uint64_t{1} << 30)); }},
      {"string of 2^64 - 1", E::kStringTooLong,
       [](GgufBuilder& b) { b.AddRaw("k", 8, ByteWriter().Put<uint64_t>(UINT64_MAX)); }},
      {"string of 2^30", E::kTruncated,
       [](GgufBuilder& b) { b.AddRaw("k", 8, ByteWriter().Put<uint64_t>(uint64_t{1} << 30)); }},
      {"bool 2", E::kBadBool, [](GgufBuilder& b) { b.Add<uint8_t>("k", GgufValueType::kBool, 2); }},
      {"bool 2 in array", E::kBadBool,
       [](GgufBuilder& b) { b.AddRaw("k", 9, ArrayHeader(7, 2).Put<uint16_t>(0x0201)); }},
      {"alignment 0", E::kBadAlignment, [](GgufBuilder& b) { b.AddU32("general.alignment", 0); }},
      {"alignment 48", E::kBadAlignment, [](GgufBuilder& b) { b.AddU32("general.alignment", 48); }},
      {"alignment 4", E::kBadAlignment, [](GgufBuilder& b) { b.AddU32("general.alignment", 4); }},
      {"alignment u64", E::kBadAlignment,
       [](GgufBuilder& b) { b.Add<uint64_t>("general.alignment", GgufValueType::kUint64, 32); }},
      {"split", E::kSplitFile,
       [](GgufBuilder& b) { b.Add<uint16_t>("split.count", GgufValueType::kUint16, 3); }},
      {"split text", E::kWrongKeyType, [](GgufBuilder& b) { b.AddString("split.count", "3"); }},
  };
}

std::vector<BadFile> BadTensors() {
  using E = GgufErrorCode;
  constexpr uint64_t kBig = uint64_t{1} << 32;
  return {
      {"no name", E::kBadTensorName, [](GgufBuilder& b) { b.AddF32Tensor("", {1}); }},
      {"64-byte name", E::kBadTensorName,
       [](GgufBuilder& b) { b.AddF32Tensor(std::string(64, 'n'), {1}); }},
      {"NUL in name", E::kBadTensorName,
       [](GgufBuilder& b) { b.AddF32Tensor(std::string_view("n\0n", 3), {1}); }},
      {"name twice", E::kDuplicateTensor,
       [](GgufBuilder& b) { b.AddF32Tensor("n", {1}).AddF32Tensor("n", {1}); }},
      {"0 dimensions", E::kBadDims, [](GgufBuilder& b) { b.AddTensorRow("n", {}, 0, 0); }},
      {"5 dimensions", E::kBadDims,
       [](GgufBuilder& b) {
         b.AddTensorRow("n", {1, 1, 1, 1, 1}, 0, 0);
       }},
      {"dimension 0", E::kBadDims,
       [](GgufBuilder& b) {
         b.AddTensorRow("n", {4, 0}, 0, 0);
       }},
      {"2^64 elements", E::kSizeOverflow,
       [](GgufBuilder& b) {
         b.AddTensorRow("n", {kBig, kBig}, 0, 0);
       }},
      {"2^63 elements", E::kSizeOverflow,
       [](GgufBuilder& b) {
         b.AddTensorRow("n", {kBig, kBig / 2}, 0, 0);
       }},
      {"2^64 bytes", E::kSizeOverflow,
       [](GgufBuilder& b) {
         b.AddTensorRow("n", {kBig, kBig / 4}, 0, 0);
       }},
      {"row of 33 Q4_1", E::kBadRowLength,
       [](GgufBuilder& b) {
         b.AddTensorRow("n", {33, 32}, 3, 0);
       }},
      {"row of 33 IQ4_NL", E::kBadRowLength,
       [](GgufBuilder& b) {
         b.AddTensorRow("n", {33, 32}, 20, 0);
       }},
      {"row of 128 Q2_K", E::kBadRowLength,
       [](GgufBuilder& b) {
         b.AddTensorRow("n", {128, 32}, 10, 0);
       }},
      {"row of 384 Q3_K", E::kBadRowLength,
       [](GgufBuilder& b) {
         b.AddTensorRow("n", {384, 32}, 11, 0);
       }},
      {"row of 32 IQ4_XS", E::kBadRowLength,
       [](GgufBuilder& b) {
         b.AddTensorRow("n", {32, 32}, 23, 0);
       }},
      {"type 99", E::kUnknownTensorType, [](GgufBuilder& b) { b.AddTensorRow("n", {32}, 99, 0); }},
      {"type Q4_2", E::kRemovedTensorType, [](GgufBuilder& b) { b.AddTensorRow("n", {32}, 4, 0); }},
      {"type Q4_0_8_8", E::kRemovedTensorType,
       [](GgufBuilder& b) { b.AddTensorRow("n", {32}, 33, 0); }},
      {"type Q2_0", E::kUnsizedTensorType,
       [](GgufBuilder& b) { b.AddTensorRow("n", {64}, 42, 0); }},
      {"overlap", E::kBadOffset,
       [](GgufBuilder& b) { b.AddF32Tensor("a", {8}).AddTensorRow("b", {8}, 0, 0); }},
      {"gap", E::kBadOffset,
       [](GgufBuilder& b) { b.AddF32Tensor("a", {8}).AddTensorRow("b", {8}, 0, 64); }},
      {"first offset 32", E::kBadOffset, [](GgufBuilder& b) { b.AddTensorRow("a", {8}, 0, 32); }},
      {"data beyond the file", E::kDataOutOfFile,
       [](GgufBuilder& b) { b.AddF32Tensor("a", {8}).AddTensorRow("b", {8}, 0, 32); }},
      {"2^60 bytes beyond the file", E::kDataOutOfFile,
       [](GgufBuilder& b) { b.AddTensorRow("a", {uint64_t{1} << 58}, 0, 0); }},
  };
}

TEST(GgufTest, EachKindOfBadFileHasItsOwnError) {
  std::vector<BadFile> cases = BadHeaders();
  for (BadFile& bad : BadTensors()) cases.push_back(std::move(bad));
  for (const BadFile& bad : cases) {
    GgufBuilder builder;
    bad.make(builder);
    EXPECT_EQ(GgufErrorName(ErrorOf(builder.Build())), GgufErrorName(bad.code)) << bad.what;
  }
}

TEST(GgufTest, EveryTruncationIsRefused) {
  const std::vector<std::byte> bytes = TinyLlama().Build();
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::unique_ptr<std::byte[]> storage;
    const auto file = ParseExact(std::span(bytes).first(size), storage);
    ASSERT_FALSE(file.ok()) << "accepted with " << size << " of " << bytes.size() << " bytes";
    const GgufErrorCode code = GgufErrorOf(file.status());
    ASSERT_TRUE(code == GgufErrorCode::kTruncated || code == GgufErrorCode::kDataOutOfFile)
        << file.status();
  }
}

// A few random edits of a valid file: bytes changed, spans copied, 8-byte fields made extreme.
void Mutate(std::mt19937_64& random, std::vector<std::byte>& bytes) {
  constexpr uint64_t kExtremes[] = {
      0, 1, 0x7F, 0xFFFFFFFF, uint64_t{1} << 30, uint64_t{1} << 62, uint64_t{1} << 63, UINT64_MAX};
  const uint64_t num_edits = 1 + random() % 3;
  for (uint64_t i = 0; i < num_edits; ++i) {
    const size_t at = random() % (bytes.size() - 8);
    switch (random() % 4) {
      case 0:
        bytes[at] = static_cast<std::byte>(random());
        break;
      case 1:
        bytes[at] ^= static_cast<std::byte>(1u << (random() % 8));
        break;
      case 2:
        std::memcpy(&bytes[at], &kExtremes[random() % std::size(kExtremes)], 8);
        break;
      default:
        std::memmove(&bytes[at], &bytes[random() % (bytes.size() - 8)], 8);
        break;
    }
  }
}

TEST(GgufTest, NoMutationCrashesOrTakesMemory) {
  std::mt19937_64 random(TestSeed());
  const GgufBuilder builder = TinyLlama();
  const std::vector<std::byte> original = builder.Build();
  const size_t header_bytes = builder.HeaderBytes();
  int num_accepted = 0;
  constexpr int kNumMutations = 20000;
  for (int i = 0; i < kNumMutations; ++i) {
    std::vector<std::byte> bytes(original.begin(), original.begin() + header_bytes);
    Mutate(random, bytes);
    bytes.insert(bytes.end(), original.begin() + header_bytes, original.end());
    std::unique_ptr<std::byte[]> storage;
    const auto file = ParseExact(bytes, storage);
    if (!file.ok()) {
      ASSERT_NE(GgufErrorOf(file.status()), GgufErrorCode::kNone) << "mutation " << i;
      continue;
    }
    ++num_accepted;
    const MemoryMeter meter;
    const std::string text = DescribeModelFile(**file, CheckServable(**file));
    ASSERT_FALSE(text.empty());
    ASSERT_LE(meter.PeakBytes(), 2 * bytes.size() + (1 << 16)) << "mutation " << i;
  }
  // Both outcomes must be common, or the mutations test nothing.
  EXPECT_GT(num_accepted, kNumMutations / 20);
  EXPECT_LT(num_accepted, kNumMutations * 19 / 20);
}

// Parses and describes `bytes`, expecting < 1 s and at most twice the file plus the fixed part.
void ExpectCheap(const std::vector<std::byte>& bytes, const char* what) {
  const std::clock_t start = std::clock();
  const MemoryMeter meter;
  {
    const auto file = GgufFile::FromBytes(bytes);
    // Refused or not is another test's matter; either way it must be cheap.
    if (file.ok()) (void)CheckServable(**file);
  }
  const double taken_s = SecondsSince(start);
  EXPECT_LE(meter.PeakBytes(), 2 * bytes.size() + (1 << 20)) << what;
  EXPECT_LT(taken_s, kParseLimitS) << what;
}

TEST(GgufTest, HostileSizesStayCheap) {
  GgufBuilder keys;
  for (uint64_t i = 0; i < kMaxGgufKeys; ++i) {
    keys.Add<uint8_t>("k" + std::to_string(i), GgufValueType::kUint8, 0);
  }
  ExpectCheap(keys.Build(), "as many keys as allowed");

  GgufBuilder tensors;
  tensors.alignment = 8;
  tensors.AddU32("general.alignment", 8);
  for (uint64_t i = 0; i < kMaxGgufTensors; ++i) {
    tensors.AddTensor("t" + std::to_string(i), {1}, 24, 1);
  }
  ExpectCheap(tensors.Build(), "as many tensors as allowed");

  TinyLlamaOptions options;
  options.left_out_key = "tokenizer.ggml.tokens";
  GgufBuilder tokens = TinyLlama(options);
  tokens.AddStrings("tokenizer.ggml.tokens", std::vector<std::string>(3'000'000));
  ExpectCheap(tokens.Build(), "three million empty tokens");

  options.num_tokens = kMaxModelVocab;
  options.hidden = 8;
  options.heads = 1;
  GgufBuilder vocab = TinyLlama(options);
  vocab.AddStrings("tokenizer.ggml.tokens", std::vector<std::string>(kMaxModelVocab));
  ExpectCheap(vocab.Build(), "the largest vocabulary, all empty");
}

// A file on disk that goes away with the test.
class TempFile {
 public:
  TempFile() : fd_(::mkstemp(path_)) {}
  ~TempFile() { ::unlink(path_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  int fd() const { return fd_.get(); }
  std::string path() const { return path_; }

 private:
  char path_[32] = "/tmp/baton_gguf_XXXXXX";
  UniqueFd fd_;
};

TEST(GgufTest, ASparseGiantIsRefusedWithinASecond) {
  const TempFile temp;
  GgufBuilder builder;
  builder.AddRaw("k", 9, ArrayHeader(8, kMaxGgufArrayCount));
  const std::vector<std::byte> bytes = builder.Build();
  ASSERT_EQ(::write(temp.fd(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ASSERT_EQ(::ftruncate(temp.fd(), off_t{1} << 36), 0);
  const std::clock_t start = std::clock();
  const auto file = GgufFile::Open(temp.path());
  EXPECT_EQ(GgufErrorOf(file.status()), GgufErrorCode::kHeaderTooLarge) << file.status();
  EXPECT_LT(SecondsSince(start), kParseLimitS);
}

TEST(GgufTest, OpenRefusesWhatIsNoFile) {
  EXPECT_EQ(GgufErrorOf(GgufFile::Open("/nonexistent.gguf").status()), GgufErrorCode::kOpen);
  EXPECT_EQ(GgufErrorOf(GgufFile::Open("/tmp").status()), GgufErrorCode::kOpen);
  EXPECT_EQ(GgufErrorOf(GgufFile::Open("/dev/zero").status()), GgufErrorCode::kOpen);
  const TempFile empty;
  EXPECT_EQ(GgufErrorOf(GgufFile::Open(empty.path()).status()), GgufErrorCode::kTruncated);
  const std::string fifo = empty.path() + ".fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(GgufErrorOf(GgufFile::Open(fifo).status()), GgufErrorCode::kOpen);
  ::unlink(fifo.c_str());
}

TEST(GgufTest, MessagesNameFieldAndValuesOnOneLine) {
  GgufBuilder builder;
  builder.AddU32("evil\nkey", 1).AddU32("evil\nkey", 1);
  const std::vector<std::byte> bytes = builder.Build();
  const std::string message(GgufFile::FromBytes(bytes).status().message());
  EXPECT_THAT(message, HasSubstr("evil\\nkey"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace baton::model
