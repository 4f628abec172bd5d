// Pooling: how a model makes one vector of the hidden states of a text's tokens. RowPool: computes
// that vector. The bits do not depend on how the text is cut into steps. One thread.
#ifndef BATON_MODEL_ROW_POOL_H_
#define BATON_MODEL_ROW_POOL_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace baton::model {

// The numbers are llama.cpp's of the key ARCH.pooling_type. This server computes kMean and kLast.
enum class Pooling : uint8_t {
  kNone = 0,  // a vector for each token, or a way to pool that has no number here
  kMean = 1,
  kClass = 2,  // the first token's, which sees nothing of a text in a causal model
  kLast = 3,
  kRank = 4,  // a score of two texts
};
inline constexpr uint32_t kMaxPooling = 4;
// "mean", "last" ...
std::string_view PoolingName(Pooling pooling);
inline bool GivesVector(Pooling pooling) {
  return pooling == Pooling::kMean || pooling == Pooling::kLast;
}

// See the file comment.
class RowPool {
 public:
  // `pooling` gives a vector (GivesVector); it has `dim` elements. Takes 8 bytes of memory each.
  RowPool(Pooling pooling, uint32_t dim);

  // Takes the hidden state [dim] of the token at `pos`. Mean needs all positions, ascending from 0;
  // a position that was taken before changes nothing, since a preempted prompt is computed again.
  void Add(uint32_t pos, std::span<const float> row);

  // The pooled vector [dim], divided by its Euclidean length; all zeros where that is 0.
  // FailedPrecondition when no row was taken, DataLoss when an element is not finite.
  StatusOr<std::vector<float>> Vector() const;

 private:
  const Pooling pooling_;
  std::vector<double> sums_;  // [dim]; of kLast: the last row
  uint32_t num_rows_ = 0;     // taken
};

}  // namespace baton::model

#endif  // BATON_MODEL_ROW_POOL_H_
