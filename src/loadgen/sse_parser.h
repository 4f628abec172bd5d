// Events of a server-sent event stream (WHATWG HTML, section 9.2), in any split of its bytes. Pure;
// one thread per object.
//
// Invariants:
//  1. The events do not depend on how the bytes were cut into pushes.
//  2. At most kMaxEventBytes are kept.
#ifndef BATON_LOADGEN_SSE_PARSER_H_
#define BATON_LOADGEN_SSE_PARSER_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace baton::loadgen {

// Cuts a stream into the payloads of its events. Lines end with LF, CR LF or CR; comments, event,
// id, retry and well-formed unknown fields are skipped; the lines of several `data` fields are
// joined by LF. Stricter than a browser in one point: a line whose field name is no name at all
// (a bare JSON object, HTML) is an error, because it is an answer that a client would lose.
class SseParser {
 public:
  static constexpr size_t kMaxEventBytes = 4 * 1024 * 1024;

  // Calls on_event with the payload of each event that these bytes complete, in order. DataLoss
  // with the line for a malformed one, ResourceExhausted for an event that is too large; the parser
  // is of no use afterwards.
  Status Push(std::string_view bytes, const std::function<void(std::string_view)>& on_event);

 private:
  Status TakeLine(std::string_view line, const std::function<void(std::string_view)>& on_event);

  std::string line_;  // the bytes of an unfinished line
  std::string data_;  // data lines of the unfinished event
  bool has_data_ = false;
  bool skip_lf_ = false;  // the last byte was CR
  bool at_start_ = true;  // a byte order mark may still come
};

}  // namespace baton::loadgen

#endif  // BATON_LOADGEN_SSE_PARSER_H_
