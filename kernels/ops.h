// THE list of operations that a forward pass and the sampler are made of. Each has a scalar
// reference (kernels/reference) and vectorised bodies (kernels/cpu: AVX-512, AVX2, portable),
// reached through one table, Ops, chosen at run time. Pure functions on memory of one device: no
// allocation, no lock, no clock.
//
// Threading: an op is called by the engine thread; it divides its work over `ThreadPool` itself.
// Threads divide rows, heads, splits and outputs, never a summation chain, so that no bit depends
// on the number of threads.
//
// Invariants (asserted by tests/kernels; ARITHMETIC.md has the order of every fp32 operation)
//  1. Batch invariance: the bits of an output row depend on that row's inputs and the weights only.
//     They do not depend on the other rows, the chunking of the prompt, the block ids or the thread
//     count.
//  2. AVX2 and AVX-512 bodies and the fma reference give the same bits. The portable body replaces
//     each fma by multiply-then-add; it agrees within the bound in ARITHMETIC.md.
//  3. Outputs are fully overwritten; inputs and outputs do not alias unless said.
//
// Shapes are in brackets, slowest first. All fp32 row-major unless said. K is a multiple of 32
// for quantised weights.
#ifndef BATON_KERNELS_OPS_H_
#define BATON_KERNELS_OPS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/delta_shape.h"
#include "kernels/packed_matrix.h"
#include "kvcache/kv_view.h"
#include "src/base/status.h"
#include "src/device/thread_pool.h"

