// ModelFixture: a loaded model with its own thread pool and KV arena, driven one span at a time.
// One thread. KV blocks of sequence s are handed out in a scattered order, so that no test depends
// on neighbouring ids.
#ifndef BATON_TESTS_MODEL_MODEL_FIXTURE_H_
#define BATON_TESTS_MODEL_MODEL_FIXTURE_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/device/aligned_buffer.h"
#include "src/model/device_model.h"
#include "src/model/hf_folder.h"
#include "src/model/model.h"

namespace baton::model {

// Options of a fixture.
struct FixtureOptions {
  std::string path;
  kernels::Isa isa = kernels::Isa::kAuto;
  uint32_t num_threads = 1;
  kv::KvDtype kv_dtype = kv::KvDtype::kBf16;
  uint32_t block_size = 16;
  uint32_t max_rows = 512;
  uint32_t max_context = 512;
  uint32_t num_blocks = 160;
  // Where it computes instead. Outlives the fixture.
  device::Accelerator* device = nullptr;
  const kernels::cuda::KernelTable* kernels = nullptr;
  bool keeps_packed = true;
  FastMode fast = {};
  uint32_t num_ranks = 1;  // all on that device, or
  std::vector<device::Accelerator*> peers = {};
  const LoadedModel* weights_of = nullptr;  // instead of the path; of the same device
};

// Tokens of one sequence to compute in a step.
struct Chunk {
  uint32_t sequence = 0;
  uint32_t first_pos = 0;
  std::span<const TokenId> tokens;
};

// The results of a batch whose tokens were to be chosen.
struct ChosenRows {
  std::vector<TokenId> tokens;
  std::vector<float> logits;  // kUntouched where the model wrote none
};
inline constexpr float kUntouched = 12345.0f;

// See the file comment.
class ModelFixture {
 public:
  explicit ModelFixture(const FixtureOptions& options) : pool_(options.num_threads) {
    status_ = options.weights_of == nullptr ? Load(options) : Share(options);
    if (!status_.ok()) return;
    view_.layout = &model_->layout();
    view_.num_blocks = options.num_blocks + kMaxStates * view_.layout->state_blocks;
    const size_t size_bytes = view_.layout->BlockStride() * view_.num_blocks;
    if (options.num_ranks > 1) {
      TakeRanks(options);
      return;
    }
    if (options.device != nullptr) {
      device_arena_ = *device::DeviceBuffer::Create(options.device, size_bytes, "KV");
      view_.base = device_arena_.data();
    } else {
      arena_ = device::AlignedBuffer::AllocateOrDie(size_bytes);
      view_.base = arena_.data();
    }
    // Stale bytes of earlier owners must not matter.
    std::memset(view_.base, 0x5C, size_bytes);
  }

  const absl::Status& status() const { return status_; }
  LoadedModel& model() { return *model_; }
  const kv::KvView& view() const { return view_; }
  size_t vocab() const { return model_->config().vocab_size; }

  // The blocks of a sequence, grown to hold `num_tokens`.
  std::span<const uint32_t> Blocks(uint32_t sequence, uint32_t num_tokens) {
    if (tables_.size() <= sequence) tables_.resize(sequence + 1);
    std::vector<uint32_t>& table = tables_[sequence];
    while (table.size() < view_.layout->BlocksFor(num_tokens)) {
      // 37 is prime to every num_blocks used: all blocks in a scattered order.
      table.push_back(next_block_++ * 37 % view_.num_blocks);
    }
    return table;
  }

  // The blocks of a sequence's fixed state.
  std::span<const uint32_t> StateBlocks(uint32_t sequence) {
    states_.resize(std::max<size_t>(states_.size(), sequence + 1));
    std::vector<uint32_t>& state = states_[sequence];
    while (state.size() < view_.layout->state_blocks) {
      state.push_back(next_block_++ * 37 % view_.num_blocks);
    }
    return state;
  }

  // Runs the chunks as one batch; logits of the last token of each (or of every token).
  absl::StatusOr<std::vector<float>> Run(const std::vector<Chunk>& chunks, bool all_rows = false,
                                         LayerHook* hook = nullptr) {
    BATON_ASSIGN_OR_RETURN(ChosenRows rows, Forward(chunks, all_rows, hook, {}));
    return std::move(rows.logits);
  }

  // Runs the chunks as one batch that asks for a token of each.
  absl::StatusOr<ChosenRows> Choose(const std::vector<Chunk>& chunks,
                                    const std::vector<kernels::RowSampling>& sampling) {
    return Forward(chunks, /*all_rows=*/false, nullptr, sampling);
  }

  // Begins a step of the chunks, which are rows; nothing of what was given is read afterwards.
  absl::Status Begin(const std::vector<Chunk>& chunks,
                     const std::vector<kernels::RowSampling>& sampling) {
    const Lowered lowered = Lower(chunks, /*all_rows=*/false);
    std::vector<TokenId> tokens(sampling.size());
    return model_->Begin({lowered.tokens, lowered.spans, lowered.logit_rows, sampling, tokens},
                         view_);
  }
  absl::StatusOr<std::vector<TokenId>> End(size_t num_rows) {
    std::vector<TokenId> tokens(num_rows);
    BATON_RETURN_IF_ERROR(model_->End(tokens));
    return tokens;
  }

