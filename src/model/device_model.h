// DeviceModel: a model that an accelerator computes with the kernels of kernels/cuda. Weights and
// activations are in bf16, KV in bf16 or fp8, sums in fp32. The forward pass is that of Model
// (ARCHITECTURES.md). Whether the device keeps weights packed or in bf16 changes no bit.
//
// With several ranks (tensor parallelism) each rank computes a part of the model, on a device of
// its own or all on one. The ranks exchange their parts (kernels/cuda/exchange_params.h): twice a
// layer sums of hidden_size a row, then the logits. One thread puts the work into all streams. The
// number of ranks decides bits; the number of devices does not.
//
// Threading and invariants 1 to 3 as Model. KV lies in the device's memory, bf16 as
// KvEncoding::kPlain, fp8 as kFragments.
#ifndef BATON_MODEL_DEVICE_MODEL_H_
#define BATON_MODEL_DEVICE_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/kernel_table.h"
#include "src/device/accelerator.h"
#include "src/device/device_graph.h"
#include "src/device/device_stream.h"
#include "src/device/launch_gate.h"
#include "src/device/thread_pool.h"
#include "src/model/fast_products.h"
#include "src/model/forward_model.h"
#include "src/model/gguf.h"
#include "src/model/state_map.h"
#include "src/model/weight_load_report.h"

namespace baton::model {

// Whether products end with the work of the kernel after them: those of at most
// kernels::cuda::kMaxJoinedRows rows do, where their weights are not packed. With at most
// kMaxNormedRows rows they take part in norms too. That needs a device that multiplies by wgmma,
// and a dense model of one rank that does not norm its branches.
enum class StepKernels : uint8_t { kApart, kJoined, kWithNorms };

// Options of a device model; they decide its working memory.
struct DeviceModelOptions {
  device::Accelerator* device = nullptr;                // not owned; outlives the model
  const kernels::cuda::KernelTable* kernels = nullptr;  // of that device
  device::ThreadPool* pool = nullptr;                   // of the host, for loading only
  kv::KvDtype kv_dtype = kv::KvDtype::kBf16;            // or kFp8
  uint32_t block_size = 64;                             // tokens of a KV block: 16, 32 or 64
  uint32_t max_rows = 1024;                             // rows of one Forward
  uint32_t max_logit_rows = 1024;                       // of them whose logits may be wanted
  uint32_t max_context = 0;   // positions of one sequence; 0 = the model's context length
  uint64_t tokenizer_id = 0;  // part of numerics_id
  // Quantised weights stay packed. A step of up to 128 rows reads them as they are; a step of more
  // rows unpacks each matrix of a layer first. With false they are dequantised once, at load.
  bool keeps_packed = true;
  // Matrices in bf16, except those of experts, are multiplied by wgmma, even for few rows. Without
  // a value, the devices are asked at load (CheckWgmma).
  std::optional<bool> allows_wgmma = {};
  // Attention of prompts is computed by wgmma. Without a value, the devices are asked at load
  // (CheckWgmmaAttention, and CheckWgmma too).
  std::optional<bool> attends_by_wgmma = {};
  // Fast mode, used where its library is right on this device. Only dense models of one rank use
  // it. Other models compute everything with our own kernels and say so in one line of the log.
  FastMode fast = {};
  uint32_t num_ranks = 1;  // 1, 2, 4 or 8
  // The devices of ranks 1, 2, ...: not owned, of one kind with `device`, and each reaches the
  // memory of all others (Accelerator::ReachMemoryOf). Empty: all ranks are on `device`.
  std::vector<device::Accelerator*> peers = {};
  // With several ranks, the thread holds a Launch of this gate while it puts an exchange, or a
  // recorded step, into all devices' streams. Not owned; may be null where nothing else uses the
  // devices.
  device::LaunchGate* gate = nullptr;
};

struct DeviceWeights;             // device_weights.h
class DeviceRank;                 // device_rank.h
enum class PartialSum : uint8_t;  // device_rank.h

// The weights of each rank.
using RankWeights = std::vector<std::shared_ptr<const DeviceWeights>>;

// See the file comment.
class DeviceModel final : public LoadedModel {
 public:
  // Errors as Model::Load; Unimplemented naming the shape for which there is no kernel;
  // InvalidArgument when the model cannot be divided among so many ranks.
  static absl::StatusOr<std::unique_ptr<DeviceModel>> Load(const GgufFile& file,
                                                           const DeviceModelOptions& options);
  // As Load, for measurements: the weights of each rank lie on the devices already, and no file
  // describes the config. `config` obeys the invariants of ModelConfig and has no rope factors.
  static absl::StatusOr<std::unique_ptr<DeviceModel>> FromWeights(
      const ModelConfig& config, RankWeights weights, const std::string& weights_id,
      const DeviceModelOptions& options);
  ~DeviceModel() override;
  DeviceModel(const DeviceModel&) = delete;
  DeviceModel& operator=(const DeviceModel&) = delete;

