#include "src/cli/doctor/gpu_facts.h"

#include <algorithm>
#include <array>

#include "nlohmann/json.hpp"

namespace baton::cli {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 6> kPathNames = {
    "one board",       "one PCIe switch", "several PCIe switches",
    "one host bridge", "one NUMA node",   "several NUMA nodes"};

void ReadGpus(const json& root, GpuFacts* facts) {
  for (const json& row : root.at("gpus")) {
    facts->gpus.push_back({.name = row.at("name").get<std::string>(),
                           .memory_bytes = row.at("memory_bytes").get<uint64_t>(),
                           .major = row.at("major").get<int>(),
                           .minor = row.at("minor").get<int>(),
                           .num_nvlinks = row.at("nvlinks").get<int>()});
  }
  for (const json& row : root.at("pairs")) {
    const auto path = std::min<size_t>(row.at("path").get<size_t>(), kPathNames.size() - 1);
    facts->pairs.push_back({.first = row.at("first").get<int>(),
                            .second = row.at("second").get<int>(),
                            .path = static_cast<GpuPath>(path)});
  }
}

}  // namespace

std::string_view GpuPathName(GpuPath path) { return kPathNames[static_cast<size_t>(path)]; }

std::string WriteGpuReport(const GpuFacts& facts) {
  json root = {{"driver_error", facts.driver_error},
               {"cuda_version", facts.cuda_version},
               {"nvml_error", facts.nvml_error},
               {"nccl_error", facts.nccl_error},
               {"nccl_version", facts.nccl_version},
               {"gpus", json::array()},
               {"pairs", json::array()}};
  for (const GpuFact& gpu : facts.gpus) {
    root["gpus"].push_back({{"name", gpu.name},
                            {"memory_bytes", gpu.memory_bytes},
                            {"major", gpu.major},
                            {"minor", gpu.minor},
                            {"nvlinks", gpu.num_nvlinks}});
  }
  for (const GpuPair& pair : facts.pairs) {
    root["pairs"].push_back(
        {{"first", pair.first}, {"second", pair.second}, {"path", static_cast<size_t>(pair.path)}});
  }
  return root.dump(-1, ' ', false, json::error_handler_t::replace);
}

Status ReadGpuReport(std::string_view text, GpuFacts* facts) {
  try {
    const json root = json::parse(text);
    facts->driver_error = root.at("driver_error").get<std::string>();
    facts->cuda_version = root.at("cuda_version").get<int>();
    facts->nvml_error = root.at("nvml_error").get<std::string>();
    facts->nccl_error = root.at("nccl_error").get<std::string>();
    facts->nccl_version = root.at("nccl_version").get<int>();
    ReadGpus(root, facts);
  } catch (const json::exception& error) {
    return DataLoss("the report of the GPU probe is damaged: {}", error.what());
  }
  return OkStatus();
}

}  // namespace baton::cli