namespace baton::kernels {

enum class Isa : uint8_t { kAuto = 0, kPortable = 1, kAvx2 = 2, kAvx512 = 3 };

// Activations of a quantised matmul ("a16"): 32-element blocks of int16 with one fp32 scale.
//   scale = absmax / 32767
//   q     = round-to-nearest-even(x * (32767 / absmax))
//   sum   = scale * (sum of q); half_sum is the same of each half of the block
//   half_total = sum of q of each half
// So every product with an integer weight, and the sum over a block, are exact in int32. A block
// whose absmax is below 2^-100 becomes zeros. One that holds an infinity or a NaN gets zeros in q
// and half_total, and NaN in scale and the other sums.
struct A16View {
  int16_t* q;           // [rows, k]
  float* scale;         // [rows, k / 32]
  float* sum;           // [rows, k / 32]
  float* half_sum;      // [rows, k / 16]
  int32_t* half_total;  // [rows, k / 16]
  uint32_t k;
};

// The use that an operation makes of its result.
enum class Epilogue : uint8_t {
  kStore = 0,  // out[m, n] = y[m, n]
  kAdd = 1,    // out[m, n] = out[m, n] + y[m, n]  (the residual stream; `out` is in and out)
};

// y[r, i] = x[r, i] / sqrt(mean(x[r, :]^2) + eps) * weight[i]; out may be x when it is stored.
struct RmsNormArgs {
  const float* x;       // [rows, k]
  const float* weight;  // [k]
  uint32_t rows;
  uint32_t k;
  float eps;
  float* out;  // [rows, k]
  Epilogue epilogue = Epilogue::kStore;
};

// rms_norm of each head of a row by itself, in place (q and k before they turn).
struct HeadNormArgs {
  float* x;             // [rows, stride], num_heads * head_dim of it used
  const float* weight;  // [head_dim], the same for every head
  uint32_t rows;
  uint32_t stride;  // elements
  uint32_t num_heads;
  uint32_t head_dim;
  float eps;
};

// Which experts serve a row: those of the top_k largest logits, largest first (of equal ones the
// lower expert), weighted by e^(logit - largest) over the sum of those. A row that holds a NaN or
// an infinity gets top_k different experts and weights NaN.
struct RouteArgs {
  const float* logits;  // [rows, num_experts]
  uint32_t rows;
  uint32_t num_experts;
  uint32_t top_k;     // [1, num_experts]
  uint32_t* experts;  // [rows, top_k]
  float* weights;     // [rows, top_k]
};

// x[r, :] += sum over j ascending of weights[r, j] * y[slots[r, j], :].
struct CombineArgs {
  const float* y;         // [slots, k]
  const uint32_t* slots;  // [rows, top_k], rows of y
  const float* weights;   // [rows, top_k]
  uint32_t rows;
  uint32_t top_k;
  uint32_t k;
  float* x;  // [rows, k], in and out
};

struct MatMulArgs {
  const PackedMatrix* weights;  // [n, k], any WeightType
  A16View a16;                  // read when weights->uses_a16()
  const float* x;               // [m, k], read when !weights->uses_a16() (float weight types)
  uint32_t m;
  float* out;           // [m, out_stride]; columns [0, n)
  uint32_t out_stride;  // elements
  Epilogue epilogue;
};

// The numbers of clamped_swiglu.
inline constexpr float kSwigluAlpha = 1.702f;
inline constexpr float kSwigluLimit = 7.0f;

// One contiguous run of query rows of one sequence.
struct AttentionSpan {
  kv::KvBlockList kv;  // blocks that hold positions [0, first_pos + num_rows)
  uint32_t first_row;  // row of q / out in the batch
  uint32_t num_rows;   // >= 1; row r has position first_pos + r
  uint32_t first_pos;
};

struct RopeAppendArgs {
  kv::KvView kv;
  uint32_t layer;
  std::span<const AttentionSpan> spans;
  float* q;        // [rows, qkv_stride], num_heads * head_dim used; rotated in place
  const float* k;  // [rows, qkv_stride], num_kv_heads * head_dim used
  const float* v;  // [rows, qkv_stride]
  uint32_t qkv_stride;
  uint32_t num_heads;
  const float* cos_sin;  // [max_position, head_dim / 2, 2], built in double; null: nothing turns
  bool interleaved;      // true: pairs (2i, 2i+1); false (NEOX): pairs (i, i + head_dim/2)
};

// Multi-head latent attention in its absorbed form: all query heads share one row for each token of
// the KV dtype, in a layout of encoding kLatent. A row is a latent and a key of `rope_dims`
// elements that rotates in pairs (2i, 2i + 1); together they are the layout's head_dim.
struct LatentAppendArgs {
  kv::KvView kv;
  uint32_t layer;
  std::span<const AttentionSpan> spans;
  const float* latents;  // [rows, head_dim], the key not rotated yet
  // [rows, num_heads, q_head_dim]: the last rope_dims elements of a head rotate.
  const float* q;
  uint32_t q_head_dim;
  uint32_t num_heads;
  uint32_t rope_dims;    // even, at most 512
  const float* cos_sin;  // [max_position, rope_dims / 2, 2]
  float* absorbed;       // [rows, num_heads, head_dim]: the last rope_dims elements are written
};

// Tokens of a short convolution at most, its own included.
inline constexpr uint32_t kMaxConvTaps = 16;

// A short convolution (LFM2): y = c * sum over j of taps[j] * (b * x of the token `num_taps - 1 -
// j` before). Its inputs b * x are stored as K and V are, a row for each token, so that a row reads
// its predecessors wherever they were computed. The slices [first_slice, first_slice + num_slices)
// of a block are one matrix [block_size, num_slices * 2 * num_kv_heads * head_dim] of the KV dtype:
// a row holds `channels` elements and then zeros.
struct ShortConvArgs {
  kv::KvView kv;
  uint32_t first_slice;
  uint32_t num_slices;  // enough for `channels` elements a token
  std::span<const AttentionSpan> spans;
  const float* bcx;  // [rows, 3 * channels]: b, c, x
  uint32_t channels;
  const float* taps;  // [num_taps, channels], the token's own last
  uint32_t num_taps;  // [1, kMaxConvTaps]
  float* out;         // [rows, channels]; of short_conv only
};

struct AttentionArgs {
  kv::KvView kv;
  uint32_t layer;
  std::span<const AttentionSpan> spans;
  const float* q;  // [rows, q_stride]
  uint32_t q_stride;
  uint32_t num_heads;
  float scale;      // of q * k, applied to q once
  uint32_t window;  // 0 = full causal; else row p sees keys [max(0, p - window + 1), p]
  float* out;       // [rows, num_heads * head_dim], of latent rows [rows, num_heads * value_dim]
  std::span<std::byte> scratch;  // Ops::attention_scratch_bytes(...); 64-byte aligned
  // [num_heads] or null. A head's sink is a logit of its own that joins the sum of its softmax, and
  // has no value. It is not scaled, and no window hides it.
  const float* sinks = nullptr;
  uint32_t value_dim = 0;  // of latent rows: the first elements of a row are its value; else 0
};

// A gated delta net (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024), as Qwen3.5 has it, or
// with DeltaRule::kAdd a Mamba-2 layer (Dao, Gu, "Transformers are SSMs", 2024), as Nemotron-H has
// it: no length of q and k is changed, and the gate comes before the norm.
// Each sequence has a fixed state instead of K and V (DeltaShape). It lies in the sequence's state
// blocks (KvBlockList::state): in their slices `slice`, taken one after the other, from byte
// `offset` on. A span goes on from the state that the token before it left; at position 0 the state
// must be zeros.
struct GatedDeltaArgs {
  kv::KvView kv;
  uint32_t slice;
  size_t offset;  // a multiple of 64, as a slice's size
  std::span<const AttentionSpan> spans;
  DeltaShape shape;
  float* input;          // [rows, shape.input_size()]; all but z is overwritten
  const float* taps;     // [num_taps, num_channels], the token's own last
  const float* rates;    // [num_v_heads], -e^A_log
  const float* dt_bias;  // [num_v_heads]
  const float* norm;     // [v_dim]; of Mamba-2 [value_size]
  float eps;             // of the norm
  float* out;            // [rows, value_size]
  // Null but for Mamba-2.
  const float* conv_bias = nullptr;  // [num_channels]: added to each convolution
  const float* skips = nullptr;      // [num_v_heads]: so much of v is added to a head's output
};

// x[r, i] *= 1 / (1 + e^-gate[r, i]).
struct SigmoidMulArgs {
  const float* gate;  // [rows, gate_stride], k of it used
  uint32_t gate_stride;
  uint32_t rows;
  uint32_t k;
  float* x;  // [rows, k], in and out
};

// The operations of one ISA; a process-wide constant table.
struct Ops {
  Isa isa;
  std::string_view name;  // "avx2"
  // Identifies the order and rounding of every operation; part of numerics_id.
  std::string_view arithmetic;  // "a16.fma.1"

