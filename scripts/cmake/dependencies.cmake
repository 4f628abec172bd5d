# Third-party libraries as targets. gRPC, Protobuf and abseil are linked statically through targets
# of our own: the packaged CMake targets are the shared libraries, and mixing both kinds in one
# process gives two copies of every registry.
include_guard(GLOBAL)

find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED)

# The static archive lib<name>.a, or a clear stop that names the command which installs it. Some
# distributions call it lib<name>_static.a (c-ares in Ubuntu 24.04).
function(baton_require_archive variable name)
  find_library(${variable} NAMES lib${name}.a lib${name}_static.a)
  if(NOT ${variable})
    message(FATAL_ERROR "lib${name}.a is missing; run scripts/deps.sh")
  endif()
endfunction()

# Declares `target` as the static archive lib<name>.a with the given link dependencies.
function(baton_import_static target name)
  baton_require_archive(BATON_ARCHIVE_${name} ${name})
  add_library(${target} STATIC IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${BATON_ARCHIVE_${name}}")
  target_link_libraries(${target} INTERFACE ${ARGN})
endfunction()

# All of abseil as one group: its hundred archives refer to each other, and a linker only takes the
# members that are used.
add_library(baton_dep_absl INTERFACE)
baton_require_archive(BATON_ARCHIVE_absl_base absl_base)
get_filename_component(BATON_ARCHIVE_DIR "${BATON_ARCHIVE_absl_base}" DIRECTORY)
file(GLOB BATON_ABSL_ARCHIVES "${BATON_ARCHIVE_DIR}/libabsl_*.a")
list(FILTER BATON_ABSL_ARCHIVES EXCLUDE REGEX "libabsl_flags_|_test|flags_parse|flags_usage")
target_link_libraries(baton_dep_absl INTERFACE
  -Wl,--start-group ${BATON_ABSL_ARCHIVES} -Wl,--end-group Threads::Threads rt)

# fmt, compiled once here, and header-only spdlog: Debian ships no static archives of them.
find_path(BATON_FMT_INCLUDE fmt/core.h REQUIRED)
file(STRINGS "${BATON_FMT_INCLUDE}/fmt/core.h" BATON_FMT_VERSION_LINE REGEX "define FMT_VERSION ")
string(REGEX MATCH "[0-9]+$" BATON_FMT_VERSION "${BATON_FMT_VERSION_LINE}")
if(BATON_FMT_VERSION GREATER_EQUAL 90000 AND BATON_FMT_VERSION LESS 110000)
  add_library(baton_dep_fmt STATIC "${CMAKE_CURRENT_LIST_DIR}/fmt_library.cc")
  target_compile_options(baton_dep_fmt PRIVATE -w)
  target_include_directories(baton_dep_fmt SYSTEM PUBLIC "${BATON_FMT_INCLUDE}")
else()
  message(STATUS "fmt ${BATON_FMT_VERSION} is used header-only: the build takes longer")
  add_library(baton_dep_fmt INTERFACE)
  target_compile_definitions(baton_dep_fmt INTERFACE FMT_HEADER_ONLY=1)
endif()
add_library(baton_dep_spdlog INTERFACE)
target_compile_definitions(baton_dep_spdlog INTERFACE SPDLOG_FMT_EXTERNAL=1)
target_link_libraries(baton_dep_spdlog INTERFACE baton_dep_fmt Threads::Threads)

baton_import_static(baton_dep_xxhash xxhash)
baton_import_static(baton_dep_yaml yaml-cpp)
baton_import_static(baton_dep_numa numa)
baton_import_static(baton_dep_uring uring)

# Line editing of the chat: libedit (BSD) and what it stands on. Without it a chat reads plain
# lines.
find_library(BATON_ARCHIVE_edit NAMES libedit.a)
find_library(BATON_ARCHIVE_tinfo NAMES libtinfo.a)
find_library(BATON_ARCHIVE_bsd NAMES libbsd.a)
find_library(BATON_ARCHIVE_md NAMES libmd.a)
add_library(baton_dep_edit INTERFACE)
if(BATON_ARCHIVE_edit AND BATON_ARCHIVE_tinfo AND BATON_ARCHIVE_bsd AND BATON_ARCHIVE_md)
  target_compile_definitions(baton_dep_edit INTERFACE BATON_HAVE_EDITLINE=1)
  target_link_libraries(baton_dep_edit INTERFACE
    "${BATON_ARCHIVE_edit}" "${BATON_ARCHIVE_tinfo}" "${BATON_ARCHIVE_bsd}" "${BATON_ARCHIVE_md}")
else()
  message(WARNING "libedit.a is missing: `baton chat` has no line editing; run scripts/deps.sh")
endif()

# Boost is used header-only (Beast, Asio). 1.74 fails to compile as C++20.
find_path(BATON_BOOST_INCLUDE boost/version.hpp REQUIRED)
file(STRINGS "${BATON_BOOST_INCLUDE}/boost/version.hpp" BATON_BOOST_VERSION_LINE
  REGEX "^#define BOOST_VERSION ")
string(REGEX MATCH "[0-9]+" BATON_BOOST_VERSION "${BATON_BOOST_VERSION_LINE}")
if(BATON_BOOST_VERSION LESS 108100)
  message(FATAL_ERROR "Boost ${BATON_BOOST_VERSION} is older than 108100; run scripts/deps.sh "
                      "(it installs the newest that apt knows)")
endif()
add_library(baton_dep_boost INTERFACE)
target_include_directories(baton_dep_boost SYSTEM INTERFACE "${BATON_BOOST_INCLUDE}")
target_compile_definitions(baton_dep_boost INTERFACE BOOST_ERROR_CODE_HEADER_ONLY=1)
target_link_libraries(baton_dep_boost INTERFACE Threads::Threads)

find_path(BATON_ZLIB_INCLUDE zlib.h REQUIRED)
baton_import_static(baton_dep_z z)

add_library(baton_dep_openssl INTERFACE)
# From OpenSSL 3.2 on, its archive may compress with zlib and zstd; Debian 13's does.
set(BATON_CRYPTO_NEEDS "")
if(OPENSSL_VERSION VERSION_GREATER_EQUAL 3.2)
  baton_import_static(baton_dep_zstd zstd)
  set(BATON_CRYPTO_NEEDS baton_dep_z baton_dep_zstd)
endif()
baton_import_static(baton_dep_crypto crypto ${BATON_CRYPTO_NEEDS} Threads::Threads dl)
baton_import_static(baton_dep_ssl ssl baton_dep_crypto)
target_link_libraries(baton_dep_openssl INTERFACE baton_dep_ssl)

baton_import_static(baton_dep_cares cares)
baton_import_static(baton_dep_re2 re2 Threads::Threads)
baton_import_static(baton_dep_upb upb)
baton_import_static(baton_dep_address_sorting address_sorting)
baton_import_static(baton_dep_gpr gpr baton_dep_absl dl m rt)
baton_import_static(baton_dep_grpc_core grpc
  baton_dep_address_sorting baton_dep_re2 baton_dep_upb baton_dep_cares baton_dep_z
  baton_dep_gpr baton_dep_openssl baton_dep_absl)
baton_import_static(baton_dep_protobuf protobuf Threads::Threads baton_dep_z)
if(BATON_SANITIZE MATCHES "thread")
  target_include_directories(baton_dep_protobuf INTERFACE "${CMAKE_CURRENT_LIST_DIR}/tsan")
endif()
baton_import_static(baton_dep_grpc_base grpc++ baton_dep_grpc_core baton_dep_protobuf)

# Reflection registers itself from a static constructor, so its archive must be linked whole.
add_library(baton_dep_grpc INTERFACE)
baton_require_archive(BATON_ARCHIVE_grpc_reflection grpc++_reflection)
target_link_libraries(baton_dep_grpc INTERFACE
  -Wl,--whole-archive "${BATON_ARCHIVE_grpc_reflection}" -Wl,--no-whole-archive
  baton_dep_grpc_base)

find_program(BATON_PROTOC protoc REQUIRED)
find_program(BATON_GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
