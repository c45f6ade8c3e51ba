# Options every target of this project is built with, and no dependency inherits.
add_library(gatehouse_options INTERFACE)
target_compile_features(gatehouse_options INTERFACE cxx_std_20)
target_compile_options(gatehouse_options INTERFACE -Wall -Wextra -Werror)
if(GATEHOUSE_SANITIZE)
  target_compile_options(gatehouse_options INTERFACE
    -fsanitize=${GATEHOUSE_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(gatehouse_options INTERFACE -fsanitize=${GATEHOUSE_SANITIZE})
endif()

# LibTorch, with its headers as system headers and without the flags its package
# file would set for the whole project.
add_library(gatehouse_torch INTERFACE)
target_include_directories(gatehouse_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_link_libraries(gatehouse_torch INTERFACE ${TORCH_LIBRARIES})

# Reading LibTorch's headers takes most of the time of a file that includes them, so they are
# compiled once; for tests, more of them and GoogleTest's.
# gatehouse_precompile(<name> HEADERS ... LIBS ...) makes gatehouse_<name>.
function(gatehouse_precompile name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;LIBS")
  file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/${name}.cc" CONTENT "")
  add_library(gatehouse_${name} OBJECT "${PROJECT_BINARY_DIR}/${name}.cc")
  target_link_libraries(gatehouse_${name} PRIVATE gatehouse_options ${arg_LIBS})
  target_precompile_headers(gatehouse_${name} PRIVATE ${arg_HEADERS})
endfunction()

gatehouse_precompile(torch_headers
  HEADERS <ATen/core/Tensor.h> <ATen/TensorOperators.h> <memory> <string> <vector>
  LIBS gatehouse_torch)
if(GATEHOUSE_BUILD_TESTS)
  gatehouse_precompile(torch_test_headers
    HEADERS <ATen/ATen.h> <gmock/gmock.h> <gtest/gtest.h> <nlohmann/json.hpp>
    LIBS gatehouse_torch GTest::gmock nlohmann_json::nlohmann_json)
endif()

# gatehouse_use_torch_headers(<target> [<library>...]) where gatehouse_torch is one of the libraries
function(gatehouse_use_torch_headers name)
  if("gatehouse_torch" IN_LIST ARGN)
    target_precompile_headers(${name} REUSE_FROM gatehouse_torch_headers)
  endif()
endfunction()

# gatehouse_compile_plainly(<target> [<library>...]): as gatehouse_use_torch_headers, and without the
# optimisations that take longer than they save, for what only drives the code that has work
# to do: tests, benchmarks and the command line.
function(gatehouse_compile_plainly target)
  target_compile_options(${target} PRIVATE -O1)
  gatehouse_use_torch_headers(${target} ${ARGN})
endfunction()

# gatehouse_library(<name> SOURCES ... [PUBLIC ...] [PRIVATE ...])
# makes gatehouse_<name>, alias gatehouse::<name>.
function(gatehouse_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;PUBLIC;PRIVATE")
  add_library(gatehouse_${name} STATIC ${arg_SOURCES})
  add_library(gatehouse::${name} ALIAS gatehouse_${name})
  target_include_directories(gatehouse_${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(gatehouse_${name}
    PUBLIC ${arg_PUBLIC}
    PRIVATE gatehouse_options ${arg_PRIVATE})
  gatehouse_use_torch_headers(gatehouse_${name} ${arg_PRIVATE})
endfunction()

# gatehouse_test(<name> SOURCES ... [LIBS ...] [LABELS ...] [TIMEOUT seconds])
# makes one test program of GoogleTest cases, which is one test of ctest: starting
# LibTorch once per case would cost more than the cases.  Tests find the repository
# through the environment variable GATEHOUSE_SOURCE_DIR and the built programs through
# GATEHOUSE_BIN_DIR.
function(gatehouse_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;LIBS;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE gatehouse_options ${arg_LIBS} GTest::gmock_main)
  gatehouse_compile_plainly(${name})
  if("gatehouse_torch" IN_LIST arg_LIBS)
    target_precompile_headers(${name} REUSE_FROM gatehouse_torch_test_headers)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "GATEHOUSE_SOURCE_DIR=${PROJECT_SOURCE_DIR};GATEHOUSE_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
endfunction()

# gatehouse_pytest(<name> FILES ... [LABELS ...] [TIMEOUT seconds]) runs Python tests as one test
# of ctest; where every one of them is skipped, so is it.
function(gatehouse_pytest name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "FILES;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  list(TRANSFORM arg_FILES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  add_test(NAME ${name} COMMAND "${GATEHOUSE_PYTHON}" "${PROJECT_SOURCE_DIR}/tests/support/run_pytest.py" ${arg_FILES})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77
    ENVIRONMENT "GATEHOUSE_SOURCE_DIR=${PROJECT_SOURCE_DIR};GATEHOUSE_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
endfunction()