  // Unimplemented where ranks have devices of their own.
  StatusOr<std::unique_ptr<LoadedModel>> Share(const ModelThreads& threads) const override;
  // Records one step of decode rows for each of some 60 shapes. When the device cannot record, one
  // line of the log says why.
  Status Prepare(const kv::KvView& kv) override;
  Status Forward(const ModelBatch& batch, const kv::KvView& kv, LayerHook* hook,
                 std::span<float> logits) override;
  std::optional<uint32_t> BrokenStateLayer(std::span<const uint32_t> state,
                                           const kv::KvView& kv) const override;

  bool samples() const override { return true; }
  // True where one stream orders all ranks' work.
  bool overlaps_steps() const override { return devices_.size() == 1; }
  Status Begin(const ModelBatch& batch, const kv::KvView& kv) override;
  Status End(std::span<TokenId> tokens) override;
  size_t num_recorded_steps() const { return graphs_.size(); }
  const ModelConfig& config() const override { return config_; }
  const kv::KvLayout& layout() const override { return layout_; }
  uint32_t max_rows() const override { return options_.max_rows; }
  uint32_t max_context() const override { return options_.max_context; }
  const std::string& weights_id() const override { return weights_id_; }
  const std::string& numerics_id() const override { return numerics_id_; }
  const std::string& numerics_text() const override { return numerics_text_; }
  bool is_deterministic() const override;
  std::string_view arithmetic_name() const override;
  // Number of kernels of a step that has at most 64 rows, wants logits, and has either decode rows
  // or chunks of prompts. A step with both has one more a layer of attention. A step that chooses
  // tokens on the device has one more, as one in which a fixed state begins or is copied. With more
  // rows each packed matrix takes one more kernel: for the next 64 rows, or to unpack the matrix.
  // The number is for one rank alone. With several ranks, each has as many kernels, two exchanges a
  // layer and one exchange of logits.
  static uint32_t KernelsAStep(const ModelConfig& config, StepKernels kernels);
  size_t weight_bytes() const override;
  size_t packed_bytes() const;  // of them, in matrices that are packed
  // The report about loading the weights; empty after FromWeights.
  const WeightLoadReport& load_report() const { return load_report_; }
  // Whether the device passed CheckWgmma.
  bool allows_wgmma() const { return *options_.allows_wgmma; }
  // Whether the device passed CheckWgmmaAttention, and CheckWgmma too.
  bool attends_by_wgmma() const { return *options_.attends_by_wgmma; }
  // Whether a file has matrices that a device can keep packed.
  static bool HasPackable(const GgufFile& file);
  size_t bytes_read_per_step() const override;

