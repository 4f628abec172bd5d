// Values that the C++ users of the Rust library (hf/baton_text.h) share: borrowed and owned bytes,
// and result codes as Status. Included by hf_library.cc and grammar.cc only. Any thread.
#ifndef BATON_TEXT_HF_BYTES_H_
#define BATON_TEXT_HF_BYTES_H_

#include <cstdint>
#include <string_view>

#include "src/base/status.h"
#include "src/text/hf/baton_text.h"

namespace baton::text::hf {

inline baton_text_slice SliceOf(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Bytes that the library handed out; freed with it.
class OwnedBytes {
 public:
  OwnedBytes() = default;
  OwnedBytes(const OwnedBytes&) = delete;
  OwnedBytes& operator=(const OwnedBytes&) = delete;
  ~OwnedBytes() { baton_text_buffer_free(&buffer_); }

  baton_text_buffer* out() { return &buffer_; }
  std::string_view view() const {
    return {reinterpret_cast<const char*>(buffer_.data), buffer_.size};
  }

 private:
  baton_text_buffer buffer_ = {};
};

// The Status of a baton_text_code. Wrong input is InvalidArgument, a limit FailedPrecondition, a
// caught panic Internal, and a lack of threads Unavailable.
Status StatusOf(int32_t code, const OwnedBytes& error);

// Stops the process when the library is of another build than the headers.
void CheckVersion();

}  // namespace baton::text::hf

#endif  // BATON_TEXT_HF_BYTES_H_
