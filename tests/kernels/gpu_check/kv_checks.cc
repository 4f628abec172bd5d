// KvGather and KvScatter against their reference: equal bits.
#include <vector>

#include "kernels/cuda/kv_slices_reference.h"
#include "src/base/status.h"
#include "tests/drawn_bytes.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/stages.h"

namespace baton::kernels::gpu_check {
namespace {

// So many slices of so many bytes, which so many ranks share at one side; the last one of a scatter
// has a wrong checksum.
struct SliceShape {
  uint32_t num_slices;
  uint32_t slice_bytes;
  uint32_t num_ranks = 1;
};

// Host memory of both sides of a move.
struct Sides {
  std::vector<std::byte> blocks;
  std::vector<std::byte> staging;
  std::vector<kv::KvSlicePlace> places;
  std::vector<uint64_t> expected;
  std::vector<uint64_t> checksums;
};

// The blocks as so many ranks have them: each an equal part of the memory.
kv::KvSide BlocksOf(const SliceShape& shape, std::byte* base) {
  kv::KvSide side(base);
  side.num_ranks = shape.num_ranks;
  const size_t rank_bytes = size_t{2} * shape.num_slices * shape.slice_bytes / shape.num_ranks;
  for (uint32_t rank = 0; rank < shape.num_ranks; ++rank) {
    side.ranks[rank] = base + rank * rank_bytes;
  }
  return side;
}

// Every second place of the blocks has a slice, in reverse.
Sides MakeSides(const SliceShape& shape) {
  Sides sides{.blocks = DrawnBytes(size_t{2} * shape.num_slices * shape.slice_bytes, 1),
              .staging = DrawnBytes(size_t{shape.num_slices} * shape.slice_bytes, 2),
              .places = std::vector<kv::KvSlicePlace>(shape.num_slices),
              .expected = std::vector<uint64_t>(shape.num_slices),
              .checksums = std::vector<uint64_t>(shape.num_slices)};
  const auto keys = kv::Xxh3Keys();
  for (uint32_t i = 0; i < shape.num_slices; ++i) {
    sides.places[i].block_offset =
        uint64_t{2} * (shape.num_slices - 1 - i) * (shape.slice_bytes / shape.num_ranks);
    sides.places[i].staging_offset = uint64_t{i} * shape.slice_bytes;
  }
  // The checksums of what is in staging; no slice has the expected one, so no block changes.
  cuda::ReferenceKvScatter({BlocksOf(shape, sides.blocks.data()), sides.staging.data(),
                            sides.places.data(), keys.data(), sides.expected.data(),
                            sides.checksums.data(), shape.num_slices, shape.slice_bytes});
  sides.expected = sides.checksums;
  sides.expected.back() ^= 1;
  return sides;
}

absl::Status CheckMove(const DeviceBody& body, const SliceShape& shape, bool gather) {
  Sides sides = MakeSides(shape);
  const auto key_words = kv::Xxh3Keys();
  DeviceArray<std::byte> blocks(body, sides.blocks);
  DeviceArray<std::byte> staging(body, sides.staging);
  DeviceArray<kv::KvSlicePlace> places(body, sides.places);
  DeviceArray<uint64_t> expected(body, sides.expected);
  DeviceArray<uint64_t> checksums(body, sides.checksums.size());
  DeviceArray<uint64_t> keys(body, std::vector<uint64_t>(key_words.begin(), key_words.end()));
  for (const auto* array : {&blocks, &staging}) BATON_RETURN_IF_ERROR(array->status());
  for (const auto* array : {&expected, &checksums, &keys}) BATON_RETURN_IF_ERROR(array->status());
  BATON_RETURN_IF_ERROR(places.status());
  const auto run = gather ? body.kernels().kv_gather : body.kernels().kv_scatter;
  BATON_RETURN_IF_ERROR(
      run({BlocksOf(shape, blocks.data()), staging.data(), places.data(), keys.data(),
           expected.data(), checksums.data(), shape.num_slices, shape.slice_bytes},
          nullptr));
  const kv::KvSlicesParams host = {BlocksOf(shape, sides.blocks.data()),
                                   sides.staging.data(),
                                   sides.places.data(),
                                   key_words.data(),
                                   sides.expected.data(),
                                   sides.checksums.data(),
                                   shape.num_slices,
                                   shape.slice_bytes};
  gather ? cuda::ReferenceKvGather(host) : cuda::ReferenceKvScatter(host);
  // Reports an error of the kernel before it compares arrays that the kernel did not fill.
  const std::vector<uint64_t> got = checksums.Values();
  BATON_RETURN_IF_ERROR(checksums.status());
  BATON_RETURN_IF_ERROR(ExpectSameBits("checksums", got, sides.checksums));
  const std::vector<std::byte> staged = staging.Values();
  BATON_RETURN_IF_ERROR(staging.status());
  BATON_RETURN_IF_ERROR(ExpectSameBits("staging", staged, sides.staging));
  const std::vector<std::byte> stored = blocks.Values();
  BATON_RETURN_IF_ERROR(blocks.status());
  return ExpectSameBits("blocks", stored, sides.blocks);
}

}  // namespace

absl::Status CheckKvSlices(const StageInput& input, Report& report) {
  const std::vector<SliceShape> shapes =
      input.is_tiny
          ? std::vector<SliceShape>{{1, 256}, {3, 1344}, {2, 2112}, {3, 1280, 2}, {2, 4352, 8}}
          : std::vector<SliceShape>{{1, 256},     {33, 12288},    {512, 65536},    {64, 133120},
                                    {2, 4194368}, {33, 12288, 2}, {64, 133120, 4}, {64, 67584, 8}};
  for (const bool gather : {true, false}) {
    const char* const name = gather ? "kv_gather" : "kv_scatter";
    if (!report.Begin(name)) continue;
    Finding finding{.name = name, .detail = fmt::format("{} shapes", shapes.size())};
    for (const SliceShape& shape : shapes) {
      const absl::Status status =
          OfCase(CheckMove(input.body, shape, gather),
                 {{"num_slices", shape.num_slices},
                  {"slice_bytes", shape.slice_bytes},
                  {"num_ranks", shape.num_ranks},
                  {"inputs", "MakeSides of kv_checks.cc: RandomBytes, seeds 1 and 2"}});
      if (status.ok()) continue;
      finding = OutcomeOf(name, status, "");
      finding.detail = fmt::format("{} slices of {} bytes and {} ranks: {}", shape.num_slices,
                                   shape.slice_bytes, shape.num_ranks, finding.detail);
      break;
    }
    BATON_RETURN_IF_ERROR(report.Add(std::move(finding)));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
