// A toy server as a process, for tests of the command line: prints its port and serves until stdin
// ends. usage: loadgen_toy_server [TTFT_US [ITL_US [GONE_AFTER]]]
#include <cstdio>
#include <cstdlib>

#include "tests/loadgen/toy_server.h"

int main(int argc, char** argv) {
  const auto number = [&](int i, long other) { return argc > i ? std::atol(argv[i]) : other; };
  baton::loadgen::ToyServer server({.ttft_us = number(1, 20'000),
                                    .itl_us = number(2, 2'000),
                                    .gone_after = static_cast<uint64_t>(number(3, 0))});
  std::printf("%d\n", server.port());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
