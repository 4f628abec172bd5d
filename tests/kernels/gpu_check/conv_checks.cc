#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/conv_reference.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/simt/device_values.h"
#include "tests/kernels/simt/host_blocks.h"

namespace baton::kernels::gpu_check {
namespace {

using cuda::Bf16;
using cuda::kPaddingRow;
using cuda::ShortConvParams;
using simt_test::Chunk;
using simt_test::HeadShape;
using simt_test::HostBlocks;
using simt_test::RandomBf16;
using simt_test::RandomFloats;

struct ConvCase {
  const char* name;
  HeadShape shape;  // whose K and V of one layer are as long as the inputs
  uint32_t channels;
  uint32_t num_taps;
  std::vector<Chunk> chunks;
};

// The batch on the host. It owns the memory that `params` points to; out and kv.base are null.
struct ConvBatch {
  explicit ConvBatch(const ConvCase& c) : blocks(c.shape, c.chunks), old_blocks(blocks.bytes()) {
    for (const Chunk& chunk : c.chunks) {
      for (uint32_t i = 0; i < chunk.count; ++i) {
        sequences.push_back(chunk.sequence);
        positions.push_back(chunk.sequence == kPaddingRow ? kPaddingRow : chunk.first + i);
      }
    }
    bcx = RandomBf16(sequences.size() * 3 * c.channels, 26);
    taps = RandomFloats(size_t{c.channels} * c.num_taps, 27, 0.37f);
    const std::vector<Bf16> stored = RandomBf16(old_blocks.size() / sizeof(Bf16), 28);
    std::memcpy(old_blocks.data(), stored.data(), stored.size() * sizeof(Bf16));
    params = {.bcx = bcx.data(),
              .taps = taps.data(),
              .positions = positions.data(),
              .sequences = sequences.data(),
              .block_lists = blocks.lists().data(),
              .out = nullptr,
              .kv = {.base = nullptr,
                     .block_stride_bytes = blocks.kv().block_stride_bytes,
                     .row_elements = 2 * c.shape.num_kv_heads * c.shape.head_dim,
                     .block_size = c.shape.block_size},
              .num_rows = static_cast<uint32_t>(sequences.size()),
              .channels = c.channels,
              .num_taps = c.num_taps,
              .max_blocks = blocks.max_blocks()};
  }
  ConvBatch(const ConvBatch&) = delete;
  ConvBatch& operator=(const ConvBatch&) = delete;

  HostBlocks blocks;
  std::vector<std::byte> old_blocks;
  std::vector<Bf16> bcx;
  std::vector<float> taps;
  std::vector<uint32_t> positions;
  std::vector<uint32_t> sequences;
  ShortConvParams params;
};

absl::Status CheckConv(const DeviceBody& body, const ConvCase& c) {
  const ConvBatch batch(c);
  ShortConvParams params = batch.params;
  const size_t out_size = size_t{params.num_rows} * params.channels;
  DeviceArray<Bf16> bcx(body, batch.bcx);
  DeviceArray<float> taps(body, batch.taps);
  DeviceArray<uint32_t> positions(body, batch.positions);
  DeviceArray<uint32_t> sequences(body, batch.sequences);
  DeviceArray<uint32_t> lists(body, batch.blocks.lists());
  DeviceArray<std::byte> blocks(body, batch.old_blocks);
  DeviceArray<Bf16> out(body, out_size);
  BATON_RETURN_IF_ERROR(FirstFailure(bcx, taps, positions, sequences, lists, blocks, out));
  params.bcx = bcx.data();
  params.taps = taps.data();
  params.positions = positions.data();
  params.sequences = sequences.data();
  params.block_lists = lists.data();
  params.out = out.data();
  params.kv.base = blocks.data() + batch.blocks.LayerOffset();
  BATON_RETURN_IF_ERROR(body.kernels().short_conv(params, nullptr));
  const std::vector<Bf16> got = out.Values();
  BATON_RETURN_IF_ERROR(out.status());
  const std::vector<std::byte> got_blocks = blocks.Values();
  BATON_RETURN_IF_ERROR(blocks.status());

  std::vector<Bf16> expected(out_size, Bf16{0xFFFF});  // memory that nobody wrote
  std::vector<std::byte> expected_blocks = batch.old_blocks;
  ShortConvParams host = batch.params;
  host.out = expected.data();
  host.kv.base = expected_blocks.data() + batch.blocks.LayerOffset();
  cuda::ReferenceShortConvBits(host);
  BATON_RETURN_IF_ERROR(ExpectSameBits("outputs", got, expected));
  return ExpectSameBits("blocks", got_blocks, expected_blocks);
}

}  // namespace

absl::Status CheckShortConv(const StageInput& input, Report& report) {
  const std::vector<ConvCase> tiny = {
      {"short_conv 3", {64, 1, 1, 16}, 40, 3, {{1, 14, 3}, {kPaddingRow, 0, 2}, {0, 20, 1}}}};
  // The widths of LFM2-350M (one slice) and, whole, of its larger kin.
  const std::vector<ConvCase> full = {
      {"short_conv 3", {64, 16, 8, 64}, 1024, 3, {{2, 100, 300}, {0, 4095, 1}, {1, 0, 65}}},
      {"short_conv 4", {128, 8, 8, 16}, 2040, 4, {{0, 1, 33}, {kPaddingRow, 0, 5}, {1, 31, 1}}}};
  for (const ConvCase& c : input.is_tiny ? tiny : full) {
    if (!report.Begin(c.name)) continue;
    auto chunks = nlohmann::json::array();
    for (const Chunk& chunk : c.chunks) {
      chunks.push_back({chunk.sequence, chunk.first, chunk.count});
    }
    const absl::Status status =
        OfCase(CheckConv(input.body, c),
               {{"channels", c.channels},
                {"num_taps", c.num_taps},
                {"block_size", c.shape.block_size},
                {"chunks", std::move(chunks)},
                {"inputs", "ConvBatch of conv_checks.cc: RandomBf16, seeds 26 to 28"}});
    BATON_RETURN_IF_ERROR(report.Add(OutcomeOf(
        c.name, status, fmt::format("{} channels, blocks of {}", c.channels, c.shape.block_size))));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
