// SmPart: a part of a GPU's streaming multiprocessors, by the driver's green contexts (CUDA driver
// API, "Green Contexts"): kernels in a stream of a part run on its multiprocessors and on no
// others, whatever runs beside them. Memory is the primary context's, and every part reaches all of
// it.
//
// The driver's functions are found at run time; older drivers lack them.
#ifndef BATON_DEVICE_CUDA_GREEN_CONTEXTS_H_
#define BATON_DEVICE_CUDA_GREEN_CONTEXTS_H_

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "src/base/status.h"

namespace baton::device {

// X(name): the functions that are used.
#define BATON_GREEN_FUNCTIONS(X) \
  X(cuDevResourceGenerateDesc)   \
  X(cuDevSmResourceSplitByCount) \
  X(cuDeviceGetDevResource)      \
  X(cuGetErrorName)              \
  X(cuGreenCtxCreate)            \
  X(cuGreenCtxDestroy)           \
  X(cuGreenCtxStreamCreate)      \
  X(cuStreamDestroy)

// Under their own names; null where the driver has none.
struct GreenTable {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declarator
#define BATON_DECLARE(name) decltype(&::name) name = nullptr;
  BATON_GREEN_FUNCTIONS(BATON_DECLARE)
#undef BATON_DECLARE
};

// Which part of two.
enum class SmShare : uint8_t {
  kMost = 0,     // for work that the multiprocessors bind: prompts
  kQuarter = 1,  // for work that memory binds: tokens one by one
};

// See the file comment. One thread at a time; its streams are for any.
class SmPart {
 public:
  ~SmPart();
  SmPart(const SmPart&) = delete;
  SmPart& operator=(const SmPart&) = delete;

  uint32_t num_sms() const { return num_sms_; }
  // An in-order stream of this part, to be destroyed by it before the part is. Internal when the
  // driver refuses.
  StatusOr<CUstream> CreateStream();
  void DestroyStream(CUstream stream);

 private:
  friend struct SmSplit;
  SmPart(const GreenTable& driver, SmShare share) : driver_(driver), share_(share) {}
  Status Open(CUdevResource resource, CUdevice device);

  const GreenTable driver_;
  const SmShare share_;
  uint32_t num_sms_ = 0;
  CUgreenCtx context_ = nullptr;
};

// The two parts of a GPU; disjoint.
struct SmSplit {
  uint32_t num_sms = 0;  // of the GPU
  std::unique_ptr<SmPart> most;
  std::unique_ptr<SmPart> quarter;

  // `device` is the ordinal; its primary context is active. FailedPrecondition naming what the
  // driver or the GPU lacks: then nothing is divided.
  static StatusOr<SmSplit> Create(const GreenTable& driver, CUdevice device);
};

// Multiprocessors of the smaller part of `num_sms`: a quarter, in whole units of `alignment`, at
// least `min_part`; 0 when the rest would be smaller than `min_part`.
uint32_t QuarterOf(uint32_t num_sms, uint32_t min_part, uint32_t alignment);

}  // namespace baton::device

#endif  // BATON_DEVICE_CUDA_GREEN_CONTEXTS_H_
