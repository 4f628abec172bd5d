// Weights that processes pack together: the bytes of each matrix are those of packing alone,
// whoever packed it, also when one of them was killed.
#include "src/model/weight_sharing.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "src/device/shared_slots.h"
#include "src/model/hf_folder.h"
#include "tests/model/damaged_model.h"
#include "tests/model/test_model.h"

namespace baton::model {

using device::SharedSlots;
using device::ThreadPool;
using kernels::PackedMatrix;

namespace {

using ::testing::HasSubstr;

// A model file, opened and planned.
struct Opened {
  std::unique_ptr<GgufFile> file;
  ModelConfig config;
  TensorPlan plan;

  explicit Opened(const std::string& path) {
    auto opened = OpenModelFile(path);
    EXPECT_TRUE(opened.ok()) << path << ": " << opened.status();
    file = *std::move(opened);
    config = *ReadModelConfig(*file);
    plan = *PlanTensors(*file, config);
  }
  WeightSource source() const { return {*file, config, plan}; }
};

// Loads as one process of a server would.
StatusOr<ModelWeights> Load(const std::string& path, int fd) {
  const Opened model(path);
  ThreadPool pool(1);
  return LoadWeights(model.source(), pool, {.fd = fd, .needs_huge_pages = false});
}

UniqueFd NewFile() {
  auto file = SharedSlots::CreateFile();
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

void AppendBytes(const PackedMatrix& matrix, std::vector<std::byte>* out) {
  if (matrix.bytes() == 0) return;
  out->insert(out->end(), matrix.panel(0), matrix.panel(0) + matrix.bytes());
}
void AppendBytes(const MatrixGroup& group, std::vector<std::byte>* out) {
  for (const PackedMatrix& part : group.parts) AppendBytes(part, out);
}
void AppendBytes(const FeedForwardWeights& ffn, std::vector<std::byte>* out) {
  AppendBytes(ffn.gate_up, out);
  AppendBytes(ffn.down, out);
}

// Every packed byte.
std::vector<std::byte> PackedBytes(const ModelWeights& weights) {
  std::vector<std::byte> out;
  AppendBytes(weights.token_embd, &out);
  AppendBytes(weights.output, &out);
  AppendBytes(weights.per_layer_proj, &out);
  for (const LayerWeights& layer : weights.layers) {
    for (const MatrixGroup* group :
         {&layer.qkv, &layer.attn_output, &layer.router, &layer.per_layer_gate,
          &layer.per_layer_out, &layer.shared_router, &layer.kv_a, &layer.q_b}) {
      AppendBytes(*group, &out);
    }
    for (const FeedForwardWeights& ffn : layer.ffn) AppendBytes(ffn, &out);
    AppendBytes(layer.shared, &out);
    for (const MatrixGroup& head : layer.k_b) AppendBytes(head, &out);
    for (const MatrixGroup& head : layer.v_b) AppendBytes(head, &out);
  }
  return out;
}

// The golden models: every weight type and architecture, and folders.
std::vector<std::string> GoldenModels() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenPath(""))) {
    const std::string name = entry.path().filename().string();
    const bool is_part =
        name.find("-of-") != std::string::npos && !name.starts_with("tiny_split-00001");
    const bool is_model = entry.is_directory()
                              ? std::filesystem::exists(entry.path() / "config.json")
                              : name.ends_with(".gguf");
    if (name.starts_with("tiny_") && is_model && !is_part) paths.push_back(entry.path().string());
  }
  std::ranges::sort(paths);
  return paths;
}

