// The race detector's memory of who last touched each byte of the arena, in which shared memory
// lies too. A write conflicts with every earlier access that the writer does not know to have
// happened, a read with every such write; two atomics never conflict. Exact: no access is evicted.
// Owned by one operating-system thread, beside its Arena, or guarded as that is.
#ifndef BATON_KERNELS_SIMT_SHADOW_H_
#define BATON_KERNELS_SIMT_SHADOW_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/simt/arena.h"
#include "kernels/simt/clock.h"

namespace baton::kernels::simt {
inline namespace runner {

// Where an access stands in the code: a return address, or an asynchronous copy's call.
using CodeAddress = const void*;

// One access to consecutive bytes.
struct Access {
  const void* address;
  size_t size;
  bool is_write;
  CodeAddress code;
};

// Two accesses to a byte that nothing orders.
struct Conflict {
  const void* address;
  Epoch earlier;
  bool earlier_is_write;
  CodeAddress earlier_code;
};

// A cell for each byte of the arena; pages of cells exist only where something was touched.
class Shadow {
 public:
  explicit Shadow(const Arena& arena);
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  // Forgets all accesses: a launch begins after everything before it in its stream.
  void BeginLaunch();
  // Records the access as `self`; the first conflict with what `known` does not know, if any. The
  // bytes must lie in the arena.
  std::optional<Conflict> Record(const Access& access, Epoch self, const VectorClock& known);
  // The epoch of the last write to the byte in this launch; not set: nobody wrote it.
  Epoch LastWrite(const void* address) const;
  // Forgets the accesses to these bytes: shared memory is given to the next cta.
  void Forget(const void* begin, size_t size);

 private:
  // A byte's last write, and the reads since: one epoch, or bit 0 set and an index into sets_.
  struct Cell {
    uint64_t write;
    uint64_t read;
    CodeAddress write_code;
    uint32_t read_code;  // low half: enough to find the place within one program
    uint32_t launch;
  };
  // Reads of one byte, none of which knew of another.
  struct ReadSet {
    std::vector<uint64_t> epochs;
  };

  std::optional<Conflict> CheckReads(const Cell& cell, Epoch self, const VectorClock& known) const;
  void AddRead(Cell& cell, Epoch self, const VectorClock& known);
  void DropReads(Cell& cell);
  CodeAddress WholeCode(uint32_t low_half) const;

  const Arena& arena_;
  Cell* cells_;  // [Arena::kRangeBytes]
  uint32_t launch_ = 0;
  std::vector<ReadSet> sets_;
  std::vector<uint32_t> free_sets_;
};

}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_SHADOW_H_
