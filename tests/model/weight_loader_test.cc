// UploadWeights: whatever the pieces, what lies in the devices' memory is what encoding or packing
// each whole tensor gives. On devices whose copies land as late as they may.
#include "src/model/weight_loader.h"

#include <cstring>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/embed.h"
#include "kernels/packed_matrix.h"
#include "src/base/size_text.h"
#include "src/model/device_weights.h"
#include "src/model/encode_matrix.h"
#include "src/model/hf_folder.h"
#include "src/model/model_weights.h"
#include "src/model/pack_tensor.h"
#include "src/model/quantize.h"
#include "src/model/tensor_part.h"
#include "tests/device/fake_accelerator.h"
#include "tests/model/damaged_model.h"
#include "tests/model/fp8_folder.h"
#include "tests/model/golden_file.h"

namespace baton::model {

namespace cuda = kernels::cuda;
using device::DeviceBuffer;
using device::FakeAccelerator;
using device::ThreadPool;
using kernels::EmbedRows;
using kernels::Fp8Rows;
using kernels::PackedMatrix;

namespace {

using Bytes = std::vector<std::byte>;

// The bytes that EncodeRows must give, made from the processor's packed form.
Bytes InBf16(const GgufTensor& tensor, ThreadPool& pool) {
  const auto k = static_cast<uint32_t>(tensor.dims[0]);
  const auto n = static_cast<uint32_t>(tensor.num_elements() / k);
  std::vector<float> values(size_t{n} * k);
  if (tensor.fp8() != nullptr) {
    const Fp8Rows rows = Fp8RowsOf(tensor);
    for (uint32_t row = 0; row < n; ++row) rows.Weights(row, values.data() + size_t{row} * k);
  } else {
    const auto matrix = PackedMatrix::Pack(WeightTypeOf(tensor), tensor.data, n, k, pool);
    EXPECT_TRUE(matrix.ok()) << matrix.status();
    std::vector<int32_t> ids(n);
    for (uint32_t row = 0; row < n; ++row) ids[row] = static_cast<int32_t>(row);
    EmbedRows(pool, *matrix, ids, values.data());
  }
  Bytes out(values.size() * 2);
  EncodeRow(GgmlType::kBf16, values, out.data());
  return out;
}

// A model on fakes, and what each of its matrices should be.
class Loaded {
 public:
  Loaded(const std::string& path, uint32_t num_ranks, bool keeps_packed, size_t num_devices = 1)
      : Loaded(*OpenModelFile(path), num_ranks, keeps_packed, num_devices) {}

  Loaded(std::unique_ptr<GgufFile> file, uint32_t num_ranks, bool keeps_packed,
         size_t num_devices = 1)
      : file_(std::move(file)), config_(*ReadModelConfig(*file_)) {
    plan_ = *PlanTensors(*file_, config_);
    for (size_t i = 0; i < num_devices; ++i)
      devices_.push_back(std::make_unique<FakeAccelerator>());
    for (uint32_t index = 0; index < num_ranks; ++index) {
      const size_t device_idx = num_devices == 1 ? 0 : index;
      ranks_.push_back(*DeviceWeights::Allocate(plan_,
                                                {.config = &config_,
                                                 .rank = {index, num_ranks},
                                                 .keeps_packed = keeps_packed,
                                                 .device = devices_[device_idx].get(),
                                                 .device_idx = device_idx},
                                                parts_));
    }
  }

  absl::StatusOr<UploadedWeights> Upload(size_t read_bytes, size_t upload_bytes) {
    WeightUploadOptions options = {
        .pool = &pool_, .read_bytes = read_bytes, .upload_bytes = upload_bytes};
    for (const auto& device : devices_) options.devices.push_back(device.get());
    return UploadWeights(*file_, config_, parts_, options);
  }

  void ExpectAllRanks() {
    const auto num_ranks = static_cast<uint32_t>(ranks_.size());
    for (uint32_t index = 0; index < num_ranks; ++index) {
      SCOPED_TRACE(fmt::format("rank {} of {}", index, num_ranks));
      ExpectRank(ranks_[index], {index, num_ranks});
    }
  }

