// Stage 6: KV handed over between two processes of one GPU. This process receives; a child sends
// (hand_off_child.h). The child is killed in the middle of a transfer, and another one follows.
// With NCCL the two processes then change places. Where there are two GPUs, both processes then
// have blocks that two ranks share, on both GPUs each. This is so on the runner too.
//
// A time is that of a whole transfer as its receiver sees it. It begins with the word that
// everything is ready, and includes the sender's offers. It ends with the last slice whose bytes
// have the sender's checksum. Beside it stands the device's own copy of as many bytes, which is
// also timed between two waits of the host.
//
// Steps go on in a stream of this device (busy_loop.h) while a communicator is built: from the
// peer's dial to the word that it is up. Steps also go on while a communicator is aborted in the
// middle of a transfer. Beside them stand steps while the other process lives and copies, and
// nothing is built or aborted. Two processes on one GPU take turns, and the check does not ask
// about that. The first steps are dropped.
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/transport/nccl/nccl_library.h"
#include "src/base/clock.h"
#include "src/base/random.h"
#include "tests/kernels/gpu_check/busy_loop.h"
#include "tests/kernels/gpu_check/hand_off_child.h"
#include "tests/kernels/gpu_check/hand_off_receiver.h"
#include "tests/kernels/gpu_check/hand_off_sender.h"
#include "tests/kernels/gpu_check/hand_off_side.h"
#include "tests/kernels/gpu_check/program.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/gpu_check/timing.h"

namespace baton::kernels::gpu_check {

namespace nccl = kv::nccl;
using device::Accelerator;
using device::DeviceBuffer;
using kv::KvLayout;
using kv::TransportKind;
using kv::TransportKindName;

namespace {

constexpr uint32_t kSamples = 10;
constexpr uint32_t kFewSamples = 3;  // on the runner, and where two ranks of NCCL share a GPU
// The copies for comparison move through a buffer this many times their size, as transfers move
// through blocks.
constexpr size_t kCopyRoom = 4;
// The longest wait for the end of a peer that was killed. The kernel takes a GPU from the peer
// before it closes the peer's sockets.
constexpr int64_t kMaxDownUs = 5'000'000;

double MsOf(int64_t us) { return static_cast<double>(us) / 1e3; }

double GbPerS(double bytes, double ms) { return ms > 0 ? bytes / ms / 1e6 : 0; }

// All rows of one transport.
class HandOffCheck {
 public:
  HandOffCheck(const StageInput& input, const SideOptions& options)
      : input_(input),
        options_(options),
        name_(fmt::format(
            "{}{}", TransportKindName(options.kind),
            options.num_ranks == 1 ? "" : fmt::format(" of {} ranks", options.num_ranks))),
        sizes_(HandOffSizes(options.on_runner)) {}

  absl::Status Add(Report& report);

 private:
  // A new child, connected.
  Status Pair(Finding* finding);
  Status TimeTransfers(uint32_t num_blocks, Finding* finding);
  // Steps that go on, the first of them dropped.
  StatusOr<std::unique_ptr<BusyLoop>> StartSteps();
  // So long is watched what goes on by itself.
  std::chrono::milliseconds rest() const {
    return std::chrono::milliseconds(input_.body.is_gpu ? 200 : 5);
  }
  // Transfers for at least a rest.
  Status MoveForARest();
  // Kept under "steps": beside what is asked, and otherwise.
  void KeepSteps(std::vector<double> beside_us, std::vector<double> control_us, Finding* finding);
  Status KillChild(Finding* finding);
  Status KillSender(Finding* finding);
  Status EndTheMiddle(const GrantedTransfer& transfer, Finding* finding);
  Status KillReceiver(Finding* finding);
  Status PairAnew(Finding* finding);
  uint32_t NumSamples() const {
    return input_.is_tiny || options_.kind == TransportKind::kNccl ? kFewSamples : kSamples;
  }
  StatusOr<std::vector<double>> TimeCopies(size_t bytes);
  // The row of one step; false when it failed, and the next ones make no sense.
  absl::StatusOr<bool> AddStep(const std::string& what,
                               const std::function<Status(Finding* finding)>& step, Report& report);
  using Step = std::pair<std::string, std::function<Status(Finding* finding)>>;
  // Up to the first that fails.
  absl::Status AddSteps(const std::vector<Step>& steps, Report& report);
  Incarnation peer() const { return child_options_.incarnation; }

