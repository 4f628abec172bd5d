// The functions by which the loopback of cuBLASLt tells its tests more than cuBLASLt's own
// interface does.
#ifndef BATON_TESTS_CUBLASLT_LOOPBACK_H_
#define BATON_TESTS_CUBLASLT_LOOPBACK_H_

#include <cstdint>

extern "C" {

// Products that this process has had from it.
uint64_t baton_cublaslt_loopback_products(void);
// For how many rows the algorithm of the last one was asked for.
uint64_t baton_cublaslt_loopback_asked_rows(void);

}  // extern "C"

#endif  // BATON_TESTS_CUBLASLT_LOOPBACK_H_