  const GgufFile& file() const { return *file_; }
  const ModelConfig& config() const { return config_; }
  FakeAccelerator& device(size_t idx = 0) { return *devices_[idx]; }
  const DeviceWeights& rank(uint32_t index = 0) const { return ranks_[index]; }

 private:
  using Cuts = std::initializer_list<TensorCut>;

  void ExpectRank(const DeviceWeights& weights, const ModelRank& rank) {
    const LayerShares shares = SharesOf(config_, rank);
    Expect(weights.token_embd, {WholeOf(plan_.token_embd)});
    const IndexRange logits = LogitsOfRank(config_, rank);
    if (weights.output.size_bytes() > 0) Expect(weights.output, {CutOf(plan_.output, logits)});
    EXPECT_EQ(weights.output.size_bytes() > 0,
              rank.count > 1 ? logits.count > 0 : plan_.output != plan_.token_embd);
    ExpectVector(weights.output_norm, plan_.output_norm);
    for (size_t i = 0; i < plan_.layers.size(); ++i) {
      SCOPED_TRACE(fmt::format("layer {}", i));
      const LayerTensors& t = plan_.layers[i];
      const DeviceLayer& layer = weights.layers[i];
      if (t.delta_out != nullptr) {
        ExpectNet(layer, t);
      } else if (plan_.head_order.has_gates) {
        ExpectGated(layer, t);
      } else {
        Expect(layer.qkv, {CutOf(t.q, shares.q), CutOf(t.k, shares.kv), CutOf(t.v, shares.kv)});
        Expect(layer.attn_output, {CutColumnsOf(t.attn_output, shares.q)});
        ExpectVector(layer.q_norm, t.q_norm);
        ExpectVector(layer.k_norm, t.k_norm);
      }
      Expect(layer.gate_up, {CutOf(t.gate, shares.ffn), CutOf(t.up, shares.ffn)});
      Expect(layer.down, {CutColumnsOf(t.down, shares.ffn)});
      if (t.router != nullptr) Expect(layer.router, {WholeOf(t.router)});
      ExpectVector(layer.attn_norm, t.attn_norm);
      ExpectVector(layer.ffn_norm, t.ffn_norm);
      ExpectVector(layer.post_attn_norm, t.post_attn_norm);
      ExpectVector(layer.post_ffn_norm, t.post_ffn_norm);
      ExpectBias(layer.qkv_bias, t, shares);
    }
  }

  void ExpectNet(const DeviceLayer& layer, const LayerTensors& t) {
    Expect(layer.qkv, {WholeOf(t.delta_qkv)});
    Expect(layer.output_gate, {WholeOf(t.delta_z)});
    Expect(layer.delta_gates, {WholeOf(t.delta_beta), WholeOf(t.delta_decay)});
    Expect(layer.attn_output, {WholeOf(t.delta_out)});
    for (const auto& [got, tensor] :
         {std::pair(&layer.conv_taps, t.delta_taps), std::pair(&layer.delta_rates, t.delta_rates),
          std::pair(&layer.dt_bias, t.dt_bias), std::pair(&layer.delta_norm, t.delta_norm)}) {
      ExpectBytes(*got, Bytes(tensor->data.begin(), tensor->data.end()), tensor->name);
    }
  }

  // Row `i` of head `head` goes to row TargetOf(i) of it; a head of attn_q has as many rows of q as
  // of gates.
  void ExpectGated(const DeviceLayer& layer, const LayerTensors& t) {
    const HeadOrder& order = plan_.head_order;
    const uint32_t dim = order.head_dim;
    std::vector<uint32_t> q(config_.q_size());
    std::vector<uint32_t> gates(config_.q_size());
    std::vector<uint32_t> k(config_.kv_size());
    std::vector<uint32_t> norm(dim);
    for (uint32_t i = 0; i < dim; ++i) norm[TargetOf(order, i)] = i;
    for (uint32_t i = 0; i < q.size(); ++i) {
      q[i] = i / dim * 2 * dim + norm[i % dim];
      gates[i] = i / dim * 2 * dim + dim + i % dim;
    }
    for (uint32_t i = 0; i < k.size(); ++i) k[i] = i / dim * dim + norm[i % dim];
    Expect(layer.qkv, {PickOf(t.q, q), PickOf(t.k, k), WholeOf(t.v)});
    Expect(layer.output_gate, {PickOf(t.q, gates)});
    Expect(layer.attn_output, {WholeOf(t.attn_output)});
    ExpectBytes(layer.q_norm, InBf16(PickRows(*t.q_norm, norm).tensor, pool_), t.q_norm->name);
    ExpectBytes(layer.k_norm, InBf16(PickRows(*t.k_norm, norm).tensor, pool_), t.k_norm->name);
  }