  const StageInput& input_;
  const SideOptions options_;
  const std::string name_;
  const std::vector<uint32_t> sizes_;
  std::unique_ptr<HandOffSide> side_;
  std::unique_ptr<HandOffReceiver> receiver_;
  DeviceBuffer copies_[2];
  std::unique_ptr<HandOffChild> child_;
  SideOptions child_options_;
};

StatusOr<std::unique_ptr<BusyLoop>> HandOffCheck::StartSteps() {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<BusyLoop> loop,
                         BusyLoop::Start(side_->device(), input_.body));
  BATON_RETURN_IF_ERROR(loop->During(rest() / 4).status());
  return loop;
}

void HandOffCheck::KeepSteps(std::vector<double> beside_us, std::vector<double> control_us,
                             Finding* finding) {
  const nlohmann::json beside = JsonOfSteps(std::move(beside_us));
  const nlohmann::json control = JsonOfSteps(std::move(control_us));
  finding->data["steps"] = {{"control", control}, {"beside", beside}};
  if (!input_.body.is_gpu) return;
  finding->detail += fmt::format("; steps beside it {} (while the other process copies {})",
                                 WordsOfSteps(beside), WordsOfSteps(control));
}

Status HandOffCheck::MoveForARest() {
  const auto end = std::chrono::steady_clock::now() + rest();
  do {
    BATON_RETURN_IF_ERROR(receiver_->Move(peer(), 1).status());
  } while (std::chrono::steady_clock::now() < end);
  return OkStatus();
}

Status HandOffCheck::Pair(Finding* finding) {
  child_ = std::make_unique<HandOffChild>();
  child_options_ = options_;
  child_options_.listens = false;
  child_options_.incarnation = RandomIncarnation();
  const int64_t begin_us = SystemClock().NowUs();
  BATON_RETURN_IF_ERROR(child_->Start(side_.get(), child_options_, input_.other_bytes));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<BusyLoop> loop, StartSteps());
  const auto wait = [this](const char* what, std::set<Incarnation> HandOffEvents::*who) {
    return receiver_->WaitWith(
        what, peer(), [this, who](const auto& events) { return (events.*who).contains(peer()); });
  };
  BATON_RETURN_IF_ERROR(wait("the other process", &HandOffEvents::dials));
  BATON_ASSIGN_OR_RETURN(std::vector<double> beside_us,
                         loop->During([&] { return wait("pairing", &HandOffEvents::ups); }));
  const double paired_ms = MsOf(SystemClock().NowUs() - begin_us);
  // The things that are built or loaded at the first use are not timed again.
  BATON_ASSIGN_OR_RETURN(const int64_t first_us, receiver_->Move(peer(), 1));
  BATON_ASSIGN_OR_RETURN(std::vector<double> control_us,
                         loop->During([this] { return MoveForARest(); }));
  finding->data["paired_ms"] = paired_ms;
  finding->data["first_transfer_ms"] = MsOf(first_us);
  finding->detail =
      fmt::format("process to peer {:.0f} ms, first block {:.1f} ms", paired_ms, MsOf(first_us));
  KeepSteps(std::move(beside_us), std::move(control_us), finding);
  return OkStatus();
}

