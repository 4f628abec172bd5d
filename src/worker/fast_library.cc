#include "src/worker/fast_library.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "src/base/library.h"
#include "src/base/log.h"

namespace baton::worker {

namespace cublaslt = kernels::cublaslt;
using device::DeviceKind;
using model::FastMode;

StatusOr<FastMode> FindFastMode(const WorkerConfig& config, DeviceKind kind) {
  const bool has_flag = !config.cublaslt_library.empty();
  // The library that a machine with GPUs has takes their memory and streams only.
  const bool looks_around = kind == DeviceKind::kCuda;
  const char* const variable = std::getenv("BATON_CUBLASLT_LIBRARY");
  const bool is_named = has_flag || (looks_around && variable != nullptr && *variable != '\0');
  if (config.deterministic || !(is_named || looks_around)) return FastMode{};
  StatusOr<cublaslt::CublasLtTable> table = cublaslt::LoadCublasLt(
      {.library = config.cublaslt_library, .python_folders = PythonFolders()});
  if (!table.ok() && is_named) {
    return WithPrefix(table.status(), has_flag ? "--cublaslt-library" : "BATON_CUBLASLT_LIBRARY");
  }
  if (!table.ok()) {
    BATON_LOG_WARN("all products are by our own kernels: {}",
                   std::string(table.status().message()));
    return FastMode{};
  }
  return FastMode{.library = std::make_shared<const cublaslt::CublasLtTable>(*std::move(table)),
                  .plan_folder = config.plan_folder};
}

}  // namespace baton::worker
