#include "src/device/cuda/green_contexts.h"

#include <algorithm>
#include <string_view>

#include "src/base/log.h"

namespace baton::device {
namespace {

// Numerically smaller is more urgent. The quarter's kernels are short, and a client waits for them
// between two tokens. With this priority they are the first to get what both parts share (copies,
// the launch queues).
constexpr int kQuarterPriority = -1;
constexpr int kMostPriority = 0;

std::string_view NameOf(const GreenTable& driver, CUresult result) {
  const char* name = nullptr;
  if (driver.cuGetErrorName != nullptr) (void)driver.cuGetErrorName(result, &name);
  return name == nullptr ? "unknown" : name;
}

Status FromDriver(const GreenTable& driver, std::string_view what, CUresult result) {
  if (result == CUDA_SUCCESS) return OkStatus();
  return FailedPrecondition("{}: {}", what, NameOf(driver, result));
}

Status CheckComplete(const GreenTable& driver) {
#define BATON_CHECK_FUNCTION(name) \
  if (driver.name == nullptr) return FailedPrecondition("the CUDA driver has no {}", #name);
  BATON_GREEN_FUNCTIONS(BATON_CHECK_FUNCTION)
#undef BATON_CHECK_FUNCTION
  return OkStatus();
}

}  // namespace

uint32_t QuarterOf(uint32_t num_sms, uint32_t min_part, uint32_t alignment) {
  const uint32_t unit = std::max(alignment, 1u);
  const uint32_t part = std::max(num_sms / 4 / unit * unit, std::max(min_part, 1u));
  return num_sms < part + min_part ? 0 : part;
}

Status SmPart::Open(CUdevResource resource, CUdevice device) {
  num_sms_ = resource.sm.smCount;
  CUdevResourceDesc description = nullptr;
  BATON_RETURN_IF_ERROR(FromDriver(driver_, "cuDevResourceGenerateDesc",
                                   driver_.cuDevResourceGenerateDesc(&description, &resource, 1)));
  return FromDriver(
      driver_, "cuGreenCtxCreate",
      driver_.cuGreenCtxCreate(&context_, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
}

SmPart::~SmPart() {
  if (context_ == nullptr) return;
  const CUresult result = driver_.cuGreenCtxDestroy(context_);
  if (result != CUDA_SUCCESS) BATON_LOG_ERROR("cuGreenCtxDestroy: {}", NameOf(driver_, result));
}

StatusOr<CUstream> SmPart::CreateStream() {
  CUstream stream = nullptr;
  const int priority = share_ == SmShare::kQuarter ? kQuarterPriority : kMostPriority;
  const CUresult result =
      driver_.cuGreenCtxStreamCreate(&stream, context_, CU_STREAM_NON_BLOCKING, priority);
  if (result != CUDA_SUCCESS) {
    return Internal("cuGreenCtxStreamCreate: {}", NameOf(driver_, result));
  }
  return stream;
}

void SmPart::DestroyStream(CUstream stream) {
  const CUresult result = driver_.cuStreamDestroy(stream);
  if (result != CUDA_SUCCESS) BATON_LOG_ERROR("cuStreamDestroy: {}", NameOf(driver_, result));
}

StatusOr<SmSplit> SmSplit::Create(const GreenTable& driver, CUdevice device) {
  BATON_RETURN_IF_ERROR(CheckComplete(driver));
  CUdevResource all{};
  BATON_RETURN_IF_ERROR(
      FromDriver(driver, "cuDeviceGetDevResource",
                 driver.cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM)));
  const uint32_t wanted =
      QuarterOf(all.sm.smCount, all.sm.minSmPartitionSize, all.sm.smCoscheduledAlignment);
  if (wanted == 0) {
    return FailedPrecondition("its {} multiprocessors are too few for two parts of at least {}",
                              all.sm.smCount, all.sm.minSmPartitionSize);
  }
  CUdevResource quarter{};
  CUdevResource rest{};
  unsigned int num_groups = 1;
  BATON_RETURN_IF_ERROR(FromDriver(
      driver, "cuDevSmResourceSplitByCount",
      driver.cuDevSmResourceSplitByCount(&quarter, &num_groups, &all, &rest, 0, wanted)));
  if (num_groups != 1 || rest.type != CU_DEV_RESOURCE_TYPE_SM || rest.sm.smCount == 0) {
    return FailedPrecondition("of its {} multiprocessors no {} can be a part of their own",
                              all.sm.smCount, wanted);
  }
  SmSplit split;
  split.num_sms = all.sm.smCount;
  split.most.reset(new SmPart(driver, SmShare::kMost));
  split.quarter.reset(new SmPart(driver, SmShare::kQuarter));
  BATON_RETURN_IF_ERROR(split.most->Open(rest, device));
  BATON_RETURN_IF_ERROR(split.quarter->Open(quarter, device));
  return split;
}

}  // namespace baton::device
