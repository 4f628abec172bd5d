#include "src/model/weight_sharing.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "src/base/byte_text.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/size_text.h"
#include "src/device/aligned_buffer.h"
#include "src/device/shared_slots.h"
#include "src/model/file_mapping.h"

namespace baton::model {

using device::AlignedBuffer;
using device::SharedSlots;
using device::SlotsWanted;

namespace {

// The digits of HashWeights.
constexpr size_t kIdBytes = 32;
// How long one process waits for a step of another: a matrix of gigabytes may come from a slow
// disk, and the memory of all takes about 0.1 s a GiB.
constexpr int64_t kPatienceUs = 30'000'000;
constexpr int64_t kPatienceUsPerGiB = 1'000'000;

SlotsWanted WantedOf(const WeightSource& source, const WeightPacking& packing,
                     const SharedWeights& sharing) {
  SlotsWanted wanted;
  uint64_t total = 0;
  for (const PackJob& job : packing.jobs()) {
    wanted.sizes.push_back(job.matrix->bytes());
    total += job.matrix->bytes();
  }
  wanted.sizes.push_back(kIdBytes);
  wanted.identity = PackingIdentity(source, packing);
  wanted.needs_huge_pages = sharing.needs_huge_pages;
  const int64_t by_size_us = kPatienceUs + static_cast<int64_t>(total >> 30) * kPatienceUsPerGiB;
  wanted.patience_us = sharing.patience_us > 0 ? sharing.patience_us : by_size_us;
  return wanted;
}

// The slots of one model, as this process fills and reads them.
class SharedPacking {
 public:
  SharedPacking(const WeightSource& source, const WeightPacking& packing, SharedSlots& slots)
      : source_(source), jobs_(packing.jobs()), slots_(slots) {}

  absl::StatusOr<PackedWeights> Run() {
    // An error comes again below, where the order is the same in all processes.
    for (size_t i = 0; i <= jobs_.size(); ++i) {
      const auto state = slots_.TryFill(i, [&](std::span<std::byte> out) { return Pack(i, out); });
      Count(i, state);
    }
    for (size_t i = 0; i < jobs_.size(); ++i) BATON_RETURN_IF_ERROR(TakeMatrix(i));
    out_.weights_id = TakeId();
    BATON_RETURN_IF_ERROR(slots_.Protect());
    return std::move(out_);
  }

 private:
  absl::Status Pack(size_t slot, std::span<std::byte> out) {
    if (slot < jobs_.size()) return jobs_[slot].pack(*jobs_[slot].matrix, out);
    const std::string id = HashWeights(source_.file, source_.config);
    std::memcpy(out.data(), id.data(), kIdBytes);
    return OkStatus();
  }

  absl::StatusOr<SharedSlots::State> Wait(size_t slot) {
    const auto state = slots_.Fill(slot, [&](std::span<std::byte> out) { return Pack(slot, out); });
    Count(slot, state);
    return state;
  }

  absl::Status TakeMatrix(size_t slot) {
    BATON_ASSIGN_OR_RETURN(const SharedSlots::State state, Wait(slot));
    if (state != SharedSlots::State::kBusy) {
      jobs_[slot].matrix->View(slots_.slot(slot).data());
      return OkStatus();
    }
    ++out_.report.num_packed;
    ++out_.report.num_waited;
    return WeightPacking::PackAlone(jobs_[slot]);
  }

  std::string TakeId() {
    const auto state = Wait(jobs_.size());
    if (!state.ok() || *state == SharedSlots::State::kBusy) {
      return HashWeights(source_.file, source_.config);
    }
    return std::string(AsChars(slots_.slot(jobs_.size())));
  }

  void Count(size_t slot, const absl::StatusOr<SharedSlots::State>& state) {
    const bool is_here = state.ok() && *state == SharedSlots::State::kFilledNow;
    if (is_here && slot < jobs_.size()) ++out_.report.num_packed;
  }

