// The version that `baton version` and GET /version tell; the same number as project() in
// CMakeLists.txt.
#ifndef BATON_BASE_VERSION_H_
#define BATON_BASE_VERSION_H_

namespace baton {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace baton

#endif  // BATON_BASE_VERSION_H_
