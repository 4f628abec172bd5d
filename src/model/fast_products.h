// FastProducts: a rank's products of many rows by cuBLASLt. The library is faster than our own
// kernels and adds in an order of its own. Each range of rows has the order of the algorithm that
// was the fastest there when it was timed. So bits of a prompt depend on how it is cut into steps
// (README.md, "Fast and deterministic").
//
// Made at load, when everything is decided: which products it takes, by which algorithm, and
// whether the library's results are right. A step allocates and chooses nothing.
//
// Owned by the thread that calls Forward, for which the device is current. Private to src/model.
#ifndef BATON_MODEL_FAST_PRODUCTS_H_
#define BATON_MODEL_FAST_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cublaslt/lt_product.h"
#include "kernels/cuda/gemm_params.h"
#include "src/base/status.h"
#include "src/device/accelerator.h"
#include "src/model/model_config.h"
#include "src/model/product_plan.h"

namespace baton::model {

// Products of up to so many rows are always our own. They are the products of recorded decode steps
// (device_batch.h), which no foreign kernel enters, and the products for which packed weights are
// read as they are.
inline constexpr uint32_t kMaxOwnRows = 128;

// The library that computes products of many rows, or none.
struct FastMode {
  std::shared_ptr<const kernels::cublaslt::CublasLtTable> library;  // null: our own kernels only
  std::string plan_folder;  // where plans are kept; "": nowhere
};

// The largest difference between a logit of fast mode and of our own kernels, in units of the row's
// root mean square. Both modes choose the same token where the largest logit leads by more than
// twice as much.
//
// Where sums in another order round to another bf16, all later results round otherwise too. So at
// worst the two modes round independently: some 8 times a layer, each by 2^-9 at most. Such errors
// add in squares: 2^-9 sqrt(8 layers) in one mode, twice that between two, and 4 times that for the
// worst logit of a row. Measured: 2.3e-2 of 0.117 (fast_products_test; seven layers), and one mode
// against exact arithmetic 0.11 of the half of 0.242 (thirty layers). The bound is not for mixtures
// of experts: where another expert is chosen there is no bound.
double FastLogitBound(const ModelConfig& config);

// Products with one matrix, or with the same matrix of each layer.
struct FastSite {
  std::string name;  // for the log
  kernels::cublaslt::LtShape shape;
  const device::DeviceBuffer* x;  // [max_rows][k]; any content, also afterwards
  const device::DeviceBuffer* y;  // [max_rows][n]; any content
  uint32_t max_rows;
  // Puts the product of the first m rows by our own kernels into the stream.
  std::function<Status(uint32_t m)> multiply;
  // The weights [n][k] in bf16. They are there once the stream gets so far, until the next call of
  // any site.
  std::function<StatusOr<const void*>()> weights;
};

// See the file comment.
class FastProducts {
 public:
  // Null where the library cannot be used or is wrong; one line of the log says why. For each
  // matrix and range, the products of the most and of the fewest rows are compared with our own.
  // The relative L2 error of no 64 rows may be above kMaxError. Errors are the device's. The
  // library outlives the result.
  static StatusOr<std::unique_ptr<FastProducts>> Create(const FastMode& mode,
                                                        device::Accelerator* device,
                                                        std::span<const FastSite> sites);
  // In bf16, the error when half of an ulp is wrong everywhere. In fp32, the error of sums in
  // another order.
  static constexpr double kMaxError = 0x1p-8;
  static constexpr double kMaxFloatError = 2e-4;

  // Puts the product into the stream where it is the library's. False, and nothing was put, where
  // it is not, or where the library refuses the call. The library is not asked for a refused call
  // again.
  bool Multiply(const kernels::cuda::GemmParams& params);

  // The facts about fast mode that decide bits, for numerics_id: "cublaslt=13.0.2 rows>128".
  std::string NumericsText() const;

 private:
  // The library's products of one site; ranges of rows ascend.
  struct Product {
    std::unique_ptr<kernels::cublaslt::LtProduct> product;
    std::vector<PlannedProduct> ranges;
    std::vector<bool> takes;  // [rows - kMaxOwnRows - 1]
  };
  FastProducts(device::Accelerator* device, std::unique_ptr<kernels::cublaslt::LtHandle> handle)
      : device_(device), handle_(std::move(handle)) {}

  // OK: it can be used. FailedPrecondition: it cannot, and why.
  Status Prepare(const FastMode& mode, std::span<const FastSite> sites);
  // Reads a site's algorithms from a file, or times candidates. Timed algorithms are kept once
  // their products have been compared with our own.
  Status PrepareSite(const std::string& folder, const FastSite& site, Product* product,
                     std::optional<PlanTurn>* turn);
  ProductPlan QuestionsOf(const FastSite& site) const;
  // Reads a plan's file; waits for the turn when there is none. False: the caller, which has waited
  // for the turn, must time the products.
  static bool ReadKept(const std::string& folder, const std::string& path, ProductPlan* plan,
                       std::optional<PlanTurn>* turn);
  Status TuneAll(const FastSite& site, kernels::cublaslt::LtProduct* product, ProductPlan* plan);
  Status Tune(const FastSite& site, kernels::cublaslt::LtProduct* product, PlannedProduct* planned);
  // Puts the largest product of a range; FailedPrecondition where the library refuses the call.
  Status Put(const FastSite& site, kernels::cublaslt::LtProduct* product,
             const PlannedProduct& planned, const void* weights);
  StatusOr<double> TimeOf(const FastSite& site, kernels::cublaslt::LtProduct* product,
                          const PlannedProduct& planned);
  Status FillRows(const FastSite& site);
  Status CheckSite(const FastSite& site, Product* product);
  StatusOr<double> ErrorOf(const FastSite& site, Product* product, const PlannedProduct& planned,
                           std::span<const std::byte> expected);
  // The first rows of y, as they lie there.
  StatusOr<std::vector<std::byte>> ReadRows(const FastSite& site, uint32_t count);
  // Notes which numbers of rows `product` takes.
  void NoteRows(const FastSite& site, Product* product);
  bool Takes(const kernels::cuda::GemmParams& params);
  Product* Find(const kernels::cublaslt::LtShape& shape);
  kernels::cublaslt::LtWorkspace Workspace() const {
    return {workspace_.data(), workspace_.size_bytes()};
  }

  device::Accelerator* const device_;
  const std::unique_ptr<kernels::cublaslt::LtHandle> handle_;  // before the products, which use it
  device::DeviceBuffer workspace_;
  std::vector<Product> products_;
  std::string refused_;  // by the library, for the log
  Status kept_;          // the first error of a plan's file, for the log
};

}  // namespace baton::model

#endif  // BATON_MODEL_FAST_PRODUCTS_H_