StatusOr<std::vector<double>> HandOffCheck::TimeCopies(size_t bytes) {
  Accelerator* const device = side_->device();
  device->MakeCurrent();
  for (DeviceBuffer& buffer : copies_) {
    if (buffer.data() != nullptr) continue;
    const size_t room = kCopyRoom * sizes_.back() * side_->memory().layout.BlockBytes();
    BATON_ASSIGN_OR_RETURN(buffer, DeviceBuffer::Create(device, room, "copies"));
  }
  std::vector<double> samples_ms;
  // The first one is not kept.
  for (uint32_t i = 0; i <= NumSamples(); ++i) {
    const size_t offset = i * bytes % (copies_[0].size_bytes() - bytes + 1) / 256 * 256;
    BATON_RETURN_IF_ERROR(device->Wait());
    const int64_t begin_us = SystemClock().NowUs();
    BATON_RETURN_IF_ERROR(
        device->CopyWithin(copies_[1].data() + offset, copies_[0].data() + offset, bytes));
    BATON_RETURN_IF_ERROR(device->Wait());
    if (i > 0) samples_ms.push_back(MsOf(SystemClock().NowUs() - begin_us));
  }
  return samples_ms;
}

Status HandOffCheck::TimeTransfers(uint32_t num_blocks, Finding* finding) {
  const KvLayout& layout = side_->memory().layout;
  const double bytes = static_cast<double>(num_blocks * layout.BlockBytes());
  std::vector<double> samples_ms;
  std::vector<double> rates;
  for (uint32_t i = 0; i < NumSamples(); ++i) {
    BATON_ASSIGN_OR_RETURN(const int64_t us, receiver_->Move(peer(), num_blocks));
    samples_ms.push_back(MsOf(us));
    rates.push_back(GbPerS(bytes, MsOf(us)));
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<double> copies_ms,
                         TimeCopies(num_blocks * layout.BlockBytes()));
  nlohmann::json& data = finding->data;
  data["bytes"] = bytes;
  data["slices"] = num_blocks * layout.num_layers;
  data["checksums_verified"] = samples_ms.size() * num_blocks * layout.num_layers;
  data["bytes_compared"] = static_cast<double>(samples_ms.size()) * bytes;
  data["samples_ms"] = samples_ms;
  data["copy_samples_ms"] = copies_ms;
  finding->detail = "timed, on this processor";
  if (!input_.body.is_gpu) return OkStatus();
  const double ms = MedianOf(samples_ms);
  const double copy_ms = MedianOf(copies_ms);
  data["median_ms"] = ms;
  data["samples_gb_per_s"] = rates;
  data["gb_per_s"] = GbPerS(bytes, ms);
  data["copy_gb_per_s"] = GbPerS(bytes, copy_ms);
  data["percent_of_copy"] = ms > 0 ? 100 * copy_ms / ms : 0;
  finding->detail = fmt::format("{:.2f} ms, {:.1f} GB/s; a copy {:.2f} ms, {:.1f} GB/s", ms,
                                GbPerS(bytes, ms), copy_ms, GbPerS(bytes, copy_ms));
  return OkStatus();
}

Status HandOffCheck::KillChild(Finding* finding) {
  const int64_t begin_us = SystemClock().NowUs();
  child_->Kill();
  BATON_RETURN_IF_ERROR(side_->sink()->WaitFor(
      "word of the peer that was killed",
      input_.body.is_gpu ? kMaxDownUs : receiver_->patience_us(),
      [this](const auto& events) { return events.down_us.contains(peer()); }));
  HandOffEvents now = side_->sink()->Snapshot();
  finding->data["down_ms"] = MsOf(now.down_us[peer()] - begin_us);
  finding->data["down_reason"] = now.down_reasons[peer()];
  return OkStatus();
}

Status HandOffCheck::KillSender(Finding* finding) {
  GrantedTransfer transfer;
  BATON_RETURN_IF_ERROR(receiver_->Grant(peer(), sizes_.back(), &transfer));
  BATON_RETURN_IF_ERROR(receiver_->Flood(transfer));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<BusyLoop> loop, StartSteps());
  BATON_ASSIGN_OR_RETURN(std::vector<double> control_us, loop->During(rest()));
  // The communicator is aborted before the receive is closed.
  BATON_ASSIGN_OR_RETURN(std::vector<double> beside_us,
                         loop->During([&, this] { return KillChild(finding); }));
  const HandOffEvents now = side_->sink()->Snapshot();
  if (now.complete_us.contains(transfer.id)) return Internal("a transfer without end is complete");
  BATON_RETURN_IF_ERROR(receiver_->Compare(transfer, transfer.blocks.size() / 2));
  BATON_ASSIGN_OR_RETURN(const std::vector<double> ending_us,
                         loop->During([&, this] { return EndTheMiddle(transfer, finding); }));
  beside_us.insert(beside_us.end(), ending_us.begin(), ending_us.end());
  KeepSteps(std::move(beside_us), std::move(control_us), finding);
  return OkStatus();
}

