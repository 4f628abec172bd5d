// Measures how fast a core changes hands between two workers of one core budget.
//
//   core_lend_bench [--samples=2000] [--json=FILE]    prints a table; half a minute, two processors
//
// A lender and a borrower are two processes, as prefill and decode workers are; each has one core
// of the budget. The borrower computes one region after another, in items of a fixed length. For
// each sample the lender begins a step, computes for some 250 us, and ends its steps. Then it
// sleeps, so that its processor is free. Two times are taken for each length of an item:
//   lent      from the lender's call of EndSteps until a thread of the borrower begins an item on
//             the lent core
//   returned  from the lender's next call of BeginStep until it has its core back, which includes
//             the rest of the borrower's item
// Percentiles are of the raw samples. A sample whose core was not used within a second, or was
// seized after 0.1 s, is counted and stays in.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fmt/format.h"

#include "src/base/check.h"
#include "src/base/cpus.h"
#include "src/device/core_share.h"
#include "src/device/thread_pool.h"

namespace baton::device {
namespace {

constexpr uint32_t kLender = 0;
constexpr uint32_t kBorrower = 1;
constexpr uint32_t kItemsOfRegion = 32;
constexpr int64_t kItemsNs[] = {5'000, 20'000, 100'000};
constexpr int64_t kNsPerUs = 1'000;
constexpr int64_t kStepNs = 200'000;
constexpr uint32_t kStepJitterNs = 100'000;
constexpr auto kRest = std::chrono::milliseconds(2);
constexpr int64_t kPatienceNs = 1'000'000'000;
constexpr int64_t kStartPatienceNs = 10'000'000'000;
constexpr uint32_t kMaxSamples = 1'000'000;

// Memory that both processes share.
struct Board {
  alignas(64) std::atomic<bool> is_ready{false};    // the borrower computes
  alignas(64) std::atomic<int64_t> item_ns{0};      // length of its items
  alignas(64) std::atomic<bool> is_awaited{false};  // the lender has ended its steps
  alignas(64) std::atomic<int64_t> begun_ns{0};     // first item on the lent core since then
};

// The times with items of one length.
struct Times {
  int64_t item_ns = 0;
  std::vector<int64_t> lent_ns;
  std::vector<int64_t> returned_ns;
  uint32_t num_unused = 0;
  uint64_t num_seized = 0;
};

// The values of the command line.
struct Options {
  uint32_t num_samples = 2'000;
  std::string json;
};

// CLOCK_MONOTONIC, which is one clock for all processes.
int64_t NowNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void ComputeFor(int64_t ns) {
  const int64_t end_ns = NowNs() + ns;
  while (NowNs() < end_ns) {
  }
}

std::unique_ptr<CoreShare> AttachTo(const CoreBudget& budget, uint32_t member) {
  auto share = CoreShare::Attach(budget.fd(), member);
  BATON_CHECK(share.ok(), "member {}: {}", member, share.status().ToString());
  return *std::move(share);
}

// Its caller is thread 0 on the borrower's own core, so thread 1 sits on the lender's.
[[noreturn]] void BeBorrower(const CoreBudget& budget, Board* board) {
  const std::unique_ptr<CoreShare> share = AttachTo(budget, kBorrower);
  ThreadPool pool({.num_threads = share->max_cores(), .cores = share.get()});
  for (;;) {
    share->BeginStep();
    pool.Run(kItemsOfRegion, [&](uint32_t, uint32_t thread_idx) {
      if (thread_idx != 0 && board->is_awaited.exchange(false)) board->begun_ns = NowNs();
      ComputeFor(board->item_ns);
    });
    board->is_ready = true;
  }
}

// Sleeps until `is_done`; false when that takes longer than `patience_ns`.
template <typename Done>
bool RestUntil(int64_t patience_ns, const Done& is_done) {
  const int64_t end_ns = NowNs() + patience_ns;
  while (!is_done()) {
    if (NowNs() > end_ns) return false;
    std::this_thread::sleep_for(kRest);
  }
  return true;
}

Times Measure(CoreShare& share, Board* board, int64_t item_ns, uint32_t num_samples) {
  Times times{.item_ns = item_ns};
  std::mt19937 random(1);
  const uint64_t seized_before = share.Stats().num_seized;
  board->item_ns = item_ns;
  for (uint32_t i = 0; i < num_samples; ++i) {
    const int64_t asked_ns = NowNs();
    share.BeginStep();
    times.returned_ns.push_back(NowNs() - asked_ns);
    ComputeFor(kStepNs + random() % kStepJitterNs);
    board->begun_ns = 0;
    board->is_awaited = true;
    const int64_t ended_ns = NowNs();
    share.EndSteps();
    std::this_thread::sleep_for(kRest);
    const bool is_used = RestUntil(kPatienceNs, [&] { return board->begun_ns != 0; });
    times.num_unused += is_used ? 0 : 1;
    board->is_awaited = false;
    times.lent_ns.push_back((is_used ? board->begun_ns.load() : NowNs()) - ended_ns);
  }
  // The core may have been free before the first sample.
  times.returned_ns.erase(times.returned_ns.begin());
  times.num_seized = share.Stats().num_seized - seized_before;
  std::sort(times.lent_ns.begin(), times.lent_ns.end());
  std::sort(times.returned_ns.begin(), times.returned_ns.end());
  return times;
}

// The smallest value that a share of all do not exceed, in us; of sorted values.
double QuantileUs(const std::vector<int64_t>& sorted_ns, double share) {
  const auto rank = static_cast<size_t>(share * static_cast<double>(sorted_ns.size()) + 0.999999);
  const size_t at = std::min(std::max<size_t>(rank, 1), sorted_ns.size()) - 1;
  return static_cast<double>(sorted_ns[at]) / kNsPerUs;
}

void PrintRow(std::string_view name, int64_t item_ns, const std::vector<int64_t>& sorted_ns) {
  fmt::print("{:<9} {:>7} us {:>8} {:>9.1f} {:>9.1f} {:>9.1f}\n", name, item_ns / kNsPerUs,
             sorted_ns.size(), QuantileUs(sorted_ns, 0.5), QuantileUs(sorted_ns, 0.99),
             QuantileUs(sorted_ns, 1));
}

std::string JsonOf(const std::vector<int64_t>& sorted_ns) {
  std::string samples;
  for (const int64_t ns : sorted_ns) {
    samples +=
        fmt::format("{}{:.1f}", samples.empty() ? "" : ",", static_cast<double>(ns) / kNsPerUs);
  }
  return fmt::format(R"({{"p50":{:.1f},"p99":{:.1f},"max":{:.1f},"samples":[{}]}})",
                     QuantileUs(sorted_ns, 0.5), QuantileUs(sorted_ns, 0.99),
                     QuantileUs(sorted_ns, 1), samples);
}

std::string LoadJson() {
  double loads[3] = {};
  if (::getloadavg(loads, 3) != 3) return "null";
  return fmt::format("[{:.2f},{:.2f},{:.2f}]", loads[0], loads[1], loads[2]);
}

int WriteJson(const std::string& path, const std::string& load_before,
              const std::vector<Times>& all) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    fmt::print(stderr, "core_lend_bench: --json={}: cannot be written\n", path);
    return 1;
  }
  fmt::print(file, R"({{"benchmark":"core_lend","unit":"us","cores":{},"load_before":{},)",
             AffinityCpus().size(), load_before);
  fmt::print(file, R"("load_after":{},"rows":[)", LoadJson());
  for (const Times& times : all) {
    fmt::print(file, R"({}{{"item_us":{},"unused":{},"seized":{},"lent":{},"returned":{}}})",
               &times == &all.front() ? "" : ",\n", times.item_ns / kNsPerUs, times.num_unused,
               times.num_seized, JsonOf(times.lent_ns), JsonOf(times.returned_ns));
  }
  fmt::print(file, "]}}\n");
  return std::fclose(file) == 0 ? 0 : 1;
}

std::optional<Options> Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : argument.substr(equals + 1);
    if (name == "--json" && !value.empty()) {
      options.json = value;
    } else if (name == "--samples") {
      const auto read = std::from_chars(value.begin(), value.end(), options.num_samples);
      const bool is_number = read.ec == std::errc() && read.ptr == value.end();
      if (!is_number || options.num_samples < 2 || options.num_samples > kMaxSamples) {
        fmt::print(stderr, "core_lend_bench: {}: --samples takes 2 to {}\n", argument, kMaxSamples);
        return std::nullopt;
      }
    } else {
      fmt::print(stderr, "usage: core_lend_bench [--samples=2000] [--json=FILE]\n");
      if (name != "--help") fmt::print(stderr, "core_lend_bench: unknown {}\n", argument);
      return std::nullopt;
    }
  }
  return options;
}

