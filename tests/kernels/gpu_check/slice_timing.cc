#include "tests/kernels/gpu_check/slice_timing.h"

#include <string>
#include <vector>

#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/model_shape.h"
#include "tests/kernels/gpu_check/timing.h"

namespace baton::kernels::gpu_check {
namespace {

// Layers of a block that lie beside one another here; a launch moves one of them.
constexpr uint32_t kLayers = 8;
constexpr double kGatherTarget = 90;  // percent of copying, from 128 MiB on
constexpr size_t kTargetBytes = 128 << 20;

uint32_t SliceBytes(const ModelShape& shape) {
  return 2 * shape.num_kv_heads * kShapeBlockSize * shape.head_dim * 2;
}

// Slices in blocks, the staging buffer, and what else the kernels read.
class SliceTiming {
 public:
  SliceTiming(const StageInput& input, uint32_t num_slices)
      : input_(input),
        slice_bytes_(SliceBytes(ShapeFor(input.is_tiny))),
        num_slices_(num_slices),
        blocks_(input, size_t{kLayers} * num_slices * slice_bytes_, 1.0f),
        staging_(input.body, size_t{num_slices} * slice_bytes_),
        places_(input.body, Places()),
        keys_(input.body, Keys()),
        expected_(input.body, num_slices),
        checksums_(input.body, num_slices) {
    status_.Update(FirstFailure(blocks_, staging_, places_, keys_, expected_, checksums_));
  }

  absl::Status Add(bool is_gather, Report& report) {
    TimedCase timed = {
        .name = fmt::format("kv_{} {} KiB", is_gather ? "gather" : "scatter", Bytes() >> 10)};
    // A scatter expects the checksums of the slices that were gathered.
    absl::Status status = status_;
    if (status.ok()) {
      status = input_.body.kernels().kv_gather(Params(expected_.data(), 0), nullptr);
    }
    if (!status.ok()) {
      return report.Add({timed.name, Verdict::kFail, std::string(status.message())});
    }
    timed.bytes = 2.0 * static_cast<double>(Bytes());
    timed.is_copy = true;
    if (is_gather && Bytes() >= kTargetBytes) timed.target.percent = kGatherTarget;
    timed.work = WorkOf(input_, kLayers, [this, is_gather](void* stream, uint32_t i) {
      const kv::KvSlicesParams params = Params(checksums_.data(), i % kLayers);
      return is_gather ? input_.body.kernels().kv_gather(params, stream)
                       : input_.body.kernels().kv_scatter(params, stream);
    });
    return AddTimed(input_, timed, report).status();
  }

 private:
  size_t Bytes() const { return size_t{num_slices_} * slice_bytes_; }

  std::vector<kv::KvSlicePlace> Places() const {
    std::vector<kv::KvSlicePlace> places(num_slices_);
    for (uint32_t i = 0; i < num_slices_; ++i) {
      places[i].block_offset = uint64_t{i} * kLayers * slice_bytes_;
      places[i].staging_offset = uint64_t{i} * slice_bytes_;
    }
    return places;
  }
  static std::vector<uint64_t> Keys() {
    const auto keys = kv::Xxh3Keys();
    return {keys.begin(), keys.end()};
  }

  kv::KvSlicesParams Params(uint64_t* checksums, uint32_t layer) {
    return {.blocks = blocks_.Piece(0, 0) + size_t{layer} * slice_bytes_,
            .staging = staging_.data(),
            .places = places_.data(),
            .keys = keys_.data(),
            .expected = expected_.data(),
            .checksums = checksums,
            .num_slices = num_slices_,
            .slice_bytes = slice_bytes_};
  }

  const StageInput& input_;
  uint32_t slice_bytes_;
  uint32_t num_slices_;
  RandomMemory blocks_;
  DeviceArray<std::byte> staging_;
  DeviceArray<kv::KvSlicePlace> places_;
  DeviceArray<uint64_t> keys_;
  DeviceArray<uint64_t> expected_;
  DeviceArray<uint64_t> checksums_;
  absl::Status status_;
};

}  // namespace

absl::Status AddSliceTimings(const StageInput& input, Report& report) {
  for (const uint32_t num_slices :
       input.is_tiny ? std::vector<uint32_t>{2} : std::vector<uint32_t>{32, 128, 512}) {
    SliceTiming timing(input, num_slices);
    for (const bool is_gather : {true, false}) {
      BATON_RETURN_IF_ERROR(timing.Add(is_gather, report));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
