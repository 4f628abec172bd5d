#include "kvcache/transport/receive_table.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/limits.h"

namespace baton::kv {

using limits::kMaxBlocksPerTransfer;
using limits::kMaxSlicesPerTransfer;

// One open transfer. Slices are numbered layer * num_blocks + ordinal.
struct ReceiveTable::Transfer {
  ReceiveSpec spec;
  uint64_t epoch = 0;                // of its connection; 0 = the first frame decides
  std::vector<uint64_t> filled;      // bit per slice
  std::vector<uint32_t> group_left;  // slices missing, by layer group
  uint32_t num_slices = 0;
  uint32_t num_done = 0;
  bool milestone = false;  // a group or everything became complete since the last report
  bool dirty = false;      // listed in dirty_
  bool is_closing = false;
  int64_t reported_us = 0;

  uint32_t SliceIndex(const FrameHeader& header) const {
    return header.layer * static_cast<uint32_t>(spec.blocks.size()) + header.ordinal;
  }
  bool IsFilled(uint32_t slice) const { return (filled[slice / 64] >> (slice % 64) & 1) != 0; }
  bool complete() const { return num_done == num_slices; }
};

ReceiveTable::ReceiveTable(const KvMemory& memory, TransportCounters* counters)
    : memory_(memory), counters_(counters) {}
ReceiveTable::~ReceiveTable() = default;

Status ReceiveTable::Validate(const ReceiveSpec& spec, const KvMemory& memory) {
  const uint32_t max_blocks =
      std::min(kMaxBlocksPerTransfer, kMaxSlicesPerTransfer / memory.layout.num_layers);
  if (spec.blocks.empty() || spec.blocks.size() > max_blocks) {
    return InvalidArgument("a transfer of {} blocks is outside [1, {}]", spec.blocks.size(),
                           max_blocks);
  }
  if (spec.layers_per_group == 0) return InvalidArgument("layers_per_group is 0");
  for (const ReceiveBlock& block : spec.blocks) {
    if (block.index.value() >= memory.num_blocks) {
      return InvalidArgument("block {} is outside an arena of {}", block.index, memory.num_blocks);
    }
  }
  return OkStatus();
}

void ReceiveTable::Open(ReceiveSpec spec, uint64_t epoch) {
  const uint32_t num_layers = memory_.layout.num_layers;
  const auto num_blocks = static_cast<uint32_t>(spec.blocks.size());
  const TransferId id = spec.transfer;
  auto transfer = std::make_unique<Transfer>();
  transfer->epoch = epoch;
  transfer->num_slices = num_blocks * num_layers;
  transfer->filled.resize((transfer->num_slices + 63) / 64);
  for (uint32_t layer = 0; layer < num_layers; layer += spec.layers_per_group) {
    transfer->group_left.push_back(num_blocks *
                                   std::min(spec.layers_per_group, num_layers - layer));
  }
  transfer->spec = std::move(spec);
  const bool is_new = transfers_.try_emplace(id, std::move(transfer)).second;
  BATON_CHECK(is_new, "transfer {} is already open", id);
}

void ReceiveTable::BeginClose(TransferId transfer) {
  if (Transfer* const open = Find(transfer); open != nullptr) open->is_closing = true;
}

bool ReceiveTable::Close(TransferId transfer) {
  const bool was_open = transfers_.erase(transfer) > 0;
  sink_->OnReceiveClosed(transfer);
  return was_open;
}

ReceiveTable::Transfer* ReceiveTable::Find(TransferId transfer) {
  const auto entry = transfers_.find(transfer);
  return entry == transfers_.end() || entry->second->is_closing ? nullptr : entry->second.get();
}

void ReceiveTable::Refuse(const FrameHeader& header, BadSliceReason reason, bool report) {
  counters_->AddBadSlice(reason);
  if (report) sink_->OnBadSlice({header.transfer, header.ordinal, header.layer, reason});
}

std::byte* ReceiveTable::Admit(Incarnation peer, uint64_t epoch, const FrameHeader& header) {
  const auto refuse = [&](BadSliceReason reason, bool report) -> std::byte* {
    Refuse(header, reason, report);
    return nullptr;
  };
  Transfer* const transfer = Find(header.transfer);
  if (transfer == nullptr) return refuse(BadSliceReason::kUnknownTransfer, false);
  if (transfer->spec.peer != peer) return refuse(BadSliceReason::kWrongPeer, false);
  if (transfer->spec.attempt != header.attempt) return refuse(BadSliceReason::kWrongAttempt, false);
  const bool is_bound = transfer->epoch != 0;
  if (header.epoch != epoch || (is_bound && transfer->epoch != epoch)) {
    return refuse(BadSliceReason::kWrongEpoch, false);
  }
  const KvLayout& layout = memory_.layout;
  const bool size_fits =
      header.kind == FrameKind::kSliceReference || header.payload_bytes == layout.SliceBytes();
  if (!size_fits || header.ordinal >= transfer->spec.blocks.size() ||
      header.layer >= layout.num_layers) {
    return refuse(BadSliceReason::kOutOfRange, false);
  }
  const ReceiveBlock& block = transfer->spec.blocks[header.ordinal];
  if (block.generation != header.generation) {
    return refuse(BadSliceReason::kStaleGeneration, true);
  }
  if (transfer->IsFilled(transfer->SliceIndex(header))) {
    return refuse(BadSliceReason::kDuplicate, false);
  }
  transfer->epoch = epoch;
  return memory_.Slice(block.index, header.layer);
}

bool ReceiveTable::Finish(const FrameHeader& header, uint64_t checksum, int64_t now_us) {
  Transfer* const transfer = Find(header.transfer);
  if (transfer == nullptr) {
    Refuse(header, BadSliceReason::kUnknownTransfer, false);
    return false;
  }
  if (checksum != header.checksum) {
    Refuse(header, BadSliceReason::kBadChecksum, true);
    return false;
  }
  const uint32_t slice = transfer->SliceIndex(header);
  BATON_CHECK(!transfer->IsFilled(slice), "slice {} of transfer {} filled twice", slice,
              header.transfer);
  transfer->filled[slice / 64] |= uint64_t{1} << (slice % 64);
  ++transfer->num_done;
  counters_->slices_received.Add();
  counters_->bytes_received.Add(memory_.layout.SliceBytes());
  if (--transfer->group_left[header.layer / transfer->spec.layers_per_group] == 0) {
    transfer->milestone = true;
  }
  if (!transfer->dirty) {
    // The interval begins with the first slice: a short transfer then reports only its milestones.
    if (transfer->reported_us == 0) transfer->reported_us = now_us;
    transfer->dirty = true;
    dirty_.push_back(header.transfer);
  }
  return true;
}

void ReceiveTable::ReportProgress(Transfer* transfer, int64_t now_us) {
  transfer->milestone = false;
  transfer->dirty = false;
  transfer->reported_us = now_us;
  sink_->OnReceiveProgress(transfer->spec.transfer, transfer->num_done, transfer->complete());
}

int64_t ReceiveTable::FlushProgress(int64_t now_us) {
  int64_t next_us = 0;
  std::erase_if(dirty_, [&](TransferId id) {
    Transfer* const transfer = Find(id);
    if (transfer == nullptr) return true;
    const int64_t due_us = transfer->reported_us + kProgressIntervalUs;
    if (!transfer->milestone && now_us < due_us) {
      next_us = next_us == 0 ? due_us : std::min(next_us, due_us);
      return false;
    }
    ReportProgress(transfer, now_us);
    return true;
  });
  return next_us;
}

}  // namespace baton::kv
