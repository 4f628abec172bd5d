// Packed weights that the workers of one server keep once, in memory that their processes share:
// what a worker is handed for it, and what came of it. Plain values.
#ifndef BATON_MODEL_SHARED_WEIGHTS_H_
#define BATON_MODEL_SHARED_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace baton::model {

// The memory file of one model (device::SharedSlots::CreateFile).
struct SharedWeights {
  int fd = -1;                   // stays the caller's; -1 = each process packs its own
  bool needs_huge_pages = true;  // else small pages do too
  int64_t patience_us = 0;       // for one step of another process; 0 = by the size of the model
};

// Where a process has the packed weights of its model.
struct SharingReport {
  uint64_t shared_bytes = 0;  // of the memory file; 0 = all memory is the process's own
  uint64_t huge_bytes = 0;    // of these, on huge pages
  size_t num_matrices = 0;
  size_t num_packed = 0;    // by this process
  size_t num_waited = 0;    // of these, packed in own memory: another process took too long
  double seconds = 0;       // packing, waiting and hashing
  std::string why_private;  // "" = shared, or nobody asked for it

  // "packed 61 of 121 matrices in 0.12 s, in 94 MiB that the workers share (94 MiB on huge pages)".
  std::string Text() const;
};

}  // namespace baton::model

#endif  // BATON_MODEL_SHARED_WEIGHTS_H_
