#include "src/model/device_batch.h"

#include <algorithm>
#include <cstring>

#include "src/base/check.h"

namespace baton::model {

namespace cuda = kernels::cuda;
using device::Accelerator;
using device::DeviceBuffer;
using device::HostBuffer;
using kernels::AttentionSpan;
using kernels::RowSampling;

namespace {

constexpr size_t kWordBytes = sizeof(uint32_t);

uint32_t BlocksUsed(const AttentionSpan& span, uint32_t block_size) {
  return (span.first_pos + span.num_rows - 1) / block_size + 1;
}

// The arrays one after the other, each aligned as kernels and vectors like it.
class Places16 {
 public:
  size_t Take(size_t size_bytes) {
    constexpr size_t kAlignment = 16;
    const size_t begin = end_;
    end_ = (end_ + size_bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }
  size_t end() const { return end_; }

 private:
  size_t end_ = 0;
};

}  // namespace

DeviceBatch::DeviceBatch(const ModelConfig& config, const DeviceBatchSize& size)
    : size_(size),
      limits_{.num_decode_ctas = kDecodeCtas,
              .max_partials = kMaxPartials,
              .has_prefill = size.has_prefill,
              .num_spread_ctas = size.has_spread ? kSpreadCtas : 0},
      shape_{.num_heads = config.num_heads, .num_kv_heads = config.num_kv_heads, .window = 0},
      local_shape_{.num_heads = config.num_heads,
                   .num_kv_heads = config.num_kv_heads,
                   .window = config.window},
      has_local_layers_(config.traits->windowed) {}

absl::StatusOr<std::unique_ptr<DeviceBatch>> DeviceBatch::Create(const ModelConfig& config,
                                                                 const DeviceBatchSize& size,
                                                                 Accelerator* device) {
  std::unique_ptr<DeviceBatch> out(new DeviceBatch(config, size));
  const size_t max_blocks = (size.max_context - 1) / size.block_size + 1;
  const auto bounds =
      cuda::BoundAttentionPlan(out->shape_, out->limits_, size.max_rows, size.max_rows);
  const Sizes largest = {.rows = size.max_rows,
                         .logit_rows = size.max_logit_rows,
                         .sampled_rows = size.max_logit_rows,
                         .spans = size.state_blocks > 0 ? size.max_rows : 0,
                         .copies = size.state_blocks > 0 ? size.max_rows : 0,
                         .cleared = size_t{2} * size.max_rows * size.state_blocks,
                         .prefill = bounds.num_prefill_items,
                         .decode = bounds.num_decode_items,
                         .local = out->has_local_layers_ ? bounds.num_decode_items : 0,
                         .list_words = size.max_rows * max_blocks};
  const size_t size_bytes = out->PlacesOf(largest).end;
  out->device_ = device;
  BATON_ASSIGN_OR_RETURN(out->memory_, DeviceBuffer::Create(device, size_bytes, "batch"));
  if (size.state_blocks > 0) {
    BATON_ASSIGN_OR_RETURN(
        out->broken_, DeviceBuffer::Create(device, size.max_rows * kWordBytes, "broken copies"));
  }
  for (HostBuffer& staged : out->staged_) {
    BATON_ASSIGN_OR_RETURN(staged, HostBuffer::Create(device, size_bytes, "batch"));
  }
  out->rows_.reserve(size.max_rows);
  for (cuda::AttentionPlan* plan : {&out->plan_, &out->local_plan_}) {
    plan->prefill.reserve(bounds.num_prefill_items);
    plan->decode.reserve(bounds.num_decode_items);
  }
  return out;
}

DeviceBatch::Places DeviceBatch::PlacesOf(const Sizes& sizes) const {
  Places16 places;
  Places out;
  places.Take(kNumCounts * kWordBytes);
  out.token_ids = places.Take(sizes.rows * kWordBytes);
  out.positions = places.Take(sizes.rows * kWordBytes);
  out.sequences = places.Take(sizes.rows * kWordBytes);
  out.logit_rows = places.Take(sizes.logit_rows * kWordBytes);
  out.sampling = places.Take(sizes.sampled_rows * sizeof(RowSampling));
  out.prefill = places.Take(sizes.prefill * sizeof(Item));
  out.decode = places.Take(sizes.decode * sizeof(Item));
  out.local = places.Take(sizes.local * sizeof(Item));
  const size_t list_bytes = size_.state_blocks * kWordBytes;
  out.spans = places.Take(sizes.spans * sizeof(cuda::DeltaSpan));
  out.row_spans = places.Take(sizes.spans > 0 ? sizes.rows * kWordBytes : 0);
  out.states = places.Take(sizes.spans * list_bytes);
  out.copies = places.Take(sizes.copies * list_bytes);
  out.broken = places.Take(sizes.spans * kWordBytes);
  out.cleared = places.Take(sizes.cleared * kWordBytes);
  out.block_lists = places.Take(sizes.list_words * kWordBytes);
  out.end = places.end();
  return out;
}

// Items have the room of the most that decode rows can need; the lists come last.
void DeviceBatch::PlacePadded(uint32_t rows, uint32_t num_ctas) {
  BATON_CHECK(
      rows > 0 && rows <= kMaxPaddedRows && rows <= size_.max_rows && rows <= size_.max_logit_rows,
      "a batch cannot be padded to {} rows", rows);
  size_t items = cuda::BoundAttentionPlan(shape_, limits_, rows, rows).num_decode_items;
  if (num_ctas < kDecodeCtas) items = std::min<size_t>(items, num_ctas);  // Set chooses the grid
  sizes_ = {.rows = rows,
            .logit_rows = rows,
            .sampled_rows = rows,
            .spans = size_.state_blocks > 0 ? rows : 0,
            .decode = items,
            .local = has_local_layers_ ? items : 0,
            .decode_ctas = num_ctas,
            .local_ctas = num_ctas,
            .is_spread = size_.has_spread && num_ctas == kSpreadCtas};
  places_ = PlacesOf(sizes_);
}

Status DeviceBatch::Set(const ModelBatch& batch, uint32_t padded_rows) {
  BATON_RETURN_IF_ERROR(Plan(batch));
  size_t list_words = 0;
  for (const AttentionSpan& span : batch.spans) list_words += BlocksUsed(span, size_.block_size);
  const auto num_decode = static_cast<uint32_t>(plan_.decode.size());
  const auto num_local = static_cast<uint32_t>(local_plan_.decode.size());
  if (padded_rows > 0) {
    BATON_CHECK(batch.logit_rows.size() == batch.num_rows() && plan_.prefill.empty() &&
                    padded_rows >= batch.num_rows(),
                "{} rows that want {} logits cannot be padded to {}", batch.num_rows(),
                batch.logit_rows.size(), padded_rows);
    const bool is_small =
        size_.has_spread ? plan_.is_spread : std::max(num_decode, num_local) <= kPaddedGrids[0];
    PlacePadded(padded_rows, kPaddedGrids[is_small ? 0 : 1]);
    places_.end = places_.block_lists + list_words * kWordBytes;
  } else {
    const auto num_prefill = static_cast<uint32_t>(plan_.prefill.size());
    sizes_ = {.rows = batch.num_rows(),
              .logit_rows = static_cast<uint32_t>(batch.logit_rows.size()),
              .sampled_rows = static_cast<uint32_t>(batch.sampling.size()),
              .spans = size_.state_blocks > 0 ? static_cast<uint32_t>(batch.spans.size()) : 0,
              .copies = static_cast<uint32_t>(batch.state_copies.size()),
              .cleared = NumCleared(batch),
              .prefill = num_prefill,
              .decode = num_decode,
              .local = num_local,
              .list_words = list_words,
              .prefill_ctas = std::min(num_prefill, kPrefillCtas),
              .decode_ctas = std::min(num_decode, kDecodeCtas),
              .local_ctas = std::min(num_local, kDecodeCtas),
              .is_spread = plan_.is_spread};
    places_ = PlacesOf(sizes_);
  }
  which_staged_ = 1 - which_staged_;
  Write(batch);
  if (!batch.state_copies.empty()) {
    BATON_RETURN_IF_ERROR(
        device_->CopyIn(broken_.data(), staged() + places_.broken, sizes_.spans * kWordBytes));
  }
  return device_->CopyIn(memory_.data(), staged(), places_.end);
}

Status DeviceBatch::Plan(const ModelBatch& batch) {
  rows_.clear();
  uint32_t list = 0;
  for (const AttentionSpan& span : batch.spans) {
    rows_.push_back({.sequence = list,
                     .first_row = span.first_row,
                     .num_rows = span.num_rows,
                     .first_position = span.first_pos});
    list += BlocksUsed(span, size_.block_size);
  }
  BATON_RETURN_IF_ERROR(cuda::PlanAttention(shape_, limits_, rows_, plan_));
  if (!has_local_layers_) return OkStatus();
  // Layers follow one another, so both plans may use the same partials. They are for one kernel,
  // as what is recorded is: a window leaves no more splits than there were.
  cuda::AttentionPlanLimits limits = limits_;
  if (!plan_.is_spread) limits.num_spread_ctas = 0;
  return cuda::PlanAttention(local_shape_, limits, rows_, local_plan_);
}

DeviceStates DeviceBatch::states() const {
  if (size_.state_blocks == 0) return {};
  return {.spans = At<cuda::DeltaSpan>(places_.spans),
          .row_spans = At<uint32_t>(places_.row_spans),
          .lists = At<uint32_t>(places_.states),
          .copies = At<uint32_t>(places_.copies),
          .broken = broken_.as<uint32_t>(),
          .cleared = At<uint32_t>(places_.cleared),
          .num_spans = sizes_.spans,
          .num_cleared = static_cast<uint32_t>(sizes_.cleared)};
}

size_t DeviceBatch::NumCleared(const ModelBatch& batch) const {
  const auto begins = [](const AttentionSpan& span) { return span.first_pos == 0; };
  const auto num_begun = std::count_if(batch.spans.begin(), batch.spans.end(), begins);
  return (static_cast<size_t>(num_begun) + batch.state_copies.size()) * size_.state_blocks;
}

void DeviceBatch::WriteStates(const ModelBatch& batch) const {
  if (size_.state_blocks == 0) return;
  const auto spans = HostAt<cuda::DeltaSpan>(places_.spans, sizes_.spans);
  const auto row_spans = HostAt<uint32_t>(places_.row_spans, sizes_.rows);
  const auto lists = HostAt<uint32_t>(places_.states, size_t{sizes_.spans} * size_.state_blocks);
  const auto broken = HostAt<uint32_t>(places_.broken, sizes_.spans);
  auto* cleared = HostAt<uint32_t>(places_.cleared, sizes_.cleared).data();
  auto* copies = HostAt<uint32_t>(places_.copies, sizes_.copies).data();
  std::fill(spans.begin(), spans.end(), cuda::DeltaSpan{});
  std::fill(row_spans.begin(), row_spans.end(), cuda::kPaddingRow);
  std::fill(lists.begin(), lists.end(), 0u);
  std::fill(broken.begin(), broken.end(), 0u);
  for (size_t i = 0; i < batch.spans.size(); ++i) {
    const AttentionSpan& span = batch.spans[i];
    const std::span<const uint32_t> state = span.kv.state;
    spans[i] = {.first_row = span.first_row,
                .num_rows = span.num_rows,
                .position = span.first_pos,
                .copy_rows = 0,
                .copy = 0};
    std::fill_n(row_spans.begin() + span.first_row, span.num_rows, static_cast<uint32_t>(i));
    std::copy(state.begin(), state.end(), lists.begin() + i * size_.state_blocks);
    if (span.first_pos == 0) cleared = std::copy(state.begin(), state.end(), cleared);
  }
  for (size_t i = 0; i < batch.state_copies.size(); ++i) {
    const StateCopy& copy = batch.state_copies[i];
    spans[copy.span].copy_rows = copy.num_rows;
    spans[copy.span].copy = static_cast<uint32_t>(i);
    copies = std::copy(copy.blocks.begin(), copy.blocks.end(), copies);
    cleared = std::copy(copy.blocks.begin(), copy.blocks.end(), cleared);
  }
}

void DeviceBatch::Write(const ModelBatch& batch) const {
  WriteRows(batch);
  WriteStates(batch);
  const auto put = [this](size_t place, const auto& from) {
    if (!from.empty()) {
      std::memcpy(staged() + place, from.data(), from.size() * sizeof(from[0]));
    }
  };
  put(places_.prefill, plan_.prefill);
  put(places_.decode, plan_.decode);
  put(places_.local, local_plan_.decode);
  const std::span<uint32_t> counts = HostAt<uint32_t>(0, kNumCounts);
  counts[0] = static_cast<uint32_t>(plan_.prefill.size());
  counts[1] = static_cast<uint32_t>(plan_.decode.size());
  counts[2] = static_cast<uint32_t>(local_plan_.decode.size());
  auto* list = reinterpret_cast<uint32_t*>(staged() + places_.block_lists);
  for (const AttentionSpan& span : batch.spans) {
    const std::span<const uint32_t> used = span.kv.blocks.first(BlocksUsed(span, size_.block_size));
    list = std::copy(used.begin(), used.end(), list);
  }
}

void DeviceBatch::WriteRows(const ModelBatch& batch) const {
  const uint32_t num_rows = batch.num_rows();
  const auto ids = HostAt<uint32_t>(places_.token_ids, sizes_.rows);
  const auto positions = HostAt<uint32_t>(places_.positions, sizes_.rows);
  const auto sequences = HostAt<uint32_t>(places_.sequences, sizes_.rows);
  std::copy(batch.token_ids.begin(), batch.token_ids.end(), ids.begin());
  for (const cuda::AttentionRows& span : rows_) {
    for (uint32_t r = 0; r < span.num_rows; ++r) {
      positions[span.first_row + r] = span.first_position + r;
      sequences[span.first_row + r] = span.sequence;
    }
  }
  std::fill(ids.begin() + num_rows, ids.end(), 0u);
  std::fill(positions.begin() + num_rows, positions.end(), 0u);
  std::fill(sequences.begin() + num_rows, sequences.end(), cuda::kPaddingRow);
  const auto logit_rows = HostAt<uint32_t>(places_.logit_rows, sizes_.logit_rows);
  std::fill(std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), logit_rows.begin()),
            logit_rows.end(), 0u);
  const auto sampling = HostAt<RowSampling>(places_.sampling, sizes_.sampled_rows);
  std::fill(std::copy(batch.sampling.begin(), batch.sampling.end(), sampling.begin()),
            sampling.end(), RowSampling{});
}

}  // namespace baton::model
