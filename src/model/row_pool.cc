#include "src/model/row_pool.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "src/base/check.h"

namespace baton::model {

std::string_view PoolingName(Pooling pooling) {
  constexpr std::array<std::string_view, kMaxPooling + 1> kNames = {"none", "mean", "cls", "last",
                                                                    "rank"};
  return kNames[static_cast<size_t>(pooling)];
}

RowPool::RowPool(Pooling pooling, uint32_t dim) : pooling_(pooling), sums_(dim, 0.0) {
  BATON_CHECK(GivesVector(pooling), "pooling {} gives no vector", PoolingName(pooling));
}

void RowPool::Add(uint32_t pos, std::span<const float> row) {
  BATON_CHECK(row.size() == sums_.size(), "a row of {} elements, {} are pooled", row.size(),
              sums_.size());
  if (pooling_ == Pooling::kLast) {
    std::copy(row.begin(), row.end(), sums_.begin());
    num_rows_ = 1;
    return;
  }
  if (pos < num_rows_) return;
  BATON_CHECK(pos == num_rows_, "position {} is pooled after {} rows", pos, num_rows_);
  for (size_t i = 0; i < row.size(); ++i) sums_[i] += row[i];
  ++num_rows_;
}

StatusOr<std::vector<float>> RowPool::Vector() const {
  if (num_rows_ == 0) return FailedPrecondition("no row was pooled");
  // The mean's divisor is left out: it cancels in the division by the length.
  double square = 0;
  for (const double sum : sums_) square += sum * sum;
  if (!std::isfinite(square)) return DataLoss("the model's hidden states hold no number");
  std::vector<float> vector(sums_.size(), 0.0f);
  if (square == 0) return vector;
  const double length = std::sqrt(square);
  for (size_t i = 0; i < vector.size(); ++i) vector[i] = static_cast<float>(sums_[i] / length);
  return vector;
}

}  // namespace baton::model
