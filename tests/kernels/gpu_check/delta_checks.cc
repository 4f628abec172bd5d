// Gated delta nets: outputs, states and copies with the bits of the processor's operation.
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/delta_reference.h"
#include "src/base/status.h"
#include "tests/kernels/gpu_check/device_array.h"
#include "tests/kernels/gpu_check/differences.h"
#include "tests/kernels/gpu_check/stages.h"
#include "tests/kernels/simt/device_values.h"

namespace baton::kernels::gpu_check {
namespace {

using cuda::Bf16;
using cuda::DeltaDims;
using cuda::DeltaParams;
using cuda::DeltaSpan;
using cuda::kPaddingRow;
using kv::KvLayout;
using simt_test::RandomBf16;
using simt_test::RandomFloats;

struct DeltaCase {
  const char* name;
  DeltaDims dims;
  uint32_t num_kv_heads;         // of attention, which decides the slices
  std::vector<DeltaSpan> spans;  // rows without gaps; two rows of padding follow
};

// The batch on the host. States are those of consecutive blocks, copies those after all states.
struct DeltaBatch {
  explicit DeltaBatch(const DeltaCase& c) : spans(c.spans) {
    layout.encoding = kv::KvEncoding::kPlain;
    layout.num_layers = 1;
    layout.num_kv_heads = c.num_kv_heads;
    layout.head_dim = 256;
    const auto slice_bytes = static_cast<uint32_t>(layout.SliceBytes());
    const uint32_t num_state_blocks = (c.dims.state_bytes() - 1) / slice_bytes + 1;
    const auto num_spans = static_cast<uint32_t>(spans.size());
    for (uint32_t i = 0; i < num_spans * num_state_blocks; ++i) {
      states.push_back(i);
      copies.push_back(num_spans * num_state_blocks + i);
    }
    num_blocks = static_cast<uint32_t>(states.size() + copies.size());
    for (uint32_t i = 0; i < num_spans; ++i) {
      row_spans.insert(row_spans.end(), spans[i].num_rows, i);
      spans[i].copy = i;
    }
    row_spans.insert(row_spans.end(), 2, kPaddingRow);
    const size_t rows = row_spans.size();
    x = RandomBf16(rows * c.dims.num_channels(), 41);
    z = RandomBf16(rows * c.dims.value_size(), 42);
    gates = RandomFloats(rows * 2 * c.dims.num_v_heads, 43, 1.3f);
    taps = RandomFloats(size_t{c.dims.num_channels()} * c.dims.num_taps, 44, 0.37f);
    rates = RandomFloats(c.dims.num_v_heads, 45, 1.0f);
    for (float& rate : rates) rate = rate < 0 ? rate - 0.05f : -rate - 0.05f;
    dt_bias = RandomFloats(c.dims.num_v_heads, 46, 1.0f);
    norm = RandomFloats(c.dims.v_dim, 47, 0.7f);
    arena = RandomFloats(num_blocks * layout.BlockStride() / sizeof(float), 48, 0.4f);
    params = {.x = x.data(),
              .z = z.data(),
              .gates = gates.data(),
              .taps = taps.data(),
              .rates = rates.data(),
              .dt_bias = dt_bias.data(),
              .norm = norm.data(),
              .spans = spans.data(),
              .row_spans = row_spans.data(),
              .states = states.data(),
              .copies = copies.data(),
              .broken = nullptr,
              .inputs = nullptr,
              .out = nullptr,
              .state = {nullptr, layout.BlockStride(), slice_bytes, 0},
              .dims = c.dims,
              .num_rows = static_cast<uint32_t>(rows),
              .num_spans = num_spans,
              .num_state_blocks = num_state_blocks,
              .eps = 1e-6f};
  }
  DeltaBatch(const DeltaBatch&) = delete;
  DeltaBatch& operator=(const DeltaBatch&) = delete;