  // The cuts' matrices below one another; of several each the first, then each the second.
  void Expect(const DeviceMatrix& got, const Cuts& cuts) {
    const GgufTensor& first = *cuts.begin()->tensor;
    const uint64_t num_matrices = first.dims[2] * first.dims[3];
    std::vector<Bytes> wanted(num_matrices);
    for (const TensorCut& cut : cuts) {
      const TensorSlice slice = cut.picked.empty()
                                    ? *SliceTensor(*cut.tensor, cut.rows, cut.columns, pool_)
                                    : PickRows(*cut.tensor, cut.picked);
      const uint64_t rows = slice.tensor.num_elements() / slice.tensor.dims[0];
      Bytes bytes;
      if (got.is_packed()) {
        bytes.resize(cuda::PackedBytes(got.format, static_cast<uint32_t>(rows),
                                       static_cast<uint32_t>(slice.tensor.dims[0])));
        ASSERT_TRUE(PackTensor(slice.tensor, pool_, bytes).ok());
      } else {
        bytes = InBf16(slice.tensor, pool_);
      }
      const size_t each = bytes.size() / num_matrices;
      for (size_t m = 0; m < num_matrices; ++m) {
        wanted[m].insert(wanted[m].end(), bytes.begin() + static_cast<ptrdiff_t>(m * each),
                         bytes.begin() + static_cast<ptrdiff_t>((m + 1) * each));
      }
    }
    Bytes all;
    for (const Bytes& matrix : wanted) all.insert(all.end(), matrix.begin(), matrix.end());
    ExpectBytes(got.data, all, first.name);
  }

  void ExpectVector(const DeviceBuffer& got, const GgufTensor* tensor) {
    if (tensor != nullptr) return ExpectBytes(got, InBf16(*tensor, pool_), tensor->name);
    EXPECT_EQ(got.size_bytes(), 0u);
  }

