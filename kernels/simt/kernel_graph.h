// KernelGraph: launches that were recorded instead of run, and can be run again and again: what a
// CUDA graph of kernels is on a GPU. Each keeps its parameters as they were; what they point to may
// have changed meanwhile.
//
// A graph records the launches of one operating-system thread at a time; any one thread runs it.
#ifndef BATON_KERNELS_SIMT_KERNEL_GRAPH_H_
#define BATON_KERNELS_SIMT_KERNEL_GRAPH_H_

#include <cstddef>
#include <vector>

#include "kernels/simt/runner_calls.h"

namespace baton::kernels::simt {
inline namespace runner {

// See the file comment.
class KernelGraph {
 public:
  // The launches of this thread go to `graph` from now on; null: they run.
  static void RecordInto(KernelGraph* graph);
  // The graph that the launches of this thread go to, or null.
  static KernelGraph* Recording();

  // Keeps a launch that was checked.
  void Append(const LaunchConfig& config, const calls::KernelCall& call);
  // Runs all of them in order, until one fails: its error.
  absl::Status Run() const;

 private:
  // As aligned as any kernel's parameters are.
  struct alignas(128) Chunk {
    std::byte bytes[128];
  };
  struct Launch {
    LaunchConfig config;
    std::vector<Chunk> parameters;
    size_t size;
    void (*body)(const void* data);
  };

  std::vector<Launch> launches_;
};

}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_KERNEL_GRAPH_H_
