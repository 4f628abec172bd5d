// MatMulRunner: runs a MatrixGroup, whose parts write side by side into one buffer. Private to
// src/model; the thread that calls Forward.
#ifndef BATON_MODEL_MATMUL_RUNNER_H_
#define BATON_MODEL_MATMUL_RUNNER_H_

#include <cstdint>

#include "kernels/ops.h"
#include "src/model/model_weights.h"
#include "src/model/model_workspace.h"

namespace baton::model {

// Rows of the input of one group of matmuls.
struct GroupInput {
  const float* x;  // [rows, k]
  uint32_t rows;
  uint32_t k;
};

// Where its output goes.
struct GroupOutput {
  float* out;  // [rows, stride]
  uint32_t stride;
  kernels::Epilogue epilogue;
};

// The three things that every operation needs.
struct MatMulRunner {
  const kernels::Ops& ops;
  device::ThreadPool& pool;
  ModelWorkspace& workspace;

  // out = group * x, the parts of the group side by side. One quantisation serves all parts.
  void MatMul(const MatrixGroup& group, const GroupInput& input, const GroupOutput& output) const {
    const kernels::A16View a16 = workspace.A16(input.k);
    if (group.uses_a16) ops.quantize_a16(pool, input.x, input.rows, a16);
    float* out = output.out;
    for (const kernels::PackedMatrix& part : group.parts) {
      MatMulOne(part, a16, input, {out, output.stride, output.epilogue});
      out += part.n();
    }
  }

  void MatMulOne(const kernels::PackedMatrix& weights, const kernels::A16View& a16,
                 const GroupInput& input, const GroupOutput& output) const {
    kernels::MatMulArgs args;
    args.weights = &weights;
    args.a16 = a16;
    args.x = input.x;
    args.m = input.rows;
    args.out = output.out;
    args.out_stride = output.stride;
    args.epilogue = output.epilogue;
    ops.matmul(pool, args);
  }
};

}  // namespace baton::model

#endif  // BATON_MODEL_MATMUL_RUNNER_H_
