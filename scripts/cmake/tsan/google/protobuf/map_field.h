// Found before Protobuf's own header in ThreadSanitizer builds. There Protobuf 3.21 gives its map
// fields 8 bytes more, which the packaged library, built without the sanitizer, does not know: it
// would read a message's members at other places than the code that sets them.
#ifndef BATON_SCRIPTS_CMAKE_TSAN_GOOGLE_PROTOBUF_MAP_FIELD_H_
#define BATON_SCRIPTS_CMAKE_TSAN_GOOGLE_PROTOBUF_MAP_FIELD_H_

// The standard library's own use of the macro is settled by its first header.
#include <memory>

#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include_next <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")

#endif  // BATON_SCRIPTS_CMAKE_TSAN_GOOGLE_PROTOBUF_MAP_FIELD_H_
