// A CUDA runtime that a test plays: it answers cuda_device.cc as the members below say, and knows
// what was made and not given back. Memory of its GPUs is the process's own.
#ifndef BATON_TESTS_DEVICE_FAKE_CUDART_H_
#define BATON_TESTS_DEVICE_FAKE_CUDART_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace baton::device {

// One machine; a test makes it, and it is the one that the runtime's functions find.
class FakeCudart {
 public:
  FakeCudart();
  ~FakeCudart();
  FakeCudart(const FakeCudart&) = delete;
  FakeCudart& operator=(const FakeCudart&) = delete;

  // Returns the error of a call that can fail, and leaves it for cudaGetLastError.
  cudaError_t Give(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
  }
  size_t allocated_bytes() const;

  int driver_version = CUDART_VERSION;
  int num_gpus = 2;
  int major = 9;
  size_t memory_bytes = size_t{80} << 30;
  size_t max_host_bytes = size_t{1} << 20;  // of one pinned allocation
  bool peers_reach = true;
  bool reads_pageable = false;
  std::map<std::string, void*> driver;  // functions by name
  // The errors that these calls return.
  cudaError_t count_error = cudaSuccess;
  cudaError_t set_device_error = cudaSuccess;
  cudaError_t enable_peer_error = cudaSuccess;
  cudaError_t pin_error = cudaSuccess;
  cudaError_t malloc_error = cudaSuccess;
  cudaError_t work_error = cudaSuccess;    // of copies, waits and queries
  cudaError_t record_error = cudaSuccess;  // of events
  cudaError_t end_capture_error = cudaSuccess;
  cudaError_t instantiate_error = cudaSuccess;
  cudaError_t upload_error = cudaSuccess;

  int current = 0;
  cudaError_t last_error = cudaSuccess;
  std::vector<std::pair<int, int>> reached;  // GPU, its peer
  std::map<void*, size_t> allocated;         // of all GPUs together
  std::map<void*, size_t> pinned;
  int num_registered = 0;
  int num_streams = 0;
  int num_events = 0;
  int num_graphs = 0;  // recorded or instantiated
  int num_waits = 0;   // for streams
};

}  // namespace baton::device

#endif  // BATON_TESTS_DEVICE_FAKE_CUDART_H_
