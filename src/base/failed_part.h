// FailedPart: the part of a request that failed at a worker, as the worker tells its router. A
// plain value.
#ifndef BATON_BASE_FAILED_PART_H_
#define BATON_BASE_FAILED_PART_H_

#include <cstdint>

namespace baton {

// The numbers are those of FailedPart in common.proto.
enum class FailedPart : uint8_t {
  kNotTold = 0,      // a worker of an older release
  kHandOff = 1,      // the KV did not get across
  kComputation = 2,  // the worker itself: its model, its device, its time for the request
  kPeer = 3,         // the other worker of the hand-off gave the request up
};

}  // namespace baton

#endif  // BATON_BASE_FAILED_PART_H_
