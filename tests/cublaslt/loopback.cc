// A library with cuBLASLt's symbols that multiplies on the processor, to run what calls cuBLASLt
// where there is none: on memory of the runner, at once, in the caller's thread. It takes the one
// kind of product that is asked for (lt_product.h) and refuses any other. Its sums run in other
// orders than those of our kernels: algorithm 1 adds eight interleaved chains, algorithm 2 goes
// from the end to the beginning.
//
// Faults, of the environment's BATON_CUBLASLT_LOOPBACK as "key=value,key=value", read at each call:
//
//   version=120005   the version that it says it has
//
//   create=1         cublasLtCreate fails with that error
//
//   refuse=512       no algorithm for matrices of so many rows (n)
//
//   multiple=3       algorithms take products whose rows (m) are a multiple, or as many as were
//   asked
//
//   wrong=512        products with matrices of so many rows (n) are zero; 0 = all
//
//   wrong_rows=129   products of so many rows (m) are zero
//
//   repeat=64        products repeat their first so many rows
//
//   fail=150         products of so many rows (m) fail; 0 = all
#include "tests/cublaslt/loopback.h"

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cublaslt/cublaslt_api.h"
#include "kernels/math.h"

namespace {

using namespace baton::kernels::cublaslt;  // NOLINT(google-build-using-namespace): its constants,
                                           // here only

constexpr cublasStatus_t kInvalid = 7;
constexpr cublasStatus_t kExecutionFailed = 13;
constexpr cublasStatus_t kNotSupported = 15;
constexpr uint64_t kMark = 0xBA70;  // in algorithms that are this library's
constexpr uint64_t kNumAlgorithms = 2;

std::atomic<uint64_t> num_products{0};
std::atomic<uint64_t> last_asked_rows{0};

// The value of a fault, or -1.
int64_t Fault(std::string_view key) {
  const char* const text = std::getenv("BATON_CUBLASLT_LOOPBACK");
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(item.size() < rest.size() ? item.size() + 1 : rest.size());
    if (!item.starts_with(key) || item.substr(key.size(), 1) != "=") continue;
    return std::atoll(std::string(item.substr(key.size() + 1)).c_str());
  }
  return -1;
}

bool IsFaulty(std::string_view key, uint64_t value) {
  const int64_t fault = Fault(key);
  return fault == 0 || fault == static_cast<int64_t>(value);
}

}  // namespace

struct cublasLtMatmulDescOpaque {
  bool is_transposed = false;
};
struct cublasLtMatrixLayoutOpaque {
  cudaDataType_t type;
  uint64_t rows;
  uint64_t columns;
  int64_t stride;
};
struct cublasLtMatmulPreferenceOpaque {};

