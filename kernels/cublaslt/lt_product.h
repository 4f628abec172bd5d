// LtProduct: products y = x w^T with one weight shape by cuBLASLt: x [m][k] and w [n][k] in bf16, y
// [m][n] in bf16 or fp32, sums in fp32, all row-major. The library sees column-major y^T = w x^T
// with w transposed.
//
// One thread: the number of rows is set in the layouts of each call. Nothing is allocated after
// Create but by Candidates.
#ifndef BATON_KERNELS_CUBLASLT_LT_PRODUCT_H_
#define BATON_KERNELS_CUBLASLT_LT_PRODUCT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cublaslt/cublaslt_library.h"
#include "src/base/status.h"

namespace baton::kernels::cublaslt {

// A use of the library by one device, which is current where this is made and used; move-only. The
// table outlives it.
class LtHandle {
 public:
  // Internal when the library cannot use the device.
  static StatusOr<std::unique_ptr<LtHandle>> Create(const CublasLtTable& table);
  ~LtHandle() { (void)table_.cublasLtDestroy(handle_); }
  LtHandle(const LtHandle&) = delete;
  LtHandle& operator=(const LtHandle&) = delete;

  const CublasLtTable& table() const { return table_; }
  cublasLtHandle_t get() const { return handle_; }

 private:
  LtHandle(const CublasLtTable& table, cublasLtHandle_t handle) : table_(table), handle_(handle) {}

  const CublasLtTable& table_;
  cublasLtHandle_t handle_;
};

// The part of a product's shape that does not depend on its rows.
struct LtShape {
  uint32_t n;
  uint32_t k;
  bool is_float = false;  // y

  friend bool operator==(const LtShape&, const LtShape&) = default;
};

// Where a product's operands lie, in device memory, aligned to 16 bytes.
struct LtOperands {
  const void* x;
  const void* w;
  void* y;
  uint32_t m;
};

// Scratch of the library, for products of one stream.
struct LtWorkspace {
  void* data;
  size_t bytes;
};

// See the file comment.
class LtProduct {
 public:
  // `handle` outlives it. Internal when the library refuses.
  static StatusOr<std::unique_ptr<LtProduct>> Create(const LtHandle& handle, const LtShape& shape);
  ~LtProduct();
  LtProduct(const LtProduct&) = delete;
  LtProduct& operator=(const LtProduct&) = delete;

  const LtShape& shape() const { return shape_; }

  // At most `max_count` algorithms for m rows with so much scratch, what the library takes for the
  // fastest first; none: it knows none.
  StatusOr<std::vector<cublasLtMatmulAlgo_t>> Candidates(uint32_t m, size_t workspace_bytes,
                                                         int max_count);
  // Whether an algorithm, of this version of the library, multiplies m rows with so much scratch:
  // one that was found for another number of rows need not.
  bool Takes(const cublasLtMatmulAlgo_t& algorithm, uint32_t m, size_t workspace_bytes);
  // Puts one product into the stream. Internal with the library's error; then nothing was put.
  Status Multiply(const cublasLtMatmulAlgo_t& algorithm, const LtOperands& operands,
                  const LtWorkspace& workspace, void* stream);

 private:
  LtProduct(const LtHandle& handle, const LtShape& shape)
      : table_(handle.table()), handle_(handle.get()), shape_(shape) {}
  Status Describe();
  Status SetRows(uint32_t m);
  Status FindAlgorithms(cublasLtMatmulPreference_t preference, size_t workspace_bytes,
                        std::vector<cublasLtMatmulHeuristicResult_t>* results);

  const CublasLtTable& table_;
  const cublasLtHandle_t handle_;
  const LtShape shape_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr;
  cublasLtMatrixLayout_t x_ = nullptr;
  cublasLtMatrixLayout_t y_ = nullptr;
};

}  // namespace baton::kernels::cublaslt

#endif  // BATON_KERNELS_CUBLASLT_LT_PRODUCT_H_
