// DeltaShape: the numbers of a net with a fixed state, and that state's bytes. Pure; any thread.
#ifndef BATON_KERNELS_DELTA_SHAPE_H_
#define BATON_KERNELS_DELTA_SHAPE_H_

#include <cstddef>
#include <cstdint>

namespace baton::kernels {

// Heads of q and k have so many elements at most; those of q, k and v are multiples of
// kDeltaLanes.
inline constexpr uint32_t kMaxDeltaKeyDim = 256;
inline constexpr uint32_t kDeltaLanes = 16;

// How a token changes the matrix of a head, besides its decay.
enum class DeltaRule : uint8_t {
  kCorrect = 0,  // the gated delta rule (qwen35): it is corrected to give more of v for k
  kAdd = 1,      // Mamba-2 (nemotron_h): v times the token's step is added for k
};

// See the file comment. A row's input is q | k | v | z | beta | decay, side by side. Of Mamba-2
// these are C | B | x | z | dt, and the columns of decay are room that the kernel needs.
struct DeltaShape {
  uint32_t num_k_heads = 0;  // of q, and of k: Mamba-2's groups
  uint32_t num_v_heads = 0;  // a multiple
  uint32_t k_dim = 0;        // elements of a head of q or k
  uint32_t v_dim = 0;        // elements of a head of v
  uint32_t num_taps = 0;     // tokens that the convolution sees, the row's own included
  DeltaRule rule = DeltaRule::kCorrect;

  uint32_t key_size() const { return num_k_heads * k_dim; }
  uint32_t value_size() const { return num_v_heads * v_dim; }
  // The head of q and k that a head of v goes with. Mamba-2's groups are of neighbours.
  uint32_t KeyHeadOf(uint32_t head) const {
    return rule == DeltaRule::kAdd ? head / (num_v_heads / num_k_heads) : head % num_k_heads;
  }
  // Elements that are normed together: of a head of v, or of all that share a head of k.
  uint32_t norm_size() const {
    return rule == DeltaRule::kAdd ? value_size() / num_k_heads : v_dim;
  }
  // Elements that go through the convolution: q, k and v.
  uint32_t num_channels() const { return 2 * key_size() + value_size(); }
  uint32_t input_size() const { return num_channels() + value_size() + 2 * num_v_heads; }
  // The state of one sequence, fp32: the matrix [num_v_heads][k_dim][v_dim], then the inputs of the
  // last tokens before the convolution, [num_taps - 1][num_channels], the oldest first. A multiple
  // of 64.
  size_t matrix_bytes() const { return size_t{num_v_heads} * k_dim * v_dim * sizeof(float); }
  size_t tail_bytes() const { return size_t{num_taps - 1} * num_channels() * sizeof(float); }
  size_t state_bytes() const { return matrix_bytes() + tail_bytes(); }

  friend bool operator==(const DeltaShape&, const DeltaShape&) = default;
};

}  // namespace baton::kernels

#endif  // BATON_KERNELS_DELTA_SHAPE_H_
