// Model::Load: from a checked file to a model that can run.
#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/model/model.h"
#include "src/model/model_weights.h"
#include "src/model/model_workspace.h"
#include "src/model/numerics.h"
#include "src/model/tensor_plan.h"
#include "src/model/weight_checks.h"

namespace baton::model {

using kernels::OpsFor;
using kv::KvDtype;
using kv::KvDtypeName;

namespace {

// A step of more rows would break the target of 100 ms a step by far, on any device.
constexpr uint32_t kMaxRows = 1u << 16;
constexpr uint32_t kMaxBlockSize = 256;

absl::Status CheckOptions(const ModelOptions& options) {
  if (options.max_rows < 1 || options.max_rows > kMaxRows) {
    return InvalidArgument("max_rows {} is outside [1, {}]", options.max_rows, kMaxRows);
  }
  if (options.kv_dtype != KvDtype::kBf16 && options.kv_dtype != KvDtype::kF32 &&
      options.kv_dtype != KvDtype::kQ8) {
    return InvalidArgument("KV dtype {}: the processor stores K and V in bf16, f32 or q8",
                           KvDtypeName(options.kv_dtype));
  }
  if (options.block_size < 2 || options.block_size > kMaxBlockSize || options.block_size % 2 != 0) {
    return InvalidArgument("block size {} is not an even number in [2, {}]", options.block_size,
                           kMaxBlockSize);
  }
  return OkStatus();
}

// q8 scales a row of K or V of one head; what else lies in a block has no such row.
Status CheckKvDtype(const ModelConfig& config, KvDtype dtype) {
  if (dtype != KvDtype::kQ8 || config.has_plain_rows()) return OkStatus();
  return Unimplemented(
      "--kv-dtype q8: architecture {} keeps more than K and V of one shape in its blocks, and that "
      "is not stored in q8; use bf16 or f32",
      config.architecture);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Load(const GgufFile& file,
                                                   const ModelOptions& options) {
  BATON_CHECK(options.pool != nullptr, "a model needs a thread pool");
  BATON_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<Model> model(new Model());
  BATON_ASSIGN_OR_RETURN(model->config_, ReadModelConfig(file));
  const ModelConfig& config = model->config_;
  BATON_RETURN_IF_ERROR(CheckKvDtype(config, options.kv_dtype));
  BATON_ASSIGN_OR_RETURN(model->ops_, OpsFor(options.isa));
  BATON_ASSIGN_OR_RETURN(model->max_context_, ContextFor(config, options.max_context));
  model->pool_ = options.pool;
  model->max_rows_ = options.max_rows;
  model->layout_ = KvLayoutOf(config, options.kv_dtype, options.block_size);
  model->state_map_ = StateMapOf(config);
  for (uint32_t layer = 0; config.traits->mixed_layers && layer < config.num_layers; ++layer) {
    model->layer_layouts_.push_back(LayerLayoutOf(config, model->layout_, layer));
  }

  BATON_ASSIGN_OR_RETURN(const TensorPlan plan, PlanTensors(file, config));
  BATON_RETURN_IF_ERROR(CheckVectors(file));
  BATON_ASSIGN_OR_RETURN(ModelWeights weights,
                         LoadWeights({file, config, plan}, *options.pool, options.sharing));
  model->weights_ = std::make_shared<const ModelWeights>(std::move(weights));
  BATON_RETURN_IF_ERROR(model->MakeWorkspace());

  model->weights_id_ = model->weights_->weights_id;
  model->numerics_text_ = NumericsText({.weights_id = model->weights_id_,
                                        .tokenizer_id = options.tokenizer_id,
                                        .arithmetic = model->ops_->arithmetic,
                                        .kv_dtype = options.kv_dtype,
                                        .config = &config,
                                        .max_context = model->max_context_});
  model->numerics_id_ = NumericsId(model->numerics_text_);
  return model;
}

Status Model::MakeWorkspace() {
  WorkspaceSize size;
  size.max_rows = max_rows_;
  size.max_context = max_context_;
  for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    if (!config_.IsAttention(layer)) continue;
    size.attention_scratch_bytes =
        std::max(size.attention_scratch_bytes,
                 ops_->attention_scratch_bytes(pool_->num_threads(), config_.num_heads,
                                               config_.KvHeads(layer), config_.HeadDim(layer)));
  }
  const bool is_long = UsesLongFactors(config_.rope_scaling, max_context_);
  BATON_ASSIGN_OR_RETURN(
      workspace_, ModelWorkspace::Create(
                      config_, size, is_long ? weights_->long_factors : weights_->rope_factors));
  return OkStatus();
}

StatusOr<std::unique_ptr<LoadedModel>> Model::Share(const ModelThreads& threads) const {
  BATON_CHECK(threads.pool != nullptr, "a model needs a thread pool");
  std::unique_ptr<Model> model(new Model());
  model->config_ = config_;
  model->layout_ = layout_;
  model->state_map_ = state_map_;
  model->layer_layouts_ = layer_layouts_;
  model->ops_ = ops_;
  model->pool_ = threads.pool;
  model->max_rows_ = max_rows_;
  model->max_context_ = max_context_;
  model->weights_id_ = weights_id_;
  model->numerics_id_ = numerics_id_;
  model->numerics_text_ = numerics_text_;
  model->weights_ = weights_;
  BATON_RETURN_IF_ERROR(model->MakeWorkspace());
  return model;
}

}  // namespace baton::model
