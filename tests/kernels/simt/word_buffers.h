// Buffers for the kernels of ring_kernels.h, and their answers.
#ifndef BATON_TESTS_KERNELS_SIMT_WORD_BUFFERS_H_
#define BATON_TESTS_KERNELS_SIMT_WORD_BUFFERS_H_

#include <cstdint>
#include <cstring>

#include "kernels/simt/arena.h"
#include "tests/kernels/simt/ring_kernels.h"

namespace baton::kernels::simt_test {

// The value of word i in every input.
inline uint32_t InputWord(uint32_t i) { return 7 * i + 1; }

// The sum of input words [first, end).
inline uint32_t SumOf(uint32_t first, uint32_t end) {
  uint32_t sum = 0;
  for (uint32_t i = first; i < end; ++i) sum += InputWord(i);
  return sum;
}

// Input of `num_in` words, output of `num_out`, 64 scratch words of zero.
struct Words {
  Words(uint32_t num_in, uint32_t num_out)
      : in(4 * size_t{num_in}, "in"), out(4 * size_t{num_out}, "out"), scratch(256, "scratch") {
    for (uint32_t i = 0; i < num_in; ++i) in.as<uint32_t>()[i] = InputWord(i);
    std::memset(scratch.data(), 0, scratch.size());
  }
  WordParams Params(uint32_t count) {
    return {in.as<uint32_t>(), out.as<uint32_t>(), scratch.as<uint32_t>(), count};
  }
  uint32_t Out(uint32_t i) { return out.as<uint32_t>()[i]; }

  simt::SimBuffer in;
  simt::SimBuffer out;
  simt::SimBuffer scratch;
};

}  // namespace baton::kernels::simt_test

#endif  // BATON_TESTS_KERNELS_SIMT_WORD_BUFFERS_H_
