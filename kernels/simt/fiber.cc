#include "kernels/simt/fiber.h"

#include <sys/mman.h>

#include <cstring>

#include "src/base/check.h"

// void baton_simt_switch(void** save, void* load): pushes what the System V ABI lets a caller
// expect to survive, swaps stacks, pops. The control words of x87 and SSE stay: nobody switches
// while they are others (tensor_core.cc).
asm(R"(
  .text
  .globl baton_simt_switch
  .type baton_simt_switch, @function
baton_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size baton_simt_switch, . - baton_simt_switch
)");
extern "C" void baton_simt_switch(void** save, void* load);

namespace baton::kernels::simt {
inline namespace runner {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kGuardBytes = kPageBytes;
// The lines of a page. Stacks that all began at the same one would share the few places of a cache
// that such lines have. A waiting thread uses about five lines. 5 and the lines of a page have no
// common factor, so that 64 stacks begin at all of them.
constexpr size_t kLineBytes = 64;
constexpr size_t kColours = kPageBytes / kLineBytes;
constexpr size_t kLinesInUse = 5;
constexpr size_t kMappedBytes = FiberStacks::kStackBytes + kGuardBytes + kPageBytes;

// The part below the top of the `index`-th stack, in the bytes that are mapped for it.
size_t BytesBelow(size_t index) {
  return kMappedBytes - index * kLinesInUse % kColours * kLineBytes;
}

}  // namespace

void Fiber::Reset(std::byte* stack_top, Entry entry) {
  // From the top: a null return address, the entry that `ret` takes, six registers. At the entry
  // the stack pointer is 8 below a multiple of 16, as after a call.
  constexpr size_t kWords = 8;
  uint64_t frame[kWords] = {};
  frame[6] = reinterpret_cast<uint64_t>(entry);
  std::byte* at = stack_top - sizeof(frame);
  std::memcpy(at, frame, sizeof(frame));
  stack_pointer_ = at;
}

void Fiber::SwitchFrom(Fiber& from) { baton_simt_switch(&from.stack_pointer_, stack_pointer_); }

FiberStacks::~FiberStacks() {
  for (size_t i = 0; i < all_.size(); ++i) munmap(all_[i] - BytesBelow(i), kMappedBytes);
}

std::byte* FiberStacks::Take() {
  if (!free_.empty()) {
    std::byte* top = free_.back();
    free_.pop_back();
    return top;
  }
  void* base = mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  BATON_CHECK(base != MAP_FAILED, "no memory for stack {} of the runner", all_.size());
  BATON_CHECK(mprotect(base, kGuardBytes, PROT_NONE) == 0, "no guard page for a stack");
  all_.push_back(static_cast<std::byte*>(base) + BytesBelow(all_.size()));
  return all_.back();
}

std::byte* FiberStacks::TopOf(const void* address) const {
  for (size_t i = 0; i < all_.size(); ++i) {
    if (address < all_[i] && address >= all_[i] - BytesBelow(i)) return all_[i];
  }
  return nullptr;
}

}  // namespace runner
}  // namespace baton::kernels::simt
