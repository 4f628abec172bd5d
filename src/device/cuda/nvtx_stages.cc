#include "src/device/cuda/nvtx_stages.h"

#include <nvtx3/nvToolsExt.h>

#include <array>

namespace baton::device {
namespace {

// Names are registered once, so that a range copies none.
class NvtxSink final : public StageSink {
 public:
  explicit NvtxSink(nvtxDomainHandle_t domain) : domain_(domain) {
    for (size_t i = 0; i < names_.size(); ++i) {
      names_[i] = nvtxDomainRegisterStringA(domain_, kStepStageNames[i]);
    }
  }

  void Begin(StepStage stage) override {
    nvtxEventAttributes_t event = {};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = names_[static_cast<size_t>(stage)];
    (void)nvtxDomainRangePushEx(domain_, &event);
  }
  void End() override { (void)nvtxDomainRangePop(domain_); }

 private:
  const nvtxDomainHandle_t domain_;
  std::array<nvtxStringHandle_t, kStepStageNames.size()> names_;
};

}  // namespace

StageSink* NvtxStages() {
  static StageSink* const stages = []() -> StageSink* {
    const nvtxDomainHandle_t domain = nvtxDomainCreateA("baton");
    return domain == nullptr ? nullptr : new NvtxSink(domain);  // until the process ends
  }();
  return stages;
}

}  // namespace baton::device
