// ProductPlan: which algorithms of cuBLASLt multiply the products with one shape of matrix, as they
// were timed on a machine. A file keeps them, so the next start with such a matrix on the same kind
// of machine times nothing. A file is written once: the timings of a second process beside the
// first are not kept. Any thread. Private to src/model.
#ifndef BATON_MODEL_PRODUCT_PLAN_H_
#define BATON_MODEL_PRODUCT_PLAN_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cublaslt/lt_product.h"
#include "src/base/status.h"
#include "src/base/unique_fd.h"

namespace baton::model {

// Products of one shape with (rows of the bucket before, rows] rows.
struct PlannedProduct {
  kernels::cublaslt::LtShape shape;
  uint32_t rows;
  // An algorithm of the library's version that the plan names. None: the library has no algorithm,
  // and our own kernels multiply.
  std::optional<cublasLtMatmulAlgo_t> algorithm = {};
};

// See the file comment.
struct ProductPlan {
  std::string machine;  // one line: what decides how long an algorithm takes
  std::vector<PlannedProduct> products;
};

// The file of a plan that asks the same, "FOLDER/HASH.plan".
std::string PlanPath(const std::string& folder, const ProductPlan& plan);

// Fills in the algorithms of a plan that has its machine and products. NotFound without a file;
// DataLoss naming what is wrong with it when it is damaged or answers other questions; then the
// plan is unchanged. Unavailable or InvalidArgument when it cannot be read.
Status ReadPlan(const std::string& path, ProductPlan* plan);

// Keeps a plan, in place of a file that was damaged. A file that another process has kept meanwhile
// stays. ResourceExhausted, Unavailable or AlreadyExists (for a half-written file that was left
// over) with the reason.
Status WritePlan(const std::string& path, const ProductPlan& plan);

// The turn to time products. Among the processes that keep plans in one folder, one has the turn at
// a time. So processes that start at once on one GPU do not time beside each other, and the later
// ones read what the first has found. The turn is given back by the destructor, or by the kernel
// when the process ends.
class PlanTurn {
 public:
  // Creates the folder and waits for the turn for at most `limit`.
  PlanTurn(const std::string& folder, std::chrono::milliseconds limit);

  // False: another process has the turn still, or the folder cannot be locked; failure() says
  // which.
  bool is_held() const { return folder_.valid(); }
  const std::string& failure() const { return failure_; }

 private:
  UniqueFd folder_;  // locked
  std::string failure_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_PRODUCT_PLAN_H_
