# tw_library, tw_test, tw_bench, tw_fuzzer: every target of the tree is made by one of these.

find_program(TWINKLE_MOLD mold)
find_package(Threads REQUIRED)
find_package(GTest REQUIRED)

set(TWINKLE_WARNINGS -Wall -Wextra -Werror -Wno-psabi -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND TWINKLE_WARNINGS -Wno-unknown-warning-option -Wno-deprecated-declarations)  # within libstdc++
endif()

add_library(tw_options INTERFACE)
target_include_directories(tw_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(tw_options INTERFACE ${TWINKLE_WARNINGS} -fPIC -fno-math-errno -ffp-contract=off)
target_link_libraries(tw_options INTERFACE Threads::Threads)
if(TWINKLE_MOLD AND NOT TWINKLE_FUZZ)
  target_link_options(tw_options INTERFACE -fuse-ld=mold)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(tw_options INTERFACE -fno-semantic-interposition)
endif()
if(TWINKLE_SANITIZE)
  # g++ sees uninitialised values in the standard library once it is instrumented.
  set(flags -fsanitize=${TWINKLE_SANITIZE} -fno-omit-frame-pointer -Wno-maybe-uninitialized)
  if(TWINKLE_SANITIZE MATCHES "undefined")
    list(APPEND flags -fno-sanitize-recover=all -fno-sanitize=vptr)
  endif()
  if(TWINKLE_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND flags -Wno-tsan)  # Boost.Asio has fences, which it does not follow
  endif()
  target_compile_options(tw_options INTERFACE ${flags})
  target_link_options(tw_options INTERFACE ${flags})
  target_compile_definitions(tw_options INTERFACE TWINKLE_SANITIZED=1)
endif()

# tw_in_batches(TARGET): its files are compiled several at a time, for most of a file's cost is templates that all
# instantiate. So a name in an unnamed namespace is there once in a room. Files with compile options of their own
# stay alone.
function(tw_in_batches target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TWINKLE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# tw_library(NAME [TORCH] [SOURCES ...] [DEPS ...]): one room as a shared library, so that what registers
# itself is there without a central list. Sources default to every .cpp of the folder.
function(tw_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  endif()
  if(NOT ARG_SOURCES)
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp "")
    set(ARG_SOURCES ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp)
  endif()
  add_library(tw_${name} SHARED ${ARG_SOURCES})
  tw_in_batches(tw_${name})
  set_target_properties(tw_${name} PROPERTIES OUTPUT_NAME twinkle_${name})
  target_link_libraries(tw_${name} PUBLIC tw_options ${ARG_DEPS})
  # A room that only registers components must stay linked even when no symbol of it is named.
  target_link_options(tw_${name} INTERFACE -Wl,--no-as-needed)
  if(ARG_TORCH)
    target_link_libraries(tw_${name} PUBLIC torch_cpu)
    tw_use_torch_pch(tw_${name})
  else()
    tw_use_core_pch(tw_${name})
  endif()
endfunction()

# tw_shared_pch(TARGET NAME HEADERS... [LIBRARIES ...]): TARGET uses the precompiled headers NAME, which its first
# user makes. All users must compile with the same options.
function(tw_shared_pch target name)
  cmake_parse_arguments(ARG "" "" "HEADERS;LIBRARIES" ${ARGN})
  if(NOT TARGET tw_${name}_pch)
    file(WRITE ${CMAKE_BINARY_DIR}/${name}_pch.cpp "")
    add_library(tw_${name}_pch OBJECT ${CMAKE_BINARY_DIR}/${name}_pch.cpp)
    target_link_libraries(tw_${name}_pch PUBLIC tw_options ${ARG_LIBRARIES})
    target_precompile_headers(tw_${name}_pch PRIVATE ${ARG_HEADERS})
  endif()
  target_precompile_headers(${target} REUSE_FROM tw_${name}_pch)
endfunction()

# JSON and the standard containers are in nearly every file of the rooms without torch.
function(tw_use_core_pch target)
  tw_shared_pch(${target} core HEADERS ${CMAKE_SOURCE_DIR}/twinkle/core/core_pch.h)
endfunction()

# The torch headers cost many seconds a file; every target that includes them shares this one.
function(tw_use_torch_pch target)
  tw_shared_pch(${target} torch HEADERS ${CMAKE_SOURCE_DIR}/twinkle/kernels/torch_pch.h LIBRARIES torch_cpu)
endfunction()

# tw_room_tests(ROOM [TORCH] [DEPS ...]): one test program for every tests/ROOM/*_test.cpp. A first line such as
# `// labels: slow bits` sets its ctest labels (default: quick).
function(tw_room_tests room)
  cmake_parse_arguments(ARG "TORCH" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
  foreach(source ${sources})
    get_filename_component(base ${source} NAME_WE)
    file(STRINGS ${source} first LIMIT_COUNT 1)
    set(labels quick)
    if(first MATCHES "^// labels: (.*)$")
      string(REPLACE " " ";" labels "${CMAKE_MATCH_1}")
    endif()
    set(torch "")
    if(ARG_TORCH)
      set(torch TORCH)
    endif()
    tw_test(${room}_${base} ${torch} SOURCES ${source} DEPS tw_${room} ${ARG_DEPS} LABELS ${labels})
  endforeach()
endfunction()

# tw_test(NAME SOURCES ... DEPS ... [LABELS quick bits ...] [TORCH]): one GoogleTest program; the label
# defaults to quick. Tests find real data through TWINKLE_TEST_DATA.
function(tw_test name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT" "SOURCES;DEPS;LABELS;ARGS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS quick)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE tw_options ${ARG_DEPS} GTest::gtest GTest::gtest_main)
  # What a test spends is in the libraries; compiling it is a third of the build.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  # With GoogleTest's header: it costs two seconds a file.
  if(ARG_TORCH)
    tw_shared_pch(${name} torch_test HEADERS ${CMAKE_SOURCE_DIR}/twinkle/kernels/torch_pch.h <gtest/gtest.h>
      LIBRARIES torch_cpu GTest::gtest)
  else()
    tw_shared_pch(${name} core_test HEADERS ${CMAKE_SOURCE_DIR}/twinkle/core/core_pch.h <gtest/gtest.h>
      LIBRARIES GTest::gtest)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_compile_definitions(${name} PRIVATE TWINKLE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    TWINKLE_BINARY_DIR="${CMAKE_BINARY_DIR}" TWINKLE_DEPS_DIR="${TWINKLE_DEPS}")
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# tw_bench(NAME SOURCES ... DEPS ... [TORCH]): a program in build/bench that prints the machine's limit beside our figure.
function(tw_bench name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE tw_options ${ARG_DEPS})
  if(ARG_TORCH)
    tw_use_torch_pch(${name})
  else()
    tw_use_core_pch(${name})
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()

# tw_fuzzer(NAME SOURCES ... DEPS ...): a libFuzzer program in build-fuzz/fuzz.
function(tw_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE tw_options ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
endfunction()
