// The version that `baton version` prints; the same number as project() in CMakeLists.txt.
#ifndef BATON_CLI_VERSION_H_
#define BATON_CLI_VERSION_H_

namespace baton {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace baton

#endif  // BATON_CLI_VERSION_H_
