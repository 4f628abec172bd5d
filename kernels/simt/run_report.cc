// The report of a failed launch: who waits where, which line an access stands on, and what a fault
// of the processor inside a kernel means.
#include <dlfcn.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>

#include "kernels/simt/run_state.h"
#include "src/base/check.h"

namespace baton::kernels::simt {
inline namespace runner {
namespace {

constexpr size_t kMaxGroups = 16;  // lines of a deadlock's list

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

const char* WarpOpName(WarpOp op) {
  switch (op) {
    case WarpOp::kSync:
      return "sync_warp";
    case WarpOp::kShuffle:
      return "a shuffle";
    case WarpOp::kLoadMatrices:
      return "ldmatrix";
    case WarpOp::kLoadTransposed:
      return "ldmatrix.trans";
    case WarpOp::kMultiply:
      return "mma";
  }
  return "a warp operation";
}

std::string WhatFor(const SimThread& thread) {
  switch (thread.waiting) {
    case Waiting::kNothing:
      return "could go on";
    case Waiting::kSyncBlock:
      return "wait in sync_block, " + DescribeSite(thread.site);
    case Waiting::kWarp:
      return fmt::format("wait in {} of lanes {:#010x}, {}", WarpOpName(thread.warp_op),
                         thread.mask, DescribeSite(thread.site));
    case Waiting::kWarpgroup:
      return "wait for their warpgroup in a wgmma, " + DescribeSite(thread.site);
    case Waiting::kMbarrier:
      return "wait in mbar_wait, " + DescribeSite(thread.site);
    case Waiting::kSpin:
      return "spin, " + DescribeSite(thread.site);
    case Waiting::kReturned:
      return "have returned";
  }
  return "";
}

FaultHandler* active_handler = nullptr;
struct sigaction previous_action;
stack_t previous_stack;

// Where a thread goes on after a fault: on its own stack, from the top.
thread_local const void* fault_address = nullptr;
thread_local const void* fault_code = nullptr;
void GoOnAfterFault() { RunState::Current()->FaultInThread(fault_address, fault_code); }

void OnFault(int signal, siginfo_t* info, void* raw) {
  RunState* run = RunState::Current();
  std::byte* const top = run == nullptr ? nullptr : run->ActiveStackTop();
  if (top == nullptr) {  // not ours: as if there had been no handler
    sigaction(signal, &previous_action, nullptr);
    return;
  }
  auto* context = static_cast<ucontext_t*>(raw);
  fault_address = info->si_addr;
  // One past the instruction, as a return address would be; never read through.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  fault_code = reinterpret_cast<const void*>(context->uc_mcontext.gregs[REG_RIP] + 1);
  context->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(&GoOnAfterFault);
  context->uc_mcontext.gregs[REG_RSP] = reinterpret_cast<greg_t>(top - 8);
}

// "file.cu:31", or the offset in its program where addr2line or the line is missing.
std::string LineOf(const Dl_info& info, const void* code) {
  const auto offset = static_cast<uint64_t>(static_cast<const char*>(code) -
                                            static_cast<const char*>(info.dli_fbase));
  // A return address is one past the call.
  const std::string command =
      fmt::format("addr2line -e '{}' {:#x} 2>/dev/null", info.dli_fname, offset - 1);
  std::string line;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    char buffer[512];
    if (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) line = buffer;
    pclose(pipe);
  }
  line = line.substr(0, line.find_first_of(" \n"));
  const bool is_known = !line.empty() && line[0] != '?';
  return is_known ? BaseName(line) : fmt::format("{}+{:#x}", BaseName(info.dli_fname), offset - 1);
}

}  // namespace

std::string DescribeSite(Site site) {
  return site.line == 0 ? "?" : fmt::format("{}:{}", BaseName(site.file), site.line);
}

std::string DescribeCode(const void* code) {
  // addr2line takes 50 ms and more; tests meet the same lines again and again.
  static thread_local std::unordered_map<const void*, std::string> known;
  Dl_info info = {};
  if (!CurrentRunOptions().locate_code) return "code";
  if (code == nullptr || dladdr(code, &info) == 0) return "?";
  const auto [place, is_new] = known.try_emplace(code);
  if (is_new) place->second = LineOf(info, code);
  return place->second;
}

std::string RunState::NameOf(Epoch epoch) const {
  const uint32_t threads = config_.num_threads;
  const uint32_t slot = epoch.slot();
  const std::string cta = fmt::format(" of cta {}", epoch.cta());
  if (slot < threads) return fmt::format("thread {}", slot) + cta;
  if (slot < 2 * threads)
    return fmt::format("an asynchronous copy by thread {}", slot - threads) + cta;
  const uint32_t first_warpgroup = FirstWarpgroupSlot(threads);
  if (slot >= first_warpgroup)
    return fmt::format("a wgmma of warpgroup {}", slot - first_warpgroup) + cta;
  return fmt::format("a bulk copy on mbarrier {}", slot - 2 * threads) + cta;
}

std::string RunState::WhoWaitsWhere() const {
  std::string text;
  size_t num_groups = 0;
  for (const auto& cta : ctas_) {
    for (size_t first = 0; first < cta->threads.size();) {
      const std::string what = WhatFor(*cta->threads[first]);
      size_t end = first + 1;
      while (end < cta->threads.size() && WhatFor(*cta->threads[end]) == what) ++end;
      if (++num_groups <= kMaxGroups) {
        text += fmt::format("{}cta {} threads {}..{} {}", text.empty() ? "" : "; ", cta->id, first,
                            end - 1, what);
      }
      first = end;
    }
  }
  if (num_groups > kMaxGroups) text += fmt::format("; and {} groups more", num_groups - kMaxGroups);
  return text;
}

std::byte* RunState::ActiveStackTop() const {
  return active_ == nullptr ? nullptr : active_->stack_top;
}

void RunState::FaultInThread(const void* address, const void* code) {
  const auto* at = static_cast<const std::byte*>(address);
  if (arena_.Contains(address)) {
    Fail("bounds", fmt::format("{} touches {}", DescribeCode(code), arena_.Describe(address)));
  }
  if (stacks_.TopOf(at) != nullptr) {
    Fail("bounds", fmt::format("{} overflows the stack of {} bytes", DescribeCode(code),
                               FiberStacks::kStackBytes));
  }
  Fail("bounds", fmt::format("{} touches {}, which is no memory", DescribeCode(code), address));
}

FaultHandler::FaultHandler() {
  // Signal handlers belong to the process: launches of two operating-system threads at once are
  // not supported, and would race here.
  BATON_CHECK(active_handler == nullptr, "the runner is already in use");
  active_handler = this;
  static thread_local char alternate[size_t{64} * 1024];
  stack_t stack = {};
  stack.ss_sp = alternate;
  stack.ss_size = sizeof(alternate);
  BATON_CHECK(sigaltstack(&stack, &previous_stack) == 0, "no stack for the fault handler");
  struct sigaction action = {};
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  BATON_CHECK(sigaction(SIGSEGV, &action, &previous_action) == 0, "no fault handler");
}

FaultHandler::~FaultHandler() {
  sigaction(SIGSEGV, &previous_action, nullptr);
  // A thread's own stack for signals, a sanitizer's for one, is given back with the thread.
  sigaltstack(&previous_stack, nullptr);
  active_handler = nullptr;
}

}  // namespace runner
}  // namespace baton::kernels::simt
