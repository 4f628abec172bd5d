// A fiber: a stack of its own that this operating-system thread can switch to and back. x86-64 only
// (the switch is written in assembly: 16 ns, against 300 ns of swapcontext with its system call).
#ifndef BATON_KERNELS_SIMT_FIBER_H_
#define BATON_KERNELS_SIMT_FIBER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace baton::kernels::simt {
inline namespace runner {

// A suspended computation: its stack and the stack pointer at which it goes on.
class Fiber {
 public:
  // Entered at the first switch; must not return.
  using Entry = void (*)();

  // Starts afresh on this stack; the address is the highest one, aligned to 16.
  void Reset(std::byte* stack_top, Entry entry);
  // Saves the caller's position in `from` and goes on in this fiber.
  void SwitchFrom(Fiber& from);

 private:
  void* stack_pointer_ = nullptr;
};

// Stacks for fibers, kept for the next launch. Each has an unreadable page below it, so that an
// overflow faults. Owned by one operating-system thread.
class FiberStacks {
 public:
  static constexpr size_t kStackBytes = size_t{64} * 1024;  // at least

  FiberStacks() = default;
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;

  // The highest address of a stack. Stops the process when the system has no memory.
  std::byte* Take();
  void Give(std::byte* stack_top) { free_.push_back(stack_top); }
  // The top of the stack whose bytes or guard page hold this address; null when none does.
  std::byte* TopOf(const void* address) const;

 private:
  std::vector<std::byte*> all_;
  std::vector<std::byte*> free_;
};

}  // namespace runner
}  // namespace baton::kernels::simt

#endif  // BATON_KERNELS_SIMT_FIBER_H_
