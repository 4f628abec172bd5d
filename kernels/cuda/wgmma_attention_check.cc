#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/wgmma_check.h"
#include "src/base/log.h"
#include "src/base/split_mix.h"
#include "src/device/host_buffer.h"

namespace baton::kernels::cuda {

using device::Accelerator;
using device::DeviceBuffer;
using device::HostBuffer;

namespace {

constexpr uint32_t kHeads = 4;
constexpr uint32_t kKvHeads = 2;
constexpr uint32_t kRows = 40;    // 80 pairs of a kv head: two items, the second not full
constexpr uint32_t kKeys = 310;   // two splits; the last block is not full
constexpr uint32_t kNumCtas = 3;  // of four items: a cta has more than one
constexpr uint32_t kBlocks[] = {3, 0, 4, 1, 2};
constexpr uint32_t kBlockSize = 64;
constexpr uint16_t kNan = 0xFFFF;

// One of the bf16 of magnitude [2^-7, 2) from a seed's sequence.
uint16_t Draw(uint64_t& state) {
  const uint64_t bits = SplitMix(state += kSplitMixStep);
  return static_cast<uint16_t>((120 + (bits >> 32) % 8) << 7 | (bits & 0x807F));
}

std::vector<uint16_t> DrawMany(size_t count, uint64_t seed) {
  std::vector<uint16_t> out(count);
  for (uint16_t& value : out) value = Draw(seed);
  return out;
}

// K (or V) of one head in a block, NaNs from `num_keys` on: [token][dim], of fp8 then scales.
void DrawPiece(const KvBlocks& kv, uint32_t num_keys, uint64_t& state, std::byte* to) {
  std::memset(to, 0xFF, kv.PieceBytes());
  for (size_t at = 0; at < num_keys * kv.RowBytes(); at += sizeof(uint16_t)) {
    uint16_t word = Draw(state);
    if (kv.element == KvElement::kFp8) word &= 0xBFBF;  // two codes, neither a NaN
    std::memcpy(to + at, &word, sizeof(word));
  }
  if (kv.element != KvElement::kFp8) return;
  for (uint32_t key = 0; key < num_keys; ++key) {
    const auto scale = static_cast<uint16_t>((124 + key % 6) << 7);
    std::memcpy(to + kv.ScaleOffset(key), &scale, sizeof(scale));
  }
}

std::vector<std::byte> DrawBlocks(const KvBlocks& kv) {
  std::vector<std::byte> out(std::size(kBlocks) * kv.block_stride_bytes);
  uint64_t state = 3;
  for (uint32_t i = 0; i < std::size(kBlocks); ++i) {
    const uint32_t num_keys = std::min(kBlockSize, kKeys - i * kBlockSize);
    for (uint32_t piece = 0; piece < 2 * kKvHeads; ++piece) {
      DrawPiece(kv, num_keys, state,
                out.data() + kBlocks[i] * kv.block_stride_bytes + piece * kv.PieceBytes());
    }
  }
  return out;
}

template <typename T>
absl::StatusOr<DeviceBuffer> Put(Accelerator& device, const std::vector<T>& values) {
  const size_t bytes = values.size() * sizeof(T);
  BATON_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                         DeviceBuffer::Create(&device, bytes, "check of wgmma"));
  BATON_RETURN_IF_ERROR(device.CopyIn(buffer.data(), values.data(), bytes));
  return buffer;
}

// The buffers that attention reads and writes, on the device.
struct Inputs {
  DeviceBuffer q;
  DeviceBuffer blocks;
  DeviceBuffer lists;
  DeviceBuffer items;
  DeviceBuffer num_items;
  DeviceBuffer out;
};

absl::StatusOr<Inputs> MakeInputs(const KvBlocks& kv, Accelerator& device) {
  AttentionPlan plan;
  const AttentionRows rows = {0, 0, kRows, kKeys - kRows};
  BATON_RETURN_IF_ERROR(PlanAttention({kHeads, kKvHeads, 0}, {1, 0}, {&rows, 1}, plan));
  const std::vector<uint32_t> num_items = {static_cast<uint32_t>(plan.prefill.size())};
  const size_t num_values = size_t{kRows} * kHeads * kv.head_dim;
  Inputs made;
  BATON_ASSIGN_OR_RETURN(made.q, Put(device, DrawMany(num_values, 1)));
  BATON_ASSIGN_OR_RETURN(made.blocks, Put(device, DrawBlocks(kv)));
  BATON_ASSIGN_OR_RETURN(
      made.lists, Put(device, std::vector<uint32_t>(std::begin(kBlocks), std::end(kBlocks))));
  BATON_ASSIGN_OR_RETURN(made.items, Put(device, plan.prefill));
  BATON_ASSIGN_OR_RETURN(made.num_items, Put(device, num_items));
  BATON_ASSIGN_OR_RETURN(made.out, Put(device, std::vector<uint16_t>(num_values, kNan)));
  return made;
}

// The output, NaN where nothing was written.
absl::StatusOr<std::vector<uint16_t>> Attend(const KernelTable& kernels, Accelerator& device,
                                             const Inputs& inputs, AttentionParams params) {
  std::vector<uint16_t> out(inputs.out.size_bytes() / sizeof(uint16_t), kNan);
  BATON_RETURN_IF_ERROR(device.CopyIn(inputs.out.data(), out.data(), inputs.out.size_bytes()));
  params.q = inputs.q.as<Bf16>();
  params.out = inputs.out.as<Bf16>();
  params.kv.base = inputs.blocks.data();
  params.block_lists = inputs.lists.as<uint32_t>();
  params.items = inputs.items.as<AttentionItem>();
  params.num_items = inputs.num_items.as<uint32_t>();
  BATON_RETURN_IF_ERROR(kernels.attention_prefill(params, device.stream()));
  BATON_ASSIGN_OR_RETURN(const HostBuffer host,
                         HostBuffer::Create(&device, inputs.out.size_bytes(), "check of wgmma"));
  BATON_RETURN_IF_ERROR(device.CopyOut(host.data(), inputs.out.data(), inputs.out.size_bytes()));
  BATON_RETURN_IF_ERROR(device.Wait());
  std::memcpy(out.data(), host.data(), host.size_bytes());
  return out;
}

}  // namespace

