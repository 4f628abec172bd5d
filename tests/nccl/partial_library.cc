// A library with one of NCCL's functions, for what is said of one that lacks the others.
extern "C" int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
