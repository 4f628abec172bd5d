// The stages of gpu_check, in the order of their numbers. Each is a function with its cases: it
// adds a finding to the report for everything it looked at, and returns Internal only when the
// report cannot be written.
#ifndef BATON_TESTS_KERNELS_GPU_CHECK_STAGES_H_
#define BATON_TESTS_KERNELS_GPU_CHECK_STAGES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cublaslt/cublaslt_library.h"
#include "tests/kernels/gpu_check/device_body.h"
#include "tests/kernels/gpu_check/limits.h"
#include "tests/kernels/gpu_check/report.h"

namespace baton::kernels::gpu_check {

// Programs and libraries of others, where they are not found by themselves; empty: they are looked
// for.
struct ForeignTools {
  std::string cublaslt;   // libcublasLt.so.13
  std::string nccl;       // libnccl.so.2; with the runner a loopback (tests/nccl)
  std::string sanitizer;  // compute-sanitizer
  std::string python;     // python3 of stages 8, which wants torch in it, and 9
  std::string peers;      // torch_peers.py
  // Stage 9: our own product and what asks it; without them it is not run.
  std::string baton;           // a built `baton`
  std::string product_script;  // product_check.py
  std::string models;          // the folder of tests/golden's models
};

// Which kernels stage 2 looks at: all; first those whose copies and products run beside the code
// that asked for them; the others.
enum class KernelList : uint8_t { kAll, kAsynchronous, kOthers };
inline constexpr const char* kAsynchronousKernels = "asynchronous";  // on the command line
inline constexpr const char* kOtherKernels = "others";

// The device that a stage runs on, and how much of the stage is run.
struct StageInput {
  const DeviceBody& body;
  int major;     // compute capability; arithmetic is expected where a model of it is known
                 // (TensorCoreOf)
  bool is_tiny;  // a few values of each kind: for the runner, and under a sanitizer
  MeasuredLimits limits = {};
  ForeignTools tools = {};
  bool other_bytes = false;  // stage 6: the sender writes other ones (a test of the comparison)
  std::string product = {};  // as the driver calls the device
  uint32_t seconds = 0;      // the stage's limit, which somebody else keeps; 0 = not known
  KernelList kernels = KernelList::kAll;
  // Stage 8: what stages 3 and 4 found, to compare with; empty or missing: nothing.
  std::string bandwidth_file = {};
  std::string timings_file = {};
};

// 0: device, driver, and what of the driver API answers. With the runner there is only the runner.
absl::Status CheckMachine(const StageInput& input, Report& report);
// 1: every primitive of kernels/simt against the host's own arithmetic and the model of the tensor
// cores. Outputs are kept, to be committed as goldens.
absl::Status CheckPrimitives(const StageInput& input, Report& report);
// Part of it: tensor copies and wgmma, which has the bits of mma.sync.
absl::Status CheckWgmmaPrimitives(const StageInput& input, Report& report);
// 2: the kernels against kernel_reference.h and attention_reference.h.
absl::Status CheckKernels(const StageInput& input, Report& report);
// Parts of it: the kernels of packed weights; RopeAppend; AttentionPrefill and AttentionDecode; the
// kernels of experts; what ranks on this device exchange; KvGather and KvScatter; Sample against
// the processor's.
absl::Status CheckPackedWeights(const StageInput& input, Report& report);
absl::Status CheckRopeAppend(const StageInput& input, Report& report);
absl::Status CheckShortConv(const StageInput& input, Report& report);
absl::Status CheckDeltaNets(const StageInput& input, Report& report);
// Products that end with rope_append; norms that two products divide.
absl::Status CheckJoinedRopes(const StageInput& input, Report& report);
absl::Status CheckJoinedNorms(const StageInput& input, Report& report);
absl::Status CheckAttentionKernels(const StageInput& input, Report& report);
absl::Status CheckExperts(const StageInput& input, Report& report);
absl::Status CheckExchanges(const StageInput& input, Report& report);
absl::Status CheckKvSlices(const StageInput& input, Report& report);
absl::Status CheckSample(const StageInput& input, Report& report);
// cuBLASLt where `tools` say; errors as LoadCublasLt.
absl::StatusOr<cublaslt::CublasLtTable> FindCublasLt(const ForeignTools& tools);
// 3: what the memory and the tensor cores can do. These are the limits of later stages.
absl::Status CheckBandwidth(const StageInput& input, Report& report);
// Part of it: cuBLASLt at the model's shapes.
absl::Status CheckCublasLt(const StageInput& input, Report& report, MeasuredLimits& limits);
// 4: how long each kernel takes at the shapes of Llama-3.1-8B; of experts, of Qwen3-30B-A3B.
absl::Status CheckTimings(const StageInput& input, Report& report);
// Part of it: sums of ranks that share the device, so without links between them.
absl::Status AddExchangeTimings(const StageInput& input, Report& report);
// 5: a model of that shape with random weights: the same bits however a prompt is computed, and the
// time of a step.
absl::Status CheckModel(const StageInput& input, Report& report);
// Part of it: what bits that do not depend on the batch cost. Prompts by our own kernels and by
// cuBLASLt, whose logits are within the bound.
absl::Status CheckFastMode(const StageInput& input, Report& report);
// Part of it: KV blocks and weights by way of pinned memory of the host.
absl::Status CheckHostMemory(const StageInput& input, Report& report);
// Part of it: what an engine makes of many requests at once, and what it adds to a step of its
// model; two engines on the parts of one device, which hand prompts over, and how much of that is
// waited for.
absl::Status CheckEngines(const StageInput& input, Report& report);
// 6: two processes on one GPU hand KV over, by CUDA IPC and by NCCL.
absl::Status CheckTransport(const StageInput& input, Report& report);
// 7: stage 2's tiny list under the tools of compute-sanitizer, each with a share of the time.
absl::Status CheckSanitizer(const StageInput& input, Report& report);
// 8: the same work by torch, and every kernel of GemmBf16 at every number of rows; our times by
// those of cuBLASLt and torch.
absl::Status CheckPeers(const StageInput& input, Report& report);
// 9: `baton serve` in several ways, whose answers are equal.
absl::Status CheckProduct(const StageInput& input, Report& report);

}  // namespace baton::kernels::gpu_check

#endif  // BATON_TESTS_KERNELS_GPU_CHECK_STAGES_H_