absl::StatusOr<bool> CheckWgmmaAttention(const KernelTable& kernels, Accelerator& device,
                                         uint32_t head_dim, KvElement element) {
  if (!kernels.has_wgmma()) return false;
  KvBlocks kv = {nullptr, 0, kKvHeads, head_dim, kBlockSize, element};
  kv.block_stride_bytes = 2 * kv.ValueOffset();
  BATON_ASSIGN_OR_RETURN(const Inputs inputs, MakeInputs(kv, device));
  AttentionParams params = {};
  params.kv = kv;
  params.max_blocks = std::size(kBlocks);
  params.num_heads = kHeads;
  params.scale = 0.125f;
  params.num_ctas = kNumCtas;
  BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> expected,
                         Attend(kernels, device, inputs, params));
  params.by_wgmma = true;
  const absl::StatusOr<std::vector<uint16_t>> got = Attend(kernels, device, inputs, params);
  if (got.status().code() == absl::StatusCode::kFailedPrecondition) {
    BATON_LOG_WARN("{} attends by mma.sync: {}", device.Describe(),
                   std::string(got.status().message()));
    return false;
  }
  BATON_RETURN_IF_ERROR(got.status());
  uint32_t num_different = 0;
  for (size_t i = 0; i < expected.size(); ++i) num_different += expected[i] != (*got)[i] ? 1 : 0;
  if (num_different == 0) return true;
  BATON_LOG_WARN("{} attends by mma.sync: wgmma gives {} of {} outputs other bits",
                 device.Describe(), num_different, expected.size());
  return false;
}

}  // namespace baton::kernels::cuda
