// MemoryMeter: the most heap memory that a piece of code held at once. A test binary that links
// memory_meter.cc counts every operator new. One thread.
#ifndef BATON_TESTS_MODEL_MEMORY_METER_H_
#define BATON_TESTS_MODEL_MEMORY_METER_H_

#include <cstddef>
#include <cstdint>

namespace baton::model {

// Measures from its construction.
class MemoryMeter {
 public:
  MemoryMeter();
  // Largest number of bytes held above the amount at construction.
  size_t PeakBytes() const;
  // Calls of operator new since construction.
  uint64_t NumAllocations() const;

 private:
  size_t start_bytes_;
  uint64_t start_allocations_;
};

}  // namespace baton::model

#endif  // BATON_TESTS_MODEL_MEMORY_METER_H_