  void ExpectBias(const DeviceBuffer& got, const LayerTensors& t, const LayerShares& shares) {
    if (t.q_bias == nullptr) {
      EXPECT_EQ(got.size_bytes(), 0u);
      return;
    }
    Bytes all;
    for (const auto& [bias, part] : {std::pair(t.q_bias, shares.q), std::pair(t.k_bias, shares.kv),
                                     std::pair(t.v_bias, shares.kv)}) {
      const auto bytes = bias->data.subspan(part.first * 4, part.count * 4);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    ExpectBytes(got, all, t.q_bias->name);
  }

  static void ExpectBytes(const DeviceBuffer& got, const Bytes& wanted, std::string_view name) {
    ASSERT_EQ(got.size_bytes(), wanted.size()) << name;
    EXPECT_EQ(std::memcmp(got.data(), wanted.data(), wanted.size()), 0) << name;
  }

  std::unique_ptr<GgufFile> file_;
  ModelConfig config_;
  TensorPlan plan_;
  ThreadPool pool_{2};
  std::vector<std::unique_ptr<FakeAccelerator>> devices_;
  WeightParts parts_;
  std::vector<DeviceWeights> ranks_;
};

struct Case {
  const char* model;
  uint32_t num_ranks;
};

class WeightLoaderTest : public ::testing::TestWithParam<Case> {};

TEST_P(WeightLoaderTest, DevicesHoldWhatEncodingWholeTensorsGives) {
  const std::string path = GoldenPath(fmt::format("tiny_{}.gguf", GetParam().model));
  for (const bool keeps_packed : {true, false}) {
    // As in service; 16 rows at once; pieces of the file that are copied in several.
    for (const auto& [read_bytes, upload_bytes] :
         {std::pair<size_t, size_t>(8 << 20, 32 << 20), {1, 1}, {5000, 3000}}) {
      Loaded model(path, GetParam().num_ranks, keeps_packed);
      const auto uploaded = model.Upload(read_bytes, upload_bytes);
      ASSERT_TRUE(uploaded.ok()) << uploaded.status();
      EXPECT_EQ(uploaded->weights_id, HashWeights(model.file(), model.config()));
      size_t bytes = 0;
      for (uint32_t i = 0; i < GetParam().num_ranks; ++i) bytes += model.rank(i).bytes();
      EXPECT_EQ(uploaded->report.device_bytes, bytes);
      model.ExpectAllRanks();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , WeightLoaderTest,
    ::testing::Values(Case{"f32", 1}, Case{"f16", 1}, Case{"bf16", 1}, Case{"q4_0", 1},
                      Case{"q4_1", 1}, Case{"q5_0", 1}, Case{"q8_0", 1}, Case{"q4_k", 1},
                      Case{"q5_k", 1}, Case{"q6_k", 1}, Case{"mxfp4", 1}, Case{"iq4_nl", 1},
                      Case{"iq4_xs", 1}, Case{"q3_k", 1}, Case{"q2_k", 1}, Case{"qwen2", 1},
                      Case{"gemma3", 1}, Case{"qwen3moe", 1}, Case{"qwen3moe_q8_0", 1},
                      Case{"qwen3moe_mxfp4", 1}, Case{"split-00001-of-00003", 1}, Case{"qwen35", 1},
                      Case{"qwen35_q8_0", 1}, Case{"head64_qwen35_q4_0", 1},
                      Case{"ranks2_gemma3", 2}, Case{"ranks2_qwen3moe", 2}, Case{"ranks8_llama", 2},
                      Case{"ranks8_llama", 8}),
    [](const auto& info) {
      std::string name = fmt::format("{}_{}", info.param.model, info.param.num_ranks);
      for (char& c : name) c = c == '-' ? '_' : c;
      return name;
    });

TEST(WeightLoaderFp8Test, FoldersKeepTheirCodesAndScales) {
  for (const Fp8Layout& layout : Fp8Layouts()) {
    for (const bool has_experts : {false, true}) {
      SCOPED_TRACE(layout.name);
      const Fp8Model weights = Fp8ModelMaker(layout).Make(has_experts);
      const TestFolder folder("weight_loader");
      folder.Write(weights.config, weights.fp8);
      for (const bool keeps_packed : {true, false}) {
        Loaded model(folder.path(), 1, keeps_packed);
        const auto uploaded = model.Upload(5000, 3000);
        ASSERT_TRUE(uploaded.ok()) << uploaded.status();
        EXPECT_EQ(uploaded->weights_id, HashWeights(model.file(), model.config()));
        const bool packs = keeps_packed && layout.columns_each != 32;  // tiles take groups of 64
        EXPECT_EQ(model.rank().packed_bytes() > 0, packs);
        model.ExpectAllRanks();
      }
    }
  }
}

// Each device has buffers and a link of its own; the fakes refuse work of one that is not current.
TEST(WeightLoaderDevicesTest, RanksOnDevicesOfTheirOwnHaveTheSame) {
  Loaded model(GoldenPath("tiny_ranks2_gemma3.gguf"), 2, /*keeps_packed=*/true, 2);
  const auto uploaded = model.Upload(5000, 3000);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  model.ExpectAllRanks();
  EXPECT_EQ(uploaded->report.device_bytes, model.rank(0).bytes() + model.rank(1).bytes());
}

// On a device that gives no more than so many bytes at once.
absl::Status AllocateIn(size_t max_allocation, const std::string& model, ModelRank rank) {
  const auto file = *OpenModelFile(GoldenPath(model));
  const ModelConfig config = *ReadModelConfig(*file);
  FakeAccelerator device;
  device.max_allocation = max_allocation;
  WeightParts parts;
  return DeviceWeights::Allocate(
             *PlanTensors(*file, config),
             {.config = &config, .rank = rank, .keeps_packed = false, .device = &device}, parts)
      .status();
}

TEST(WeightLoaderErrorTest, AMemoryTooSmallIsToldWhatAllOfTheWeightsTake) {
  const std::string name = "tiny_head64_llama.gguf";
  const Loaded loaded(GoldenPath(name), 1, /*keeps_packed=*/false);
  const DeviceWeights& whole = loaded.rank();
  const size_t too_much = whole.layers[0].qkv.size_bytes();
  const size_t before = whole.token_embd.size_bytes() + whole.output_norm.size_bytes() +
                        whole.layers[0].attn_norm.size_bytes();
  const absl::Status status = AllocateIn(too_much - 1, name, {0, 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            fmt::format("the weights take {}, and after {} of them: blk.0.attn_q.weight needs {}, "
                        "the fake has {}",
                        FormatSize(whole.bytes()), FormatSize(before), too_much, too_much - 1));
  EXPECT_THAT(std::string(AllocateIn(0, "tiny_ranks2_gemma3.gguf", {1, 2}).message()),
              ::testing::StartsWith("the weights of rank 1 of 2 take "));
}

TEST(WeightLoaderErrorTest, ADeviceThatFailsEndsTheUploadWithNothingUnderWay) {
  Loaded model(GoldenPath("tiny_q8_0.gguf"), 1, true);
  for (const size_t num_copies : {0, 5, 6, 7, 20, 30}) {
    model.device().num_copies_in_left = num_copies;
    const auto uploaded = model.Upload(1, 1);
    EXPECT_EQ(uploaded.status().code(), absl::StatusCode::kInternal) << num_copies;
    EXPECT_FALSE(model.device().IsBusy());
  }
  model.device().num_copies_in_left = ~size_t{0};
  model.device().num_host_allocations_left = 1;
  EXPECT_EQ(model.Upload(1, 1).status().code(), absl::StatusCode::kResourceExhausted);
  model.device().num_host_allocations_left = 2;
  ASSERT_TRUE(model.Upload(1, 1).ok());
  model.ExpectAllRanks();
}

// A golden model in memory, in none of whose files it lies, with `value` at a row of a tensor.
template <class T>
absl::Status UploadDamaged(const char* name, std::string_view tensor, uint64_t row, T value,
                           size_t read_bytes) {
  std::ifstream in(GoldenPath(name), std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  std::vector<uint64_t> aligned(text.size() / 8 + 1);
  std::memcpy(aligned.data(), text.data(), text.size());
  const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(aligned.data()), text.size());
  auto file = *GgufFile::FromBytes(bytes);
  const GgufTensor* const found = file->FindTensor(tensor);
  const uint64_t num_rows = found->num_elements() / found->dims[0];
  const size_t at = static_cast<size_t>(found->data.data() - bytes.data());
  std::memcpy(&bytes[at + row * (found->data.size() / num_rows)], &value, sizeof(value));
  Loaded model(std::move(file), 1, /*keeps_packed=*/row % 2 == 0);
  return model.Upload(read_bytes, 1 << 20).status();
}

// Packed and encoded rows, in the first and in later pieces; elements; vectors.
TEST(WeightLoaderErrorTest, NumbersThatAreNoneAreRefusedByTensorAndRow) {
  constexpr size_t kWhole = 8 << 20;
  const auto message = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  using ::testing::HasSubstr;
  constexpr std::string_view kUp = "blk.1.ffn_up.weight";
  for (const uint64_t row : {20, 21}) {
    EXPECT_THAT(message(UploadDamaged("tiny_q8_0.gguf", kUp, row, kNanHalf, kWhole)),
                HasSubstr(fmt::format("tensor \"{}\": row {} of ", kUp, row)));
    EXPECT_THAT(message(UploadDamaged("tiny_q8_0.gguf", kUp, row, kNanHalf, 1)),
                HasSubstr(fmt::format("tensor \"{}\" from row 16: row {} of 16 has a Q8_0", kUp,
                                      row - 16)));
  }
  for (const size_t read_bytes : {kWhole, size_t{1}}) {
    EXPECT_THAT(message(UploadDamaged("tiny_mxfp4.gguf", kUp, 33, uint16_t{0x77FE}, read_bytes)),
                HasSubstr(fmt::format("tensor \"{}\": row 33 of ", kUp)));
    EXPECT_THAT(
        message(UploadDamaged("tiny_q8_0.gguf", "output_norm.weight", 0, kNanFloat, read_bytes)),
        HasSubstr("element 0 of tensor \"output_norm.weight\""));
  }
}

// ---- Rows and tiles by ranges.

TEST(EncodeRowsTest, AnyRangeOfRowsEqualsThatPartOfTheWhole) {
  ThreadPool pool(2);
  for (const char* name :
       {"f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k",
        "mxfp4", "iq4_nl", "iq4_xs", "q3_k", "q2_k", "qwen3moe_q8_0"}) {
    const auto file = *OpenModelFile(GoldenPath(fmt::format("tiny_{}.gguf", name)));
    for (const GgufTensor& tensor : file->tensors()) {
      const uint64_t n = tensor.num_elements() / tensor.dims[0];
      const uint64_t raw_bytes = tensor.data.size() / n;
      const Bytes whole = InBf16(tensor, pool);
      EXPECT_EQ(*EncodeMatrix(tensor, GgmlType::kBf16, pool), whole) << name << tensor.name;
      for (const IndexRange rows : {IndexRange{0, 1}, IndexRange{n / 3, n - n / 3},
                                    IndexRange{n - 1, 1}, IndexRange{n / 2, 1}}) {
        const TensorSlice part = RowsOfTensor(
            tensor, rows, tensor.data.subspan(rows.first * raw_bytes, rows.count * raw_bytes));
        Bytes got(rows.count * tensor.dims[0] * 2);
        ASSERT_TRUE(EncodeRows(part.tensor, GgmlType::kBf16, pool, got).ok());
        EXPECT_EQ(
            std::memcmp(got.data(), whole.data() + rows.first * tensor.dims[0] * 2, got.size()), 0)
            << name << " " << tensor.name << " rows from " << rows.first;
      }
    }
  }
}

TEST(PackTensorTest, TilesOfAnyRowsEqualThoseOfTheWhole) {
  ThreadPool pool(2);
  for (const char* name : {"q4_0", "q4_1", "q8_0", "q4_k", "q6_k"}) {
    const auto file = *OpenModelFile(GoldenPath(fmt::format("tiny_{}.gguf", name)));
    size_t num_packed = 0;
    for (const GgufTensor& tensor : file->tensors()) {
      const WeightForm form = {.format = PackedFormatOf(tensor)};
      if (form.format == cuda::PackedFormat::kBf16) continue;
      ++num_packed;
      const uint64_t n = tensor.dims[1];
      const uint64_t k = tensor.dims[0];
      Bytes whole(form.Bytes(n, k));
      ASSERT_TRUE(PackTensor(tensor, pool, whole).ok());
      for (uint64_t first = 0; first < n; first += 16) {
        for (const uint64_t end : {std::min<uint64_t>(first + 16, n), n}) {
          const TensorSlice part = *SliceTensor(tensor, {first, end - first}, {0, k}, pool);
          EXPECT_EQ(part.storage, nullptr);
          Bytes got(form.Bytes(end - first, k));
          ASSERT_TRUE(PackTensor(part.tensor, pool, got).ok());
          EXPECT_EQ(std::memcmp(got.data(), whole.data() + form.Offset(first, k), got.size()), 0)
              << name << " " << tensor.name << " rows " << first << " to " << end;
        }
      }
    }
    EXPECT_GT(num_packed, 0u) << name;
  }
}

TEST(WeightLoadReportTest, SaysWhoWaitedForWhom) {
  const WeightLoadReport report = {.file_bytes = 5'000'000'000,
                                   .direct_bytes = 5'000'000'000,
                                   .device_bytes = 16'000'000'000,
                                   .seconds = 4,
                                   .file_wait_seconds = 0.5,
                                   .link_wait_seconds = 0.25,
                                   .link_bytes_per_second = 16e9};
  EXPECT_DOUBLE_EQ(report.ShareOfLink(), 0.25);
  EXPECT_EQ(report.Text(),
            "16.00 GB in 4.00 s (4.00 GB/s, 25 % of the link's 16.00); waited 0.50 s for the file "
            "(O_DIRECT), packed for 3.25 s, waited 0.25 s for the link");
  EXPECT_EQ(WeightLoadReport().ShareOfLink(), 0);
}

}  // namespace
}  // namespace baton::model