TEST(WeightSharingTest, EveryModelHasTheBytesOfPackingAlone) {
  const std::vector<std::string> models = GoldenModels();
  ASSERT_GT(models.size(), 40u);
  for (const std::string& path : models) {
    SCOPED_TRACE(path);
    const auto alone = Load(path, -1);
    ASSERT_TRUE(alone.ok()) << alone.status();
    const UniqueFd fd = NewFile();
    std::array<StatusOr<ModelWeights>, 2> together;
    {
      std::thread other([&] { together[1] = Load(path, fd.get()); });
      together[0] = Load(path, fd.get());
      other.join();
    }
    ASSERT_TRUE(together[0].ok()) << together[0].status();
    ASSERT_TRUE(together[1].ok()) << together[1].status();
    auto later = Load(path, fd.get());
    ASSERT_TRUE(later.ok()) << later.status();
    const SharingReport& first = together[0]->sharing;
    EXPECT_EQ(first.num_packed + together[1]->sharing.num_packed, first.num_matrices);
    EXPECT_EQ(later->sharing.num_packed, 0u);
    for (const ModelWeights* weights : {&*together[0], &*together[1], &*later}) {
      EXPECT_GT(weights->sharing.shared_bytes, alone->bytes()) << weights->sharing.why_private;
      EXPECT_EQ(weights->weights_id, alone->weights_id);
      EXPECT_EQ(weights->bytes(), alone->bytes());
      EXPECT_TRUE(PackedBytes(*weights) == PackedBytes(*alone));
    }
  }
}

// Rows of one small tensor as several matrices, some of which do something else than pack.
class Jobs {
 public:
  static constexpr size_t kNumJobs = 5;
  using Before = std::function<Status(size_t job, std::span<std::byte> out)>;

  explicit Jobs(Before before = nullptr) : opened_(GoldenPath("tiny_q4_0.gguf")), packing_(pool_) {
    const GgufTensor* tensor = opened_.plan.token_embd;
    const TensorPart part = {tensor, 0, 32};
    for (size_t i = 0; i < kNumJobs; ++i) {
      auto group = packing_.Made(
          *tensor,
          *PackedMatrix::Shaped(PackedTypeOf(*tensor), part.num_rows,
                                static_cast<uint32_t>(tensor->dims[0])),
          [this, part, before, i](const PackedMatrix& matrix, std::span<std::byte> out) -> Status {
            if (before != nullptr) BATON_RETURN_IF_ERROR(before(i, out));
            std::vector<std::byte> made;
            const kernels::RawRows rows = RawRowsOf(part, pool_, made);
            return matrix.PackInto({&rows, 1}, pool_, out);
          });
      groups_.push_back(*std::move(group));
    }
  }

  StatusOr<PackedWeights> Pack(int fd, int64_t patience_us = 0) {
    auto packed = PackWeights(opened_.source(), packing_,
                              {.fd = fd, .needs_huge_pages = false, .patience_us = patience_us});
    if (packed.ok()) memory_ = packed->memory;
    return packed;
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out;
    for (const MatrixGroup& group : groups_) AppendBytes(group, &out);
    return out;
  }

 private:
  ThreadPool pool_{1};
  Opened opened_;
  WeightPacking packing_;
  std::vector<MatrixGroup> groups_;
  std::shared_ptr<const void> memory_;
};

// Packs in a process that is killed when it has written half of matrix `job`.
void PackUntilKilled(int fd, size_t job) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    Jobs jobs([job](size_t i, std::span<std::byte> out) {
      if (i != job) return OkStatus();
      std::fill_n(out.begin(), out.size() / 2, std::byte{0x5C});
      (void)::raise(SIGKILL);
      return OkStatus();
    });
    (void)jobs.Pack(fd);
    ::_exit(3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself, with " << WEXITSTATUS(status);
}

TEST(WeightSharingTest, AMatrixOfAKilledProcessIsPackedByTheNextOne) {
  Jobs alone;
  ASSERT_TRUE(alone.Pack(-1).ok());
  for (size_t killed = 0; killed < Jobs::kNumJobs; ++killed) {
    const UniqueFd fd = NewFile();
    PackUntilKilled(fd.get(), killed);
    Jobs next;
    const auto packed = next.Pack(fd.get());
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_EQ(packed->report.num_packed, Jobs::kNumJobs - killed);
    EXPECT_TRUE(next.bytes() == alone.bytes());
  }
}