  KvLayout layout;
  uint32_t num_blocks = 0;
  std::vector<DeltaSpan> spans;
  std::vector<uint32_t> row_spans;
  std::vector<uint32_t> states;
  std::vector<uint32_t> copies;
  std::vector<Bf16> x;
  std::vector<Bf16> z;
  std::vector<float> gates;
  std::vector<float> taps;
  std::vector<float> rates;
  std::vector<float> dt_bias;
  std::vector<float> norm;
  std::vector<float> arena;
  DeltaParams params;
};

absl::Status CheckNet(const DeviceBody& body, const DeltaCase& c) {
  const DeltaBatch batch(c);
  DeltaParams params = batch.params;
  const size_t out_size = batch.z.size();
  DeviceArray<Bf16> x(body, batch.x);
  DeviceArray<Bf16> z(body, batch.z);
  DeviceArray<float> gates(body, batch.gates);
  DeviceArray<float> taps(body, batch.taps);
  DeviceArray<float> rates(body, batch.rates);
  DeviceArray<float> dt_bias(body, batch.dt_bias);
  DeviceArray<float> norm(body, batch.norm);
  DeviceArray<DeltaSpan> spans(body, batch.spans);
  DeviceArray<uint32_t> row_spans(body, batch.row_spans);
  DeviceArray<uint32_t> states(body, batch.states);
  DeviceArray<uint32_t> copies(body, batch.copies);
  DeviceArray<uint32_t> broken(body, std::vector<uint32_t>(batch.spans.size()));
  DeviceArray<float> inputs(body, batch.x.size());
  DeviceArray<Bf16> out(body, out_size);
  DeviceArray<float> arena(body, batch.arena);
  BATON_RETURN_IF_ERROR(FirstFailure(x, z, gates, taps, rates, dt_bias, norm, spans, row_spans,
                                     states, copies, broken, inputs, out, arena));
  params.x = x.data();
  params.z = z.data();
  params.gates = gates.data();
  params.taps = taps.data();
  params.rates = rates.data();
  params.dt_bias = dt_bias.data();
  params.norm = norm.data();
  params.spans = spans.data();
  params.row_spans = row_spans.data();
  params.states = states.data();
  params.copies = copies.data();
  params.broken = broken.data();
  params.inputs = inputs.data();
  params.out = out.data();
  params.state.base = reinterpret_cast<std::byte*>(arena.data());
  BATON_RETURN_IF_ERROR(body.kernels().delta_inputs(params, nullptr));
  BATON_RETURN_IF_ERROR(body.kernels().delta_scan(params, nullptr));
  BATON_RETURN_IF_ERROR(body.kernels().delta_gate(params, nullptr));
  const std::vector<Bf16> got = out.Values();
  BATON_RETURN_IF_ERROR(out.status());
  const std::vector<float> got_arena = arena.Values();
  BATON_RETURN_IF_ERROR(arena.status());

  std::vector<Bf16> expected(out_size, Bf16{0xFFFF});  // memory that nobody wrote
  std::vector<float> expected_arena = batch.arena;
  std::vector<uint32_t> expected_broken(batch.spans.size());
  DeltaParams host = batch.params;
  host.broken = expected_broken.data();
  host.out = expected.data();
  host.state.base = reinterpret_cast<std::byte*>(expected_arena.data());
  cuda::ReferenceDeltaNet(host, {{host.state.base, &batch.layout, batch.num_blocks}, 0});
  BATON_RETURN_IF_ERROR(ExpectSameBits("outputs", got, expected));
  return ExpectSameBits("states", got_arena, expected_arena);
}

}  // namespace

absl::Status CheckDeltaNets(const StageInput& input, Report& report) {
  const std::vector<DeltaCase> tiny = {
      {"delta_net 64", {1, 2, 64, 48, 4}, 1, {{0, 3, 7, 2, 0}, {3, 1, 0, 1, 0}}}};
  // Qwen3.5-0.8B; and as many heads as 27B has, of a shorter prompt.
  const std::vector<DeltaCase> full = {
      {"delta_net 128",
       {16, 16, 128, 128, 4},
       2,
       {{0, 1, 5, 0, 0}, {1, 64, 0, 48, 0}, {65, 7, 31, 7, 0}}},
      {"delta_net 64", {2, 4, 64, 64, 3}, 2, {{0, 40, 0, 16, 0}, {40, 1, 9, 0, 0}}},
      {"delta_net 128 27B", {16, 48, 128, 128, 4}, 4, {{0, 9, 0, 8, 0}, {9, 1, 3, 1, 0}}}};
  for (const DeltaCase& c : input.is_tiny ? tiny : full) {
    if (!report.Begin(c.name)) continue;
    auto spans = nlohmann::json::array();
    for (const DeltaSpan& span : c.spans) {
      spans.push_back({span.position, span.num_rows, span.copy_rows});
    }
    const absl::Status status =
        OfCase(CheckNet(input.body, c),
               {{"k_heads", c.dims.num_k_heads},
                {"v_heads", c.dims.num_v_heads},
                {"k_dim", c.dims.k_dim},
                {"v_dim", c.dims.v_dim},
                {"num_taps", c.dims.num_taps},
                {"spans", std::move(spans)},
                {"inputs", "DeltaBatch of delta_checks.cc: RandomBf16, seeds 41 to 48"}});
    BATON_RETURN_IF_ERROR(report.Add(OutcomeOf(
        c.name, status,
        fmt::format("{} heads of {} x {}", c.dims.num_v_heads, c.dims.k_dim, c.dims.v_dim))));
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::gpu_check
