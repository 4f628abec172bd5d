#include "kernels/simt/kernel_graph.h"

#include <cstring>
#include <utility>

#include "src/base/status.h"

namespace baton::kernels::simt {
inline namespace runner {
namespace {

thread_local KernelGraph* recording = nullptr;

}  // namespace

void KernelGraph::RecordInto(KernelGraph* graph) { recording = graph; }

KernelGraph* KernelGraph::Recording() { return recording; }

void KernelGraph::Append(const LaunchConfig& config, const calls::KernelCall& call) {
  Launch launch{config, std::vector<Chunk>((call.size - 1) / sizeof(Chunk) + 1), call.size,
                call.body};
  std::memcpy(launch.parameters.data(), call.data, call.size);
  launches_.push_back(std::move(launch));
}

absl::Status KernelGraph::Run() const {
  for (const Launch& launch : launches_) {
    BATON_RETURN_IF_ERROR(
        calls::Run(launch.config, {launch.parameters.data(), launch.size, launch.body}));
  }
  return absl::OkStatus();
}

}  // namespace runner
}  // namespace baton::kernels::simt