  // Every KV byte of the blocks that hold `num_tokens` tokens of a sequence, in token order, then
  // those of its state.
  std::vector<std::byte> KvBytes(uint32_t sequence, uint32_t num_tokens) {
    std::vector<std::byte> out;
    const auto num_ranks = static_cast<uint32_t>(std::max<size_t>(view_.ranks.size(), 1));
    const kv::KvLayout layout = kv::RankLayout(*view_.layout, num_ranks);
    const auto tokens = Blocks(sequence, num_tokens).first(layout.BlocksFor(num_tokens));
    std::vector<uint32_t> blocks(tokens.begin(), tokens.end());
    for (uint32_t block : StateBlocks(sequence)) blocks.push_back(block);
    for (uint32_t block : blocks) {
      for (uint32_t rank = 0; rank < num_ranks; ++rank) {
        const std::byte* begin = view_.BaseOfRank(rank) + size_t{block} * layout.BlockStride();
        out.insert(out.end(), begin, begin + layout.BlockBytes());
      }
    }
    return out;
  }

 private:
  static constexpr uint32_t kMaxStates = 32;  // sequences with a state
  // The arrays of a batch.
  struct Lowered {
    std::vector<TokenId> tokens;
    std::vector<kernels::AttentionSpan> spans;
    std::vector<uint32_t> logit_rows;
  };
  Lowered Lower(const std::vector<Chunk>& chunks, bool all_rows) {
    Lowered out;
    for (const Chunk& chunk : chunks) {
      const uint32_t size = static_cast<uint32_t>(chunk.tokens.size());
      const uint32_t first = static_cast<uint32_t>(out.tokens.size());
      Blocks(chunk.sequence, chunk.first_pos + size);
      StateBlocks(chunk.sequence);
      out.tokens.insert(out.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
      out.spans.push_back({{}, first, size, chunk.first_pos});
      for (uint32_t i = all_rows ? 0 : size - 1; i < size; ++i) out.logit_rows.push_back(first + i);
    }
    for (size_t i = 0; i < chunks.size(); ++i) {
      out.spans[i].kv.blocks = tables_[chunks[i].sequence];
      out.spans[i].kv.state = states_[chunks[i].sequence];
    }
    return out;
  }

  absl::StatusOr<ChosenRows> Forward(const std::vector<Chunk>& chunks, bool all_rows,
                                     LayerHook* hook,
                                     const std::vector<kernels::RowSampling>& sampling) {
    const Lowered lowered = Lower(chunks, all_rows);
    ChosenRows out;
    out.tokens.assign(sampling.size(), 0);
    out.logits.assign(lowered.logit_rows.size() * vocab(), kUntouched);
    const ModelBatch batch{lowered.tokens, lowered.spans, lowered.logit_rows, sampling, out.tokens};
    BATON_RETURN_IF_ERROR(model_->Forward(batch, view_, hook, out.logits));
    return out;
  }

  void TakeRanks(const FixtureOptions& options) {
    const kv::KvLayout layout = kv::RankLayout(*view_.layout, options.num_ranks);
    for (uint32_t rank = 0; rank < options.num_ranks; ++rank) {
      rank_arenas_.push_back(*device::DeviceBuffer::Create(
          options.device, layout.BlockStride() * options.num_blocks, "KV"));
      rank_bases_.push_back(rank_arenas_.back().data());
      std::memset(rank_bases_.back(), 0x5C, rank_arenas_.back().size_bytes());
    }
    view_.ranks = rank_bases_;
  }

  absl::Status Load(const FixtureOptions& options) {
    BATON_ASSIGN_OR_RETURN(const auto file, OpenModelFile(options.path));
    return options.device == nullptr ? LoadOnCpu(*file, options) : LoadOn(*file, options);
  }
  absl::Status Share(const FixtureOptions& options) {
    BATON_ASSIGN_OR_RETURN(model_,
                           options.weights_of->Share({.pool = &pool_, .device = options.device}));
    return OkStatus();
  }
  absl::Status LoadOnCpu(const GgufFile& file, const FixtureOptions& options) {
    auto model = Model::Load(file, {.pool = &pool_,
                                    .isa = options.isa,
                                    .kv_dtype = options.kv_dtype,
                                    .block_size = options.block_size,
                                    .max_rows = options.max_rows,
                                    .max_context = options.max_context});
    if (model.ok()) model_ = *std::move(model);
    return model.status();
  }
  absl::Status LoadOn(const GgufFile& file, const FixtureOptions& options) {
    auto model = DeviceModel::Load(file, {.device = options.device,
                                          .kernels = options.kernels,
                                          .pool = &pool_,
                                          .kv_dtype = options.kv_dtype,
                                          .block_size = options.block_size,
                                          .max_rows = options.max_rows,
                                          .max_logit_rows = options.max_rows,
                                          .max_context = options.max_context,
                                          .keeps_packed = options.keeps_packed,
                                          .fast = options.fast,
                                          .num_ranks = options.num_ranks,
                                          .peers = options.peers});
    if (model.ok()) model_ = *std::move(model);
    return model.status();
  }

  device::ThreadPool pool_;
  absl::Status status_;
  std::unique_ptr<LoadedModel> model_;
  device::AlignedBuffer arena_;
  device::DeviceBuffer device_arena_;
  std::vector<device::DeviceBuffer> rank_arenas_;
  std::vector<std::byte*> rank_bases_;
  kv::KvView view_;
  std::vector<std::vector<uint32_t>> tables_;
  std::vector<std::vector<uint32_t>> states_;
  uint32_t next_block_ = 0;
};

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_MODEL_FIXTURE_H_