Status HandOffCheck::EndTheMiddle(const GrantedTransfer& transfer, Finding* finding) {
  HandOffEvents now = side_->sink()->Snapshot();
  finding->data["slices_done"] = now.slices_done[transfer.id];
  finding->data["slices_refused"] = now.num_bad[transfer.id];
  const int64_t closing_us = SystemClock().NowUs();
  BATON_RETURN_IF_ERROR(receiver_->End(transfer, /*peer_lives=*/false));
  finding->data["closed_ms"] = MsOf(SystemClock().NowUs() - closing_us);
  finding->detail = fmt::format("{} of {} slices were there; {}", now.slices_done[transfer.id],
                                receiver_->NumSlices(transfer), now.down_reasons[peer()]);
  return OkStatus();
}

Status HandOffCheck::KillReceiver(Finding* finding) {
  HandOffSender sender(side_.get(), peer());
  BATON_RETURN_IF_ERROR(sender.FillBlocks(/*is_wrong=*/false));
  HandOffGrant grant;
  BATON_RETURN_IF_ERROR(receiver_->AskToTake(peer(), sizes_.back(), &grant));
  sender.Prepare(grant);
  // Two rounds of all slices, and more wait by then.
  const uint64_t num_enough = side_->transport()->Stats().slices_sent +
                              2 * sizes_.back() * side_->memory().layout.num_layers;
  const int64_t end_us = SystemClock().NowUs() + receiver_->patience_us();
  const auto has_sent = [&] { return side_->transport()->Stats().slices_sent >= num_enough; };
  sender.Flood([&] { return has_sent() || SystemClock().NowUs() > end_us; });
  if (!has_sent()) return DeadlineExceeded("the receiver did not take enough");
  BATON_RETURN_IF_ERROR(KillChild(finding));
  const int64_t closing_us = SystemClock().NowUs();
  BATON_RETURN_IF_ERROR(sender.Close(receiver_->patience_us()));
  finding->data["closed_ms"] = MsOf(SystemClock().NowUs() - closing_us);
  finding->detail = side_->sink()->Snapshot().down_reasons[peer()];
  return OkStatus();
}

Status HandOffCheck::PairAnew(Finding* finding) {
  BATON_RETURN_IF_ERROR(Pair(finding));
  BATON_RETURN_IF_ERROR(receiver_->Move(peer(), sizes_.back()).status());
  // By now nothing of the dead peer's pool is left.
  const nlohmann::json counters = side_->Counters();
  if (counters.value("mapped_pools", 1) == 1) return OkStatus();
  return Internal("{} pools are mapped, of one peer", counters["mapped_pools"].dump());
}

absl::StatusOr<bool> HandOffCheck::AddStep(const std::string& what,
                                           const std::function<Status(Finding* finding)>& step,
                                           Report& report) {
  Finding finding{.name = fmt::format("{} {}", name_, what)};
  (void)report.Begin(finding.name);
  Status status = step(&finding);
  const bool has_leaked = status.ok() && receiver_->NumLeaked() > 0;
  if (has_leaked) status = Internal("{} blocks are not free", receiver_->NumLeaked());
  finding.data["blocks_leaked"] = receiver_->NumLeaked();
  finding.data["transport"] = side_->Counters();
  if (!status.ok()) {
    finding.verdict = Verdict::kFail;
    const std::string said = child_ != nullptr ? child_->Output() : "";
    finding.detail = fmt::format("{}{}{}", std::string(status.message()),
                                 said.empty() ? "" : "; the other process: ", said);
  } else if (options_.kind == TransportKind::kNccl && input_.body.is_gpu) {
    finding.detail += fmt::format("; two ranks of NCCL on one GPU {}: for correctness only",
                                  finding.data["transport"].value("way", ""));
  }
  BATON_RETURN_IF_ERROR(report.Add(std::move(finding)));
  return status.ok();
}