  // out[r, :] = row ids[r] of the [vocab, k] matrix, dequantised. 0 <= ids[r] < n.
  void (*embed)(device::ThreadPool&, const PackedMatrix&, std::span<const int32_t> ids, float* out);
  void (*rms_norm)(device::ThreadPool&, const RmsNormArgs&);
  void (*head_norm)(device::ThreadPool&, const HeadNormArgs&);
  // x[i] *= factor.
  void (*scale)(device::ThreadPool&, float* x, size_t count, float factor);
  // x[i] = cap * tanh(x[i] / cap) with cap > 0, as cap * (1 - 2 / (1 + e^(2 x[i] / cap))). NaN
  // stays NaN.
  void (*softcap)(device::ThreadPool&, float* x, size_t count, float cap);
  // x[i] = max(x[i], 0)^2. NaN stays NaN.
  void (*relu_squared)(device::ThreadPool&, float* x, size_t count);
  void (*quantize_a16)(device::ThreadPool&, const float* x, uint32_t rows, A16View out);
  void (*matmul)(device::ThreadPool&, const MatMulArgs&);
  // out[r, i] = silu(gate_up[r, i]) * gate_up[r, k + i]; gate_up is [rows, 2k].
  void (*silu_mul)(device::ThreadPool&, const float* gate_up, uint32_t rows, uint32_t k,
                   float* out);
  // out[r, i] = gelu(gate_up[r, i]) * gate_up[r, k + i], the tanh form of gelu (Hendrycks and
  // Gimpel, "Gaussian error linear units", 2016).
  void (*gelu_mul)(device::ThreadPool&, const float* gate_up, uint32_t rows, uint32_t k,
                   float* out);
  // out[r, i] = g / (1 + e^(-1.702 g)) * (u + 1), with g = min(gate_up[r, i], 7) and u = gate_up[r,
  // k + i] in [-7, 7]: the gate of gpt-oss. NaN stays NaN.
  void (*clamped_swiglu)(device::ThreadPool&, const float* gate_up, uint32_t rows, uint32_t k,
                         float* out);
  void (*route)(device::ThreadPool&, const RouteArgs&);
  void (*combine)(device::ThreadPool&, const CombineArgs&);
  // x[r, i] += bias[i].
  void (*add_bias)(device::ThreadPool&, float* x, const float* bias, uint32_t rows, uint32_t k);
  // Rotates q in place and stores rotated k and v, rounded to the KV dtype, into the blocks. When
  // a span's last row leaves a block part-full, the unused token slots of that block and layer
  // are zero (so that an earlier owner's KV never crosses a hand-off).
  void (*rope_append)(device::ThreadPool&, const RopeAppendArgs&);
  void (*attention)(device::ThreadPool&, const AttentionArgs&);
  // Stores a row for each token, its key turned, and turns the queries' last elements. Rounds and
  // zeroes as rope_append does.
  void (*latent_append)(device::ThreadPool&, const LatentAppendArgs&);
  // Stores b * x, rounded to the KV dtype, and zeros as rope_append does.
  void (*conv_append)(device::ThreadPool&, const ShortConvArgs&);
  // Reads the stored rows of each row and its predecessors; those before position 0 are zeros.
  void (*short_conv)(device::ThreadPool&, const ShortConvArgs&);
  void (*gated_delta)(device::ThreadPool&, const GatedDeltaArgs&);
  void (*sigmoid_mul)(device::ThreadPool&, const SigmoidMulArgs&);
  // Bytes of AttentionArgs::scratch (64-byte aligned) that suffice for any batch and context.
  size_t (*attention_scratch_bytes)(uint32_t num_threads, uint32_t num_heads, uint32_t num_kv_heads,
                                    uint32_t head_dim);
};

// The table for `isa`; kAuto picks the best that this processor has. FailedPrecondition naming the
// missing processor feature when a forced ISA cannot run here.
absl::StatusOr<const Ops*> OpsFor(Isa isa);
// The scalar reference (fma form); slow; the oracle of tests.
const Ops& ReferenceOps();

absl::StatusOr<Isa> ParseIsa(std::string_view text);  // auto|avx512|avx2|portable

}  // namespace baton::kernels

#endif  // BATON_KERNELS_OPS_H_
