// CheckDeviceShape: which models the kernels of devices compute. The one answer for a worker that
// loads a model and for a plan that only reads its shape. Pure; any thread.
#ifndef BATON_MODEL_DEVICE_SHAPE_H_
#define BATON_MODEL_DEVICE_SHAPE_H_

#include <cstdint>
#include <string_view>

#include "src/base/status.h"
#include "src/model/model_config.h"

namespace baton::model {

// OK when a device computes a model of this shape (with several ranks: the share of one). Else
// Unimplemented naming what there is no kernel for, and `device` ("cuda", "simt"). What every
// model of the architecture lacks comes before the sizes of this one.
Status CheckDeviceShape(const ModelConfig& config, std::string_view device);

// Columns of a layer's first product on a device: q, k and v of attention or of a gated delta net;
// the b, c and x of a convolution.
uint32_t FirstProductSize(const ModelConfig& config, uint32_t layer);
// Columns of the product that gates a layer's attention or net before its last one; 0 without.
uint32_t OutputGateSize(const ModelConfig& config, uint32_t layer);

}  // namespace baton::model

#endif  // BATON_MODEL_DEVICE_SHAPE_H_