absl::Status HandOffCheck::Add(Report& report) {
  // Each step needs those before it: of an earlier process that ended in one, none is done again.
  if (!report.Begin(fmt::format("{} pair", name_))) return absl::OkStatus();
  StatusOr<std::unique_ptr<HandOffSide>> side = HandOffSide::Open(options_);
  if (!side.ok()) {
    const bool is_missing = side.status().code() == absl::StatusCode::kFailedPrecondition;
    return report.Add({name_, is_missing ? Verdict::kNotRun : Verdict::kFail,
                       (is_missing ? "skipped: " : "") + std::string(side.status().message())});
  }
  side_ = *std::move(side);
  receiver_ = std::make_unique<HandOffReceiver>(side_.get(), options_.on_runner);
  std::vector<Step> steps;
  steps.emplace_back("pair", [this](Finding* finding) { return Pair(finding); });
  for (const uint32_t num_blocks : sizes_) {
    const size_t bytes = num_blocks * side_->memory().layout.BlockBytes();
    steps.emplace_back(fmt::format("{} KiB", bytes >> 10), [this, num_blocks](Finding* finding) {
      return TimeTransfers(num_blocks, finding);
    });
  }
  if (options_.num_ranks > 1) return AddSteps({steps.front(), steps.back()}, report);
  steps.emplace_back("sender killed", [this](Finding* finding) { return KillSender(finding); });
  steps.emplace_back("paired anew", [this](Finding* finding) { return PairAnew(finding); });
  // With CUDA IPC slices go from who dialled only, and who is pulled from waits for nothing.
  if (options_.kind == TransportKind::kNccl) {
    steps.emplace_back("receiver killed",
                       [this](Finding* finding) { return KillReceiver(finding); });
    steps.emplace_back("and once more", [this](Finding* finding) { return PairAnew(finding); });
  }
  return AddSteps(steps, report);
}

absl::Status HandOffCheck::AddSteps(const std::vector<Step>& steps, Report& report) {
  for (const auto& [what, step] : steps) {
    BATON_ASSIGN_OR_RETURN(const bool passed, AddStep(what, step, report));
    if (!passed) break;
  }
  return absl::OkStatus();
}

// Checks hand-offs with one rank, and with two.
absl::Status CheckHandOffs(const StageInput& input, SideOptions options, Report& report) {
  for (const uint32_t num_ranks : {1u, 2u}) {
    options.num_ranks = num_ranks;
    options.incarnation = RandomIncarnation();
    BATON_RETURN_IF_ERROR(HandOffCheck(input, options).Add(report));
  }
  return absl::OkStatus();
}

// The path of NCCL, or why there is none.
absl::StatusOr<std::string> FindNccl(const StageInput& input) {
  if (!input.body.is_gpu && input.tools.nccl.empty()) {
    return Unavailable("on the runner a loopback has to be named (--nccl)");
  }
  BATON_ASSIGN_OR_RETURN(const nccl::NcclTable table,
                         nccl::LoadNccl({.library = input.tools.nccl,
                                         .python_folders = PackagesOf(input.tools.python)}));
  return table.path;
}

}  // namespace

absl::Status CheckTransport(const StageInput& input, Report& report) {
  SideOptions options = {.on_runner = !input.body.is_gpu, .listens = true};
  BATON_RETURN_IF_ERROR(CheckHandOffs(input, options, report));
  const absl::StatusOr<std::string> library = FindNccl(input);
  if (!library.ok()) {
    return report.Add(
        {"nccl", Verdict::kNotRun, "skipped: " + std::string(library.status().message())});
  }
  options.kind = TransportKind::kNccl;
  options.nccl_library = *library;
  return CheckHandOffs(input, options, report);
}

}  // namespace baton::kernels::gpu_check