TEST(WeightSharingTest, EachProcessHasTheFirstErrorInTheOrderOfLoading) {
  const UniqueFd fd = NewFile();
  const auto before = [](size_t i, std::span<std::byte>) {
    return i == 1 || i == 3 ? InvalidArgument("matrix {}", i) : OkStatus();
  };
  for (int process = 0; process < 2; ++process) {
    Jobs jobs(before);
    EXPECT_EQ(jobs.Pack(fd.get()).status(), InvalidArgument("matrix 1"));
  }
  Jobs whole;
  const auto packed = whole.Pack(fd.get());
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(packed->report.num_packed, 2u) << "the refused ones alone";
}

TEST(WeightSharingTest, ARefusedModelHasTheErrorOfLoadingItAlone) {
  const std::string path =
      DamagedModel<uint16_t>("tiny_q4_0.gguf", "blk.1.ffn_down.weight", kNanHalf);
  const Status alone = Load(path, -1).status();
  EXPECT_THAT(alone.ToString(), HasSubstr("blk.1.ffn_down.weight"));
  const UniqueFd fd = NewFile();
  EXPECT_EQ(Load(path, fd.get()).status(), alone);
  EXPECT_EQ(Load(path, fd.get()).status(), alone);
}

TEST(WeightSharingTest, AnotherFileIsPackedApart) {
  const std::string folder = ::testing::TempDir();
  const std::string path = folder + "weight_sharing_test.gguf";
  const auto copy = [&] {
    std::filesystem::copy_file(GoldenPath("tiny_q8_0.gguf"), path + ".new",
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::rename(path + ".new", path);
  };
  copy();
  const UniqueFd fd = NewFile();
  const auto first = Load(path, fd.get());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->sharing.why_private, "");
  copy();  // another file has the name now
  const auto second = Load(path, fd.get());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(second->sharing.why_private, HasSubstr("filled from other files"));
  EXPECT_EQ(second->sharing.shared_bytes, 0u);
  EXPECT_EQ(second->sharing.num_packed, second->sharing.num_matrices);
  EXPECT_EQ(second->weights_id, first->weights_id);
  EXPECT_TRUE(PackedBytes(*second) == PackedBytes(*first));
  std::filesystem::remove(path);
}

TEST(WeightSharingTest, MemoryThatCannotBeSharedIsNoError) {
  const auto weights = Load(GoldenPath("tiny_q4_0.gguf"), STDERR_FILENO);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_THAT(weights->sharing.why_private, HasSubstr("is no memory file"));
  EXPECT_THAT(weights->sharing.Text(), HasSubstr("in memory of its own, not shared: "));
}

// As beside a process that stands still in the middle of a matrix.
TEST(WeightSharingTest, AMatrixThatAnotherProcessKeepsIsPackedApart) {
  Jobs alone;
  ASSERT_TRUE(alone.Pack(-1).ok());
  const UniqueFd fd = NewFile();
  Jobs hasty;
  SharingReport report;
  Jobs slow([&](size_t i, std::span<std::byte>) -> Status {
    if (i != 2) return OkStatus();
    BATON_ASSIGN_OR_RETURN(const PackedWeights packed, hasty.Pack(fd.get(), 20'000));
    report = packed.report;
    return OkStatus();
  });
  ASSERT_TRUE(slow.Pack(fd.get()).ok());
  EXPECT_EQ(report.num_packed, 3u) << "two that nobody had begun, and the one that is kept";
  EXPECT_EQ(report.num_waited, 1u);
  EXPECT_THAT(report.Text(), HasSubstr("1 of them in memory of its own: another worker took"));
  EXPECT_TRUE(hasty.bytes() == alone.bytes());
  EXPECT_TRUE(slow.bytes() == alone.bytes());
}

}  // namespace
}  // namespace baton::model
