# baton_library, baton_test and baton_executable: one call per component, so that every target gets
# the same warnings, include root and arithmetic flags.
include_guard(GLOBAL)

# Flags of our own code. -ffp-contract=off: gcc fuses a*b+c by default, which changes bits between
# bodies that must agree.
add_library(baton_flags INTERFACE)
target_compile_features(baton_flags INTERFACE cxx_std_20)
target_compile_options(baton_flags INTERFACE
  -Wall -Wextra -Werror -Wno-missing-field-initializers -ffp-contract=off -fno-math-errno)
target_include_directories(baton_flags INTERFACE "${PROJECT_SOURCE_DIR}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc 12 reports these in correct optimised code (inlined std::string, std::optional); clang-tidy
  # covers the real cases.
  target_compile_options(baton_flags INTERFACE -Wno-maybe-uninitialized -Wno-restrict
    -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" OR BATON_UNITY)
  # Warnings are held to zero where gcc compiles each source alone. Clang builds the fuzzers, and
  # sources that are compiled together give the optimiser other code to warn about.
  target_compile_options(baton_flags INTERFACE -Wno-error)
endif()
if(BATON_DCHECKS)
  target_compile_definitions(baton_flags INTERFACE BATON_DCHECKS=1)
endif()

# The headers that most sources include are compiled once (BATON_PCH). Only in builds by gcc without
# sanitizers: the others show an include that is missing.
if(BATON_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT BATON_SANITIZE)
  file(WRITE "${PROJECT_BINARY_DIR}/common_headers.cc" "")
  add_library(baton_common_headers STATIC "${PROJECT_BINARY_DIR}/common_headers.cc")
  target_link_libraries(baton_common_headers PRIVATE baton_flags baton_dep_absl baton_dep_fmt)
  target_compile_options(baton_common_headers PRIVATE -fpch-preprocess)
  target_precompile_headers(baton_common_headers PRIVATE
    "${PROJECT_SOURCE_DIR}/scripts/cmake/common_headers.h")
endif()

# Lets the sources of `target` use the common headers, but for those with an instruction set.
function(baton_use_common_headers target)
  if(NOT TARGET baton_common_headers)
    return()
  endif()
  target_precompile_headers(${target} REUSE_FROM baton_common_headers)
  target_compile_options(${target} PRIVATE -fpch-preprocess)
endfunction()

# Compiles `target` with -O1 in optimised builds, in a third less time: for code that computes
# nothing at length. From GCC 13 on, -O2 sets two more options that a precompiled header must have
# in common with its users; they change nothing at -O1.
function(baton_compile_quickly target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release,RelWithDebInfo>:-O1>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(${target} PRIVATE
      $<$<CONFIG:Release,RelWithDebInfo>:-munroll-only-small-loops$<SEMICOLON>-mvzeroupper>)
  endif()
endfunction()

# Gives each SIMD source the instruction set its name ends with: x_avx2.cc, x_avx512.cc. Everything
# else is built for the baseline, so that the binary starts on any x86-64.
function(baton_set_isa_flags)
  foreach(source IN LISTS ARGN)
    if(source MATCHES "_avx2\\.cc$")
      set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS
        "-mavx2;-mfma;-mf16c;-mbmi;-mbmi2" SKIP_PRECOMPILE_HEADERS ON)
    elseif(source MATCHES "_avx512\\.cc$")
      set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS
        "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-mfma;-mf16c;-mbmi;-mbmi2"
        SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

# Compiles sources of `target` together (BATON_UNITY): half the processor time of a build from
# nothing. Sources that need options of their own stay alone.
function(baton_compile_together target)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(script "${PROJECT_SOURCE_DIR}/scripts/cmake/unity_groups.py")
  execute_process(COMMAND "${Python3_EXECUTABLE}" -B "${script}" ${ARGN}
    OUTPUT_VARIABLE groups OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" groups "${groups}")
  foreach(source group IN ZIP_LISTS ARGN groups)
    if(NOT group EQUAL -1)
      set_property(SOURCE "${source}" PROPERTY UNITY_GROUP "${group}")
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # An edit may give a source a name that another one of its group has.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${script}" ${ARGN})
endfunction()

# baton_library(NAME baton_x DEPS ... [SOURCES ...] [EXCLUDE subfolder ...])
# A static library of all *.cc below the folder (main.cc and the EXCLUDEd subfolders left out). A
# folder that has no source yet is an INTERFACE library, so that others can already depend on it.
function(baton_library)
  cmake_parse_arguments(ARG "" "NAME" "DEPS;SOURCES;EXCLUDE" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB_RECURSE ARG_SOURCES CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cc")
    list(FILTER ARG_SOURCES EXCLUDE REGEX "/main\\.cc$")
    foreach(folder IN LISTS ARG_EXCLUDE)
      list(FILTER ARG_SOURCES EXCLUDE REGEX "^${CMAKE_CURRENT_SOURCE_DIR}/${folder}/")
    endforeach()
  endif()
  if(ARG_SOURCES)
    add_library(${ARG_NAME} STATIC ${ARG_SOURCES})
    target_link_libraries(${ARG_NAME} PRIVATE baton_flags PUBLIC ${ARG_DEPS})
    baton_set_isa_flags(${ARG_SOURCES})
    baton_use_common_headers(${ARG_NAME})
    if(BATON_UNITY AND NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/kernels")
      baton_compile_together(${ARG_NAME} ${ARG_SOURCES})
    endif()
  else()
    add_library(${ARG_NAME} INTERFACE)
    target_link_libraries(${ARG_NAME} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

# baton_executable(NAME x SOURCES ... DEPS ...)
function(baton_executable)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE baton_flags ${ARG_DEPS})
endfunction()

# baton_test(NAME x_test SOURCES ... DEPS ...
#            [LABELS ...] [TIMEOUT seconds] [ENV A=b ...] [ARGS ...] [LONG Suite.Test ...])
# One GoogleTest binary = one ctest entry. Tests run with the repository root as the working folder.
# A test without the label slow gets the label unit: together they take less than a minute.
# The tests that the patterns of LONG name are an entry of their own, x_test_long, which only the
# full tier runs (tests/README.md).
function(baton_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SOURCES;DEPS;LABELS;ENV;ARGS;LONG" ${ARGN})
  if(NOT BUILD_TESTING)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  baton_executable(NAME ${ARG_NAME} SOURCES ${ARG_SOURCES}
    DEPS ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  baton_compile_quickly(${ARG_NAME})
  if(TARGET baton_common_headers)
    # As the libraries: gcc takes no headers compiled for -fPIC where it compiles for -fPIE.
    set_target_properties(${ARG_NAME} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${ARG_NAME} PRIVATE -fPIC)
    baton_use_common_headers(${ARG_NAME})
  endif()
  if("tsan" IN_LIST ARG_LABELS)
    if(NOT TARGET tsan_tests)
      add_custom_target(tsan_tests)  # all that the tsan tier runs, and nothing else
    endif()
    add_dependencies(tsan_tests ${ARG_NAME})
  endif()
  set(short)
  if(ARG_LONG)
    list(JOIN ARG_LONG ":" long)
    set(short "--gtest_filter=-${long}")
    set(labels ${ARG_LABELS} long)
    list(REMOVE_ITEM labels slow)
    baton_add_test(NAME ${ARG_NAME}_long TIMEOUT ${ARG_TIMEOUT} LABELS ${labels} ENV ${ARG_ENV}
      COMMAND ${ARG_NAME} "--gtest_filter=${long}" ${ARG_ARGS})
  endif()
  if(NOT "slow" IN_LIST ARG_LABELS)
    list(APPEND ARG_LABELS unit)
  endif()
  baton_add_test(NAME ${ARG_NAME} TIMEOUT ${ARG_TIMEOUT} LABELS ${ARG_LABELS} ENV ${ARG_ENV}
    COMMAND ${ARG_NAME} ${short} ${ARG_ARGS})
endfunction()

# baton_pytest(NAME x FILE test_x.py [ENV ...] [LABELS ...] [TIMEOUT seconds] [RUN_SERIAL]
# [ARGS ...]): one file of pytest = one ctest entry. Where the file marks tests `long`,
# these are the entry x_long, which only the full tier runs, under the same limits.
function(baton_pytest)
  cmake_parse_arguments(ARG "RUN_SERIAL" "NAME;FILE;TIMEOUT" "LABELS;ENV;ARGS" ${ARGN})
  # anyio's plugin, which no test uses, is most of the start of pytest.
  set(command "${PROJECT_SOURCE_DIR}/build/venv/bin/python" -m pytest -q -p no:cacheprovider
    -p no:anyio ${ARG_ARGS} "${ARG_FILE}")
  set(common TIMEOUT ${ARG_TIMEOUT} ENV "BATON_BIN=$<TARGET_FILE:baton>"
    "PYTHONDONTWRITEBYTECODE=1" ${ARG_ENV})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${ARG_FILE}")
  # Classes of SameBits (tests/e2e/same_bits.py) have a long test.
  file(STRINGS "${ARG_FILE}" long REGEX "pytest\\.mark\\.long|\\(SameBits\\)")
  set(names ${ARG_NAME})
  set(short)
  if(long)
    set(short -m "not long")
    baton_add_test(NAME ${ARG_NAME}_long ${common} LABELS ${ARG_LABELS} long
      COMMAND ${command} -m long)
    list(APPEND names ${ARG_NAME}_long)
  endif()
  baton_add_test(NAME ${ARG_NAME} ${common} LABELS ${ARG_LABELS} COMMAND ${command} ${short})
  if(ARG_RUN_SERIAL)
    set_tests_properties(${names} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

# The seconds that each entry took in the last run that was recorded. ctest begins the longest ones
# first; of its own it knows nothing in a new build folder.
if(BUILD_TESTING)
  set(BATON_TEST_TIMES_FILE "${PROJECT_SOURCE_DIR}/benchmarks/results/test_times.json")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${BATON_TEST_TIMES_FILE}")
  file(READ "${BATON_TEST_TIMES_FILE}" BATON_TEST_TIMES)
  string(JSON BATON_TEST_TIMES GET "${BATON_TEST_TIMES}" seconds)
endif()

# baton_add_test(NAME x COMMAND ... [TIMEOUT seconds] [LABELS ...] [ENV ...]): any command as a
# ctest entry with the sanitizer options of this build.
function(baton_add_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "COMMAND;LABELS;ENV" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(BATON_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 6")
  endif()
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_COMMAND} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  # detect_container_overflow=0: gRPC and Protobuf are not instrumented, and a container that both
  # sides resize would be reported although it is sound.
  set(asan "detect_container_overflow=0:strict_string_checks=1:detect_stack_use_after_return=1")
  # Suppressions are for Rust code alone, which calls nothing of ours: one matches every frame of a
  # stack, so a line for gRPC would hide our own races below its callbacks. Tests that run gRPC have
  # no tsan label instead.
  set(suppressions "${PROJECT_SOURCE_DIR}/tests/tsan_suppressions.txt")
  set(environment
    "ASAN_OPTIONS=${asan}"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=second_deadlock_stack=1:suppressions=${suppressions}"
    "BATON_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
    "BATON_BUILD_DIR=${PROJECT_BINARY_DIR}")
  set_tests_properties(${ARG_NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "${environment};${ARG_ENV}")
  if(ARG_LABELS)
    set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}")
  endif()
  string(JSON seconds ERROR_VARIABLE is_new GET "${BATON_TEST_TIMES}" ${ARG_NAME})
  if(NOT is_new)
    set_tests_properties(${ARG_NAME} PROPERTIES COST ${seconds})
  endif()
endfunction()

# baton_proto_library(NAME x ROOT folder PROTOS a.proto ...): C++ messages and gRPC stubs in the
# build tree; included as "baton/v1/inference.pb.h". Generated code is exempt from our warnings.
function(baton_proto_library)
  cmake_parse_arguments(ARG "" "NAME;ROOT" "PROTOS;DEPS" ${ARGN})
  set(gen "${PROJECT_BINARY_DIR}/gen")
  file(MAKE_DIRECTORY "${gen}")
  set(sources)
  foreach(proto IN LISTS ARG_PROTOS)
    file(RELATIVE_PATH relative "${ARG_ROOT}" "${proto}")
    string(REGEX REPLACE "\\.proto$" "" stem "${relative}")
    set(outputs "${gen}/${stem}.pb.cc" "${gen}/${stem}.pb.h"
      "${gen}/${stem}.grpc.pb.cc" "${gen}/${stem}.grpc.pb.h")
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND "${BATON_PROTOC}" "-I${ARG_ROOT}" "--cpp_out=${gen}" "--grpc_out=${gen}"
        "--plugin=protoc-gen-grpc=${BATON_GRPC_CPP_PLUGIN}" "${proto}"
      DEPENDS ${ARG_PROTOS}
      COMMENT "Generating C++ from ${relative}"
      VERBATIM)
    list(APPEND sources ${outputs})
  endforeach()
  if(sources)
    add_library(${ARG_NAME} STATIC ${sources})
    target_compile_features(${ARG_NAME} PUBLIC cxx_std_20)
    target_compile_options(${ARG_NAME} PRIVATE -w)
    target_include_directories(${ARG_NAME} SYSTEM PUBLIC "${gen}")
    target_link_libraries(${ARG_NAME} PUBLIC ${ARG_DEPS})
    if(BATON_UNITY)
      # The stubs alone: each .pb.cc has tables of the same names.
      list(FILTER sources INCLUDE REGEX "\\.grpc\\.pb\\.cc$")
      set_source_files_properties(${sources} PROPERTIES UNITY_GROUP stubs)
      set_target_properties(${ARG_NAME} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    endif()
  else()
    add_library(${ARG_NAME} INTERFACE)
    target_link_libraries(${ARG_NAME} INTERFACE ${ARG_DEPS})
  endif()
endfunction()
