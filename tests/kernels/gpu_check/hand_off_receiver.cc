#include "tests/kernels/gpu_check/hand_off_receiver.h"

#include <algorithm>
#include <string>
#include <utility>

#include "src/base/clock.h"
#include "src/base/random.h"

namespace baton::kernels::gpu_check {

using namespace kv;  // NOLINT(google-build-using-namespace)

Status HandOffReceiver::WaitWith(const char* what, Incarnation peer,
                                 const std::function<bool(const HandOffEvents&)>& condition) {
  BATON_RETURN_IF_ERROR(side_->sink()->WaitFor(what, patience_us_, [&](const auto& events) {
    return condition(events) || events.down_us.contains(peer) || events.ended.contains(peer);
  }));
  const HandOffEvents now = side_->sink()->Snapshot();
  if (condition(now)) return OkStatus();
  const auto down = now.down_reasons.find(peer);
  return Unavailable("{}: the peer is gone{}", what,
                     down == now.down_reasons.end() ? "" : ", " + down->second);
}

Status HandOffReceiver::WaitAnswer(const GrantedTransfer& transfer, const char* verb) {
  const std::string answer = fmt::format("{} {}", verb, transfer.id);
  return WaitWith(verb, transfer.peer, [&](const HandOffEvents& events) {
    return std::find(events.words.begin(), events.words.end(), answer) != events.words.end();
  });
}

Status HandOffReceiver::Grant(Incarnation peer, uint32_t num_blocks, GrantedTransfer* transfer) {
  transfer->id = TransferId(++last_transfer_);
  transfer->peer = peer;
  transfer->first = static_cast<uint32_t>(5 * last_transfer_ % pool_.num_blocks());
  if (!pool_.Allocate(num_blocks, BlockState::kReserved, RandomRequestUid(), &transfer->blocks)) {
    return ResourceExhausted("{} of {} blocks are free", pool_.num_free(), pool_.num_blocks());
  }
  ReceiveSpec spec = {.transfer = transfer->id, .attempt = 1, .peer = peer};
  std::vector<uint32_t> generations;
  for (const BlockHandle& block : transfer->blocks) {
    pool_.AddTransferRef(block);
    spec.blocks.push_back({block.index, block.generation});
    generations.push_back(block.generation);
    BATON_RETURN_IF_ERROR(side_->WriteBlock(block.index, poison_));
  }
  BATON_RETURN_IF_ERROR(side_->Wait());
  BATON_RETURN_IF_ERROR(side_->transport()->OpenReceive(std::move(spec)));
  BATON_RETURN_IF_ERROR(
      Say(*transfer, "grant", {{"first", transfer->first}, {"generations", generations}}));
  return WaitAnswer(*transfer, "ready");
}

StatusOr<int64_t> HandOffReceiver::Go(const GrantedTransfer& transfer) {
  const TransportStats before = side_->transport()->Stats();
  const int64_t begin_us = SystemClock().NowUs();
  BATON_RETURN_IF_ERROR(Say(transfer, "go"));
  BATON_RETURN_IF_ERROR(
      WaitWith("a whole transfer", transfer.peer, [&](const HandOffEvents& events) {
        return events.complete_us.contains(transfer.id) || events.num_bad.contains(transfer.id);
      }));
  HandOffEvents now = side_->sink()->Snapshot();
  if (const uint64_t num_bad = now.num_bad[transfer.id]; num_bad > 0) {
    return DataLoss("{} slices had other checksums than the sender's", num_bad);
  }
  const uint64_t num_verified =
      side_->transport()->Stats().slices_received - before.slices_received;
  if (num_verified != NumSlices(transfer)) {
    return Internal("{} of {} slices were verified", num_verified, NumSlices(transfer));
  }
  return now.complete_us[transfer.id] - begin_us;
}

Status HandOffReceiver::Flood(const GrantedTransfer& transfer) {
  BATON_RETURN_IF_ERROR(Say(transfer, "flood"));
  const size_t num_good = transfer.blocks.size() / 2 * side_->memory().layout.num_layers;
  return WaitWith("slices on their way", transfer.peer, [&](const HandOffEvents& events) {
    const auto done = events.slices_done.find(transfer.id);
    return done != events.slices_done.end() && done->second >= num_good &&
           events.num_bad.contains(transfer.id);
  });
}

Status HandOffReceiver::Compare(const GrantedTransfer& transfer, size_t num_blocks) {
  const KvLayout& layout = side_->memory().layout;
  std::vector<std::byte> bytes(layout.BlockBytes());
  for (size_t i = 0; i < num_blocks; ++i) {
    const BlockIndex source((transfer.first + i) % pool_.num_blocks());
    BATON_RETURN_IF_ERROR(side_->ReadBlock(transfer.blocks[i].index, bytes));
    const std::vector<std::byte> expected = PatternOf(layout, source);
    const auto [at, right] = std::mismatch(bytes.begin(), bytes.end(), expected.begin());
    if (at == bytes.end()) continue;
    return DataLoss("block {} of {}: byte {} is {:02x}, the sender's is {:02x}", i, num_blocks,
                    at - bytes.begin(), std::to_integer<int>(*at), std::to_integer<int>(*right));
  }
  return OkStatus();
}

Status HandOffReceiver::End(const GrantedTransfer& transfer, bool peer_lives) {
  side_->transport()->CloseReceive(transfer.id);
  BATON_RETURN_IF_ERROR(side_->sink()->WaitFor(
      "the end of a receive", patience_us_,
      [&](const auto& events) { return events.receives_closed.contains(transfer.id); }));
  for (const BlockHandle& block : transfer.blocks) {
    pool_.DropTransferRef(block);
    pool_.DropRequestRef(block);
  }
  if (!peer_lives) return OkStatus();
  BATON_RETURN_IF_ERROR(Say(transfer, "close"));
  return WaitAnswer(transfer, "closed");
}

Status HandOffReceiver::AskToTake(Incarnation peer, uint32_t num_blocks, HandOffGrant* grant) {
  const GrantedTransfer transfer = {.id = TransferId(++last_transfer_), .peer = peer};
  *grant = {transfer.id, 0, std::vector<uint32_t>(num_blocks, 1)};
  BATON_RETURN_IF_ERROR(Say(transfer, "take", {{"blocks", num_blocks}}));
  return WaitAnswer(transfer, "ready");
}

StatusOr<int64_t> HandOffReceiver::Move(Incarnation peer, uint32_t num_blocks) {
  GrantedTransfer transfer;
  BATON_RETURN_IF_ERROR(Grant(peer, num_blocks, &transfer));
  BATON_ASSIGN_OR_RETURN(const int64_t us, Go(transfer));
  BATON_RETURN_IF_ERROR(Compare(transfer, num_blocks));
  BATON_RETURN_IF_ERROR(End(transfer, /*peer_lives=*/true));
  return us;
}

}  // namespace baton::kernels::gpu_check
