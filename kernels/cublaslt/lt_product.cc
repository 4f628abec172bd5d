#include "kernels/cublaslt/lt_product.h"

namespace baton::kernels::cublaslt {

StatusOr<std::unique_ptr<LtHandle>> LtHandle::Create(const CublasLtTable& table) {
  cublasLtHandle_t handle = nullptr;
  BATON_RETURN_IF_ERROR(ToStatus("cublasLtCreate", table.cublasLtCreate(&handle)));
  return std::unique_ptr<LtHandle>(new LtHandle(table, handle));
}

StatusOr<std::unique_ptr<LtProduct>> LtProduct::Create(const LtHandle& handle,
                                                       const LtShape& shape) {
  std::unique_ptr<LtProduct> product(new LtProduct(handle, shape));
  BATON_RETURN_IF_ERROR(product->Describe());
  return product;
}

LtProduct::~LtProduct() {
  for (cublasLtMatrixLayout_t layout : {w_, x_, y_}) {
    if (layout != nullptr) (void)table_.cublasLtMatrixLayoutDestroy(layout);
  }
  if (desc_ != nullptr) (void)table_.cublasLtMatmulDescDestroy(desc_);
}

Status LtProduct::Describe() {
  BATON_RETURN_IF_ERROR(ToStatus("cublasLtMatmulDescCreate",
                                 table_.cublasLtMatmulDescCreate(&desc_, kCompute32F, kReal32F)));
  const int32_t transposed = kOpTransposed;
  BATON_RETURN_IF_ERROR(ToStatus("cublasLtMatmulDescSetAttribute",
                                 table_.cublasLtMatmulDescSetAttribute(
                                     desc_, kMatmulDescTransA, &transposed, sizeof(transposed))));
  const auto create = [this](cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                             uint64_t columns) {
    return ToStatus(
        "cublasLtMatrixLayoutCreate",
        table_.cublasLtMatrixLayoutCreate(layout, type, rows, columns, static_cast<int64_t>(rows)));
  };
  BATON_RETURN_IF_ERROR(create(&w_, kReal16BF, shape_.k, shape_.n));
  BATON_RETURN_IF_ERROR(create(&x_, kReal16BF, shape_.k, 1));
  return create(&y_, shape_.is_float ? kReal32F : kReal16BF, shape_.n, 1);
}

Status LtProduct::SetRows(uint32_t m) {
  const uint64_t columns = m;
  for (cublasLtMatrixLayout_t layout : {x_, y_}) {
    BATON_RETURN_IF_ERROR(ToStatus("cublasLtMatrixLayoutSetAttribute",
                                   table_.cublasLtMatrixLayoutSetAttribute(
                                       layout, kLayoutColumns, &columns, sizeof(columns))));
  }
  return OkStatus();
}

StatusOr<std::vector<cublasLtMatmulAlgo_t>> LtProduct::Candidates(uint32_t m,
                                                                  size_t workspace_bytes,
                                                                  int max_count) {
  BATON_RETURN_IF_ERROR(SetRows(m));
  cublasLtMatmulPreference_t preference = nullptr;
  BATON_RETURN_IF_ERROR(ToStatus("cublasLtMatmulPreferenceCreate",
                                 table_.cublasLtMatmulPreferenceCreate(&preference)));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(max_count));
  const Status found = FindAlgorithms(preference, workspace_bytes, &results);
  (void)table_.cublasLtMatmulPreferenceDestroy(preference);
  BATON_RETURN_IF_ERROR(found);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (const cublasLtMatmulHeuristicResult_t& result : results) {
    if (result.state == kSuccess) algorithms.push_back(result.algo);
  }
  return algorithms;
}

Status LtProduct::FindAlgorithms(cublasLtMatmulPreference_t preference, size_t workspace_bytes,
                                 std::vector<cublasLtMatmulHeuristicResult_t>* results) {
  const auto set = [&](int attribute, const void* value, size_t bytes) {
    return ToStatus(
        "cublasLtMatmulPreferenceSetAttribute",
        table_.cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes));
  };
  const uint64_t bytes = workspace_bytes;
  BATON_RETURN_IF_ERROR(set(kPreferenceMaxWorkspace, &bytes, sizeof(bytes)));
  BATON_RETURN_IF_ERROR(
      set(kPreferenceReductions, &kReductionInComputeType, sizeof(kReductionInComputeType)));
  constexpr uint32_t kAlignment = 16;  // of every operand; the library would count on 256
  for (const int attribute : kPreferenceAlignments) {
    BATON_RETURN_IF_ERROR(set(attribute, &kAlignment, sizeof(kAlignment)));
  }
  int num_found = 0;
  const cublasStatus_t status = table_.cublasLtMatmulAlgoGetHeuristic(
      handle_, desc_, w_, x_, y_, y_, preference, static_cast<int>(results->size()),
      results->data(), &num_found);
  constexpr cublasStatus_t kNotSupported = 15;  // how it says that it knows none
  if (status == kNotSupported) num_found = 0;
  if (status != kNotSupported) {
    BATON_RETURN_IF_ERROR(ToStatus("cublasLtMatmulAlgoGetHeuristic", status));
  }
  results->resize(static_cast<size_t>(num_found));
  return OkStatus();
}

bool LtProduct::Takes(const cublasLtMatmulAlgo_t& algorithm, uint32_t m, size_t workspace_bytes) {
  if (!SetRows(m).ok()) return false;
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status =
      table_.cublasLtMatmulAlgoCheck(handle_, desc_, w_, x_, y_, y_, &algorithm, &result);
  return status == kSuccess && result.state == kSuccess && result.workspaceSize <= workspace_bytes;
}

Status LtProduct::Multiply(const cublasLtMatmulAlgo_t& algorithm, const LtOperands& operands,
                           const LtWorkspace& workspace, void* stream) {
  BATON_RETURN_IF_ERROR(SetRows(operands.m));
  const float one = 1;
  const float zero = 0;
  return ToStatus("cublasLtMatmul",
                  table_.cublasLtMatmul(handle_, desc_, &one, operands.w, w_, operands.x, x_, &zero,
                                        operands.y, y_, operands.y, y_, &algorithm, workspace.data,
                                        workspace.bytes, stream));
}

}  // namespace baton::kernels::cublaslt