namespace {

std::vector<float> FloatsOf(const void* data, const cublasLtMatrixLayoutOpaque& layout) {
  const auto* values = static_cast<const uint16_t*>(data);
  std::vector<float> floats(layout.rows * layout.columns);
  for (uint64_t column = 0; column < layout.columns; ++column) {
    for (uint64_t row = 0; row < layout.rows; ++row) {
      const uint16_t bits = values[column * static_cast<uint64_t>(layout.stride) + row];
      floats[column * layout.rows + row] = baton::kernels::FloatFromBf16(bits);
    }
  }
  return floats;
}

float DotInLanes(const float* a, const float* b, uint64_t k) {
  constexpr uint64_t kLanes = 8;
  float sums[kLanes] = {};
  uint64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    for (uint64_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < k; ++i) sums[i % kLanes] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

float DotFromTheEnd(const float* a, const float* b, uint64_t k) {
  float sum = 0;
  for (uint64_t i = k; i-- > 0;) sum += a[i] * b[i];
  return sum;
}

bool IsProduct(const cublasLtMatrixLayoutOpaque& w, const cublasLtMatrixLayoutOpaque& x,
               const cublasLtMatrixLayoutOpaque& y) {
  return w.rows == x.rows && w.columns == y.rows && x.columns == y.columns && w.type == kReal16BF &&
         x.type == kReal16BF;
}

cublasStatus_t CheckAlgorithm(const cublasLtMatmulAlgo_t& algorithm, uint64_t rows) {
  const bool is_ours =
      algorithm.data[0] >= 1 && algorithm.data[0] <= kNumAlgorithms && algorithm.data[1] == kMark;
  if (!is_ours) return kInvalid;
  const int64_t multiple = Fault("multiple");
  const bool takes =
      multiple <= 0 || rows == algorithm.data[2] || rows % static_cast<uint64_t>(multiple) == 0;
  return takes ? kSuccess : kNotSupported;
}

}  // namespace

extern "C" {

uint64_t baton_cublaslt_loopback_products(void) { return num_products.load(); }
uint64_t baton_cublaslt_loopback_asked_rows(void) { return last_asked_rows.load(); }

size_t cublasLtGetVersion(void) {
  const int64_t version = Fault("version");
  return version < 0 ? 130'000 : static_cast<size_t>(version);
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = handle;  // anything that is not null
  const int64_t error = Fault("create");
  return error < 0 ? kSuccess : static_cast<cublasStatus_t>(error);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return kSuccess; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != kCompute32F || scale != kReal32F) return kInvalid;
  *desc = new cublasLtMatmulDescOpaque;
  return kSuccess;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return kSuccess;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, int attribute,
                                              const void* value, size_t bytes) {
  if (attribute != kMatmulDescTransA || bytes != sizeof(int32_t)) return kInvalid;
  desc->is_transposed = *static_cast<const int32_t*>(value) == kOpTransposed;
  return kSuccess;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  if (type != kReal16BF && type != kReal32F) return kInvalid;
  *layout = new cublasLtMatrixLayoutOpaque{type, rows, columns, stride};
  return kSuccess;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, int attribute,
                                                const void* value, size_t bytes) {
  if (attribute != kLayoutColumns || bytes != sizeof(uint64_t)) return kInvalid;
  layout->columns = *static_cast<const uint64_t*>(value);
  return kSuccess;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return kSuccess;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque;
  return kSuccess;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return kSuccess;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, int attribute,
                                                    const void*, size_t bytes) {
  if (attribute == kPreferenceMaxWorkspace) return bytes == sizeof(uint64_t) ? kSuccess : kInvalid;
  bool is_known = attribute == kPreferenceReductions;
  for (const int alignment : kPreferenceAlignments) is_known = is_known || attribute == alignment;
  return is_known && bytes == sizeof(uint32_t) ? kSuccess : kInvalid;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t y,
                                              cublasLtMatmulPreference_t, int num_requested,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* num_found) {
  *num_found = 0;
  if (IsFaulty("refuse", y->rows)) return kNotSupported;
  for (uint64_t i = 0; i < kNumAlgorithms && *num_found < num_requested; ++i) {
    results[i] = {};
    results[i].algo.data[0] = i + 1;
    results[i].algo.data[1] = kMark;
    results[i].algo.data[2] = y->columns;
    ++*num_found;
  }
  return kSuccess;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t w, cublasLtMatrixLayout_t x,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t y,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  if (!IsProduct(*w, *x, *y)) return kInvalid;
  return CheckAlgorithm(*algorithm, y->columns);
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* w_data, cublasLtMatrixLayout_t w, const void* x_data,
                              cublasLtMatrixLayout_t x, const void* beta, const void*,
                              cublasLtMatrixLayout_t, void* y_data, cublasLtMatrixLayout_t y,
                              const cublasLtMatmulAlgo_t* algorithm, void*, size_t, void*) {
  const bool is_plain =
      *static_cast<const float*>(alpha) == 1 && *static_cast<const float*>(beta) == 0;
  if (!desc->is_transposed || !is_plain || !IsProduct(*w, *x, *y)) return kInvalid;
  if (IsFaulty("fail", y->columns)) return kExecutionFailed;
  if (const cublasStatus_t status = CheckAlgorithm(*algorithm, y->columns); status != kSuccess) {
    return status;
  }
  ++num_products;
  last_asked_rows = algorithm->data[2];
  const std::vector<float> weights = FloatsOf(w_data, *w);
  const std::vector<float> rows = FloatsOf(x_data, *x);
  const bool is_zero =
      IsFaulty("wrong", y->rows) || Fault("wrong_rows") == static_cast<int64_t>(y->columns);
  const uint64_t depth = is_zero ? 0 : w->rows;
  const uint64_t repeat = Fault("repeat") > 0 ? static_cast<uint64_t>(Fault("repeat")) : y->columns;
  const auto dot = algorithm->data[0] == 1 ? DotInLanes : DotFromTheEnd;
  for (uint64_t m = 0; m < y->columns; ++m) {
    for (uint64_t n = 0; n < y->rows; ++n) {
      const float sum = dot(&weights[n * w->rows], &rows[m % repeat * x->rows], depth);
      const uint64_t at = m * static_cast<uint64_t>(y->stride) + n;
      if (y->type == kReal32F) {
        static_cast<float*>(y_data)[at] = sum;
      } else {
        static_cast<uint16_t*>(y_data)[at] = baton::kernels::Bf16FromFloat(sum);
      }
    }
  }
  return kSuccess;
}

}  // extern "C"
