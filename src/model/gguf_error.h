// GgufErrorCode: why a GGUF file was refused, carried as a payload of the Status. Pure functions;
// any thread. Every check of the reader has its own code, so that tests assert the reason and not
// the wording; the message names the field and the values.
#ifndef BATON_MODEL_GGUF_ERROR_H_
#define BATON_MODEL_GGUF_ERROR_H_

#include <cstdint>
#include <string_view>

#include "src/base/status.h"

namespace baton::model {

// One value per check of the reader.
enum class GgufErrorCode : uint8_t {
  kNone = 0,                // the Status is OK or not from the GGUF reader
  kOpen = 1,                // missing, unreadable, or not a regular file
  kTruncated = 2,           // the file ends inside a header field
  kBadMagic = 3,            // does not start with "GGUF"
  kWrongEndian = 4,         // big-endian file
  kBadVersion = 5,          // neither 2 nor 3
  kTooManyKeys = 6,         // key count negative or above kMaxGgufKeys
  kTooManyTensors = 7,      // tensor count negative or above kMaxGgufTensors
  kHeaderTooLarge = 8,      // header beyond kMaxGgufHeaderBytes
  kStringTooLong = 9,       // string length above its limit
  kBadKey = 10,             // empty key, or a NUL inside
  kDuplicateKey = 11,       //
  kBadValueType = 12,       // value or element type not in the specification
  kNestedArray = 13,        // array of arrays
  kArrayTooLong = 14,       // array count above kMaxGgufArrayCount
  kBadBool = 15,            // a bool that is neither 0 nor 1
  kBadAlignment = 16,       // general.alignment not a u32 power of two >= 8
  kBadTensorName = 17,      // empty, 64 bytes or longer, or a NUL inside
  kDuplicateTensor = 18,    //
  kBadDims = 19,            // number of dimensions not 1..4, or a dimension of 0
  kSizeOverflow = 20,       // product of dimensions or bytes beyond 2^63 - 1
  kBadRowLength = 21,       // row length no multiple of the type's block
  kUnknownTensorType = 22,  // type id not in the table
  kRemovedTensorType = 23,  // type id that the format withdrew
  kUnsizedTensorType = 24,  // type known by name only; its size is unknown to this reader
  kBadOffset = 25,          // gap, overlap or disorder: not the running padded sum
  kDataOutOfFile = 26,      // tensor bytes end beyond the file
  kSplitFile = 27,          // one part of a split model, not the first or without its name
  kMissingKey = 28,         // a key that the caller needs
  kWrongKeyType = 29,       // a key of another type or range than the caller needs
  kSplitMissing = 30,       // a part of a split model is not there
  kSplitMismatch = 31,      // a part belongs to another model, or the counts disagree
  kBadScale = 32,           // of a tensor in NVFP4: no positive number, or of another shape
};

// "truncated", "bad_offset": stable names for logs and tests.
std::string_view GgufErrorName(GgufErrorCode code);

// InvalidArgument (NotFound for kOpen and kMissingKey, Unimplemented for what a newer reader could
// take) with `message` and the code as payload.
absl::Status GgufError(GgufErrorCode code, std::string_view message);

// The code that `status` carries, kNone when it carries none.
GgufErrorCode GgufErrorOf(const absl::Status& status);

}  // namespace baton::model

#endif  // BATON_MODEL_GGUF_ERROR_H_