 private:
  explicit DeviceModel(const DeviceModelOptions& options);
  // Called before the weights are loaded: checks whether there are kernels for the model, and takes
  // the config, the context and the layout.
  Status TakeConfig(const ModelConfig& config);
  // Asks the devices about wgmma where options_ leave it open.
  Status AskForWgmma();
  // The fast mode of options_, or an empty one where this model has none.
  FastMode FastModeOfModel() const;
  // After the weights and the rope factors: the working memory and the ids.
  Status Complete(const std::string& weights_id);

  // A recorded step on each device: `rows` decode rows whose attention `num_ctas` ctas walk.
  struct StepGraph {
    uint32_t rows;
    uint32_t num_ctas;
    std::vector<device::DeviceGraph> graphs;
  };
  // InvalidArgument when the view is of another number of ranks.
  Status CheckRanksOf(const kv::KvView& kv) const;
  // Goes on without recorded steps; Internal when a device has failed.
  Status StopRecording(const Status& why);
  // The number of rows to which a recorded step needs the batch padded; 0 = no recorded step
  // computes the batch.
  uint32_t PaddedRows(const ModelBatch& batch, const kv::KvView& kv, const LayerHook* hook) const;
  // Launches the recorded step for the batch as it is set.
  Status LaunchRecorded(uint32_t rows) const;
  // Puts a step, which was checked, into the streams; after an error none of it is under way.
  Status PutStep(const ModelBatch& batch, const kv::KvView& kv, LayerHook* hook);
  // Puts the kernels of a step into the streams, for the batch as it is set or placed.
  Status LaunchStep(const kv::KvView& kv, LayerHook* hook, bool wants_tokens);
  // Notes that K and V of the next layer are in all streams.
  Status NoteStored();
  // Tells the hook, in order, of layers that are stored on all devices. These are the layers that
  // are stored by now or, with `waits`, all that were noted.
  Status TellStored(LayerHook* hook, bool waits);

  device::Accelerator* DeviceOfRank(uint32_t rank) const;
  size_t DeviceIdxOfRank(uint32_t rank) const { return devices_.size() == 1 ? 0 : rank; }
  // Calls `call` with every rank, whose device is current. Returns the first error.
  template <typename Call>
  Status ForEachRank(const Call& call) const;
  // Waits for all work that has been put into the streams.
  Status WaitForAll() const;
  // The exchanges of the ranks. With one rank alone, nothing is put into its stream.
  Status AddPartialSums(PartialSum which) const;
  Status GatherLogits() const;
  // Puts an exchange into every stream, under the gate: between two exchanges no device waits for
  // another. `launch` is given who exchanges, and the stream.
  template <typename Launch>
  Status Exchange(const Launch& launch) const;

  // Constant after Load.
  DeviceModelOptions options_;
  ModelConfig config_;
  kv::KvLayout layout_;
  StateMap state_map_;
  std::string weights_id_;
  std::string numerics_id_;
  std::string numerics_text_;
  std::vector<float> rope_factors_;  // as FillRopeTable's
  RankWeights weights_;              // of all models of Share
  WeightLoadReport load_report_;
  std::vector<device::Accelerator*> devices_;  // of ranks 0, 1, ..., or the one of all
  // Owned by the thread that calls Forward.
  std::vector<std::unique_ptr<DeviceRank>> ranks_;
  std::vector<device::DeviceEvent> stored_;  // [layers][devices]: K and V of a layer are
  uint32_t num_noted_ = 0;                   // layers of the step, in the streams
  uint32_t num_told_ = 0;                    // and of them, told to the hook
  uint32_t num_told_slices_ = 0;             // by which it knows them (LayerHook)
  size_t num_begun_ = 0;                     // steps, 2 at most
  size_t last_begun_ = 0;                    // of two, in turn
  uint32_t begun_rows_[2] = {};
  std::vector<StepGraph> graphs_;           // rows ascending
  const std::byte* recorded_kv_ = nullptr;  // what they compute in, of rank 0
};

}  // namespace baton::model

#endif  // BATON_MODEL_DEVICE_MODEL_H_