  const WeightSource& source_;
  const std::span<const PackJob> jobs_;
  SharedSlots& slots_;
  PackedWeights out_;
};

// All matrices in one buffer: those below 2 MiB would lie on small pages in buffers of their own.
absl::StatusOr<PackedWeights> PackAllAlone(const WeightSource& source, const WeightPacking& packing,
                                           std::string why) {
  const auto padded = [](const PackJob& job) {
    constexpr size_t kMask = AlignedBuffer::kAlignment - 1;
    return (job.matrix->bytes() + kMask) & ~kMask;
  };
  size_t total = 0;
  for (const PackJob& job : packing.jobs()) total += padded(job);
  absl::StatusOr<AlignedBuffer> buffer = AlignedBuffer::Allocate(total);
  if (!buffer.ok()) return WithPrefix(buffer.status(), "packed weights");
  const auto memory = std::make_shared<AlignedBuffer>(*std::move(buffer));
  PackedWeights out;
  size_t at = 0;
  for (const PackJob& job : packing.jobs()) {
    BATON_RETURN_IF_ERROR(job.pack(*job.matrix, {memory->data() + at, job.matrix->bytes()}));
    job.matrix->View(memory->data() + at);
    at += padded(job);
  }
  out.memory = memory;
  out.weights_id = HashWeights(source.file, source.config);
  out.report.num_packed = packing.jobs().size();
  out.report.why_private = std::move(why);
  return out;
}

absl::StatusOr<PackedWeights> PackTogether(const WeightSource& source, WeightPacking& packing,
                                           const SharedWeights& sharing) {
  if (sharing.fd < 0) return PackAllAlone(source, packing, "");
  if (source.file.mappings().empty()) {
    return PackAllAlone(source, packing, "the model lies in no file");
  }
  absl::StatusOr<std::unique_ptr<SharedSlots>> joined =
      SharedSlots::Join(sharing.fd, WantedOf(source, packing, sharing), packing.pool());
  if (!joined.ok()) {
    return PackAllAlone(source, packing, std::string(joined.status().message()));
  }
  const std::shared_ptr<SharedSlots> slots = *std::move(joined);
  BATON_ASSIGN_OR_RETURN(PackedWeights out, SharedPacking(source, packing, *slots).Run());
  out.report.shared_bytes = slots->size_bytes();
  out.report.huge_bytes = slots->huge_bytes();
  out.memory = slots;
  return out;
}

}  // namespace

absl::StatusOr<PackedWeights> PackWeights(const WeightSource& source, WeightPacking& packing,
                                          const SharedWeights& sharing) {
  const int64_t begin_us = SystemClock().NowUs();
  BATON_ASSIGN_OR_RETURN(PackedWeights out, PackTogether(source, packing, sharing));
  out.report.num_matrices = packing.jobs().size();
  out.report.seconds = static_cast<double>(SystemClock().NowUs() - begin_us) / 1e6;
  if (!out.report.why_private.empty()) {
    BATON_LOG_WARN("{}", out.report.Text());
  } else if (sharing.fd >= 0) {
    BATON_LOG_INFO("{}", out.report.Text());
  }
  return out;
}

Hash128 PackingIdentity(const WeightSource& source, const WeightPacking& packing) {
  Xxh3Stream hash;
  hash.Update(fmt::format("packed layout {}\n", kernels::kPackedLayoutVersion));
  for (const FileMapping* file : source.file.mappings()) {
    const FileIdentity& id = file->identity();
    hash.Update(fmt::format("file {} {} {} {}\n", id.device, id.inode, file->bytes().size(),
                            id.changed_ns));
  }
  hash.Update(CanonicalText(source.config));
  for (const GgufTensor* tensor : TensorsByName(source.file)) {
    hash.Update(fmt::format("\n{} {} {}", tensor->name, tensor->type->name, tensor->DimsText()));
  }
  for (const PackJob& job : packing.jobs()) {
    hash.Update(fmt::format("\n{} {} {} {}", job.tensor, job.matrix->traits().name, job.matrix->n(),
                            job.matrix->k()));
  }
  return hash.Digest128();
}

std::string SharingReport::Text() const {
  std::string text =
      fmt::format("packed {} of {} matrices in {:.2f} s", num_packed, num_matrices, seconds);
  if (shared_bytes == 0) {
    return text + (why_private.empty() ? ", in memory of its own"
                                       : ", in memory of its own, not shared: " + why_private);
  }
  text += fmt::format(", in {} that the workers of this server share ({} on huge pages)",
                      FormatSize(shared_bytes), FormatSize(huge_bytes));
  if (num_waited > 0) {
    text +=
        fmt::format("; {} of them in memory of its own: another worker took too long", num_waited);
  }
  return text;
}

}  // namespace baton::model