int Run(const Options& options) {
  if (AffinityCpus().size() < 2) {
    fmt::print(stderr, "core_lend_bench: two processors are needed, one for each process\n");
    return 1;
  }
  const std::string load_before = LoadJson();
  const std::unique_ptr<CoreBudget> budget = *CoreBudget::Create(std::vector<uint32_t>{1, 1});
  void* const memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  BATON_CHECK(memory != MAP_FAILED, "no memory for {} bytes", sizeof(Board));
  Board* const board = new (memory) Board;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  BATON_CHECK(child >= 0, "no second process");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    BeBorrower(*budget, board);
  }
  std::vector<Times> all;
  {
    const std::unique_ptr<CoreShare> share = AttachTo(*budget, kLender);
    const bool is_ready = RestUntil(kStartPatienceNs, [&] { return board->is_ready.load(); });
    BATON_CHECK(is_ready, "the borrower has not computed anything in 10 s");
    for (const int64_t item_ns : kItemsNs) {
      all.push_back(Measure(*share, board, item_ns, options.num_samples));
    }
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  fmt::print("{:<9} {:>10} {:>8} {:>9} {:>9} {:>9}\n", "", "item", "samples", "p50 us", "p99 us",
             "max us");
  for (const Times& times : all) PrintRow("lent", times.item_ns, times.lent_ns);
  for (const Times& times : all) PrintRow("returned", times.item_ns, times.returned_ns);
  for (const Times& times : all) {
    if (times.num_unused + times.num_seized == 0) continue;
    fmt::print("items of {} us: {} cores were not used within a second, {} were seized\n",
               times.item_ns / kNsPerUs, times.num_unused, times.num_seized);
  }
  return options.json.empty() ? 0 : WriteJson(options.json, load_before, all);
}

}  // namespace
}  // namespace baton::device

int main(int argc, char** argv) {
  const auto options = baton::device::Parse(argc, argv);
  return options ? baton::device::Run(*options) : 2;
}
