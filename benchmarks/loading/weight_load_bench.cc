// How fast a model's weights reach a device, and who waits for whom: from a cold file past the page
// cache, from a cold file through its mapping, and from the page cache. The device is the runner's,
// whose memory is the host's: its link is a memcpy. One JSON line a run.
//
//   weight_load_bench MODEL THREADS [ROUNDS]
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "src/base/log.h"
#include "src/base/unique_fd.h"
#include "src/model/compute_device.h"
#include "src/model/device_weights.h"
#include "src/model/hf_folder.h"
#include "src/model/weight_loader.h"

namespace baton::model {

using device::DeviceKind;
using device::ThreadPool;

namespace {

// How the file lies when a run begins, and how it is read.
enum class Source : uint8_t { kDirect, kMappingCold, kPageCache };

const char* NameOf(Source source) {
  switch (source) {
    case Source::kDirect:
      return "direct";
    case Source::kMappingCold:
      return "mapping_cold";
    case Source::kPageCache:
      return "page_cache";
  }
  return "";
}

TensorReaderOptions ReaderOf(Source source) {
  TensorReaderOptions options = {.uses_page_cache = false};
  if (source == Source::kDirect) return options;
  options.open_queue = []() -> absl::StatusOr<std::unique_ptr<ReadQueue>> {
    return FailedPrecondition("the benchmark wants the mapping");
  };
  return options;
}

// Puts the file into the page cache or takes it out.
void Prepare(const GgufFile& file, Source source) {
  std::vector<char> bytes(size_t{8} << 20);
  for (const FileMapping* mapping : file.mappings()) {
    const UniqueFd fd(::open(mapping->identity().path.c_str(), O_RDONLY | O_CLOEXEC));
    (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    if (source != Source::kPageCache) continue;
    while (::read(fd.get(), bytes.data(), bytes.size()) > 0) {
    }
  }
}

Status RunOnce(const std::string& path, Source source, bool keeps_packed, ThreadPool& pool) {
  // Pages that are mapped stay in the cache, so each run maps the file anew.
  {
    BATON_ASSIGN_OR_RETURN(const auto file, OpenModelFile(path));
    Prepare(*file, source);
  }
  BATON_ASSIGN_OR_RETURN(const auto file, OpenModelFile(path));
  Prepare(*file, source);
  BATON_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(*file));
  BATON_ASSIGN_OR_RETURN(const TensorPlan plan, PlanTensors(*file, config));
  BATON_ASSIGN_OR_RETURN(const ComputeDevice device, OpenComputeDevice(DeviceKind::kSimt));
  WeightParts parts;
  BATON_ASSIGN_OR_RETURN(const DeviceWeights weights,
                         DeviceWeights::Allocate(plan,
                                                 {.config = &config,
                                                  .rank = {},
                                                  .keeps_packed = keeps_packed,
                                                  .device = device.accelerator.get()},
                                                 parts));
  BATON_ASSIGN_OR_RETURN(
      const UploadedWeights uploaded,
      UploadWeights(
          *file, config, parts,
          {.devices = {device.accelerator.get()}, .pool = &pool, .reader = ReaderOf(source)}));
  const WeightLoadReport& report = uploaded.report;
  fmt::print(
      "{{\"source\": \"{}\", \"packed\": {}, \"threads\": {}, \"file_bytes\": {}, "
      "\"direct_bytes\": "
      "{}, \"device_bytes\": {}, \"seconds\": {:.4f}, \"file_wait_s\": {:.4f}, \"link_wait_s\": "
      "{:.4f}, \"file_gb_per_s\": {:.3f}}}\n",
      NameOf(source), keeps_packed, pool.num_threads(), report.file_bytes, report.direct_bytes,
      report.device_bytes, report.seconds, report.file_wait_seconds, report.link_wait_seconds,
      static_cast<double>(report.file_bytes) / 1e9 / report.seconds);
  return OkStatus();
}

int Main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: weight_load_bench MODEL THREADS [ROUNDS]\n");
    return 2;
  }
  ThreadPool pool(static_cast<uint32_t>(std::atoi(argv[2])));
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 3;
  for (int round = 0; round < rounds; ++round) {
    for (const bool keeps_packed : {true, false}) {
      for (const Source source : {Source::kDirect, Source::kMappingCold, Source::kPageCache}) {
        const Status status = RunOnce(argv[1], source, keeps_packed, pool);
        if (status.ok()) continue;
        fmt::print(stderr, "{}\n", std::string(status.message()));
        return 1;
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace baton::model

int main(int argc, char** argv) { return baton::model::Main(argc, argv); }
