# What the build links with.  docs/dependencies.md says why each is here.
#
# Protobuf and gRPC come before Torch: where no protobuf::libprotobuf target
# exists yet, Torch's package file defines an empty one under that name.
find_package(Threads REQUIRED)
if(GATEHOUSE_SERVICE)
  find_package(Protobuf REQUIRED)
  find_package(gRPC CONFIG REQUIRED)
  find_package(prometheus-cpp CONFIG REQUIRED)
  find_package(civetweb CONFIG REQUIRED)
  find_package(CLI11 CONFIG REQUIRED)
endif()
find_package(absl CONFIG REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
if(GATEHOUSE_SERVICE)
  pkg_check_modules(libzip REQUIRED IMPORTED_TARGET libzip)
endif()

# Torch: a given Torch_DIR, or the `torch` package of the checkout's virtual
# environment, or that of the Python on the path.
if(NOT Torch_DIR)
  find_program(GATEHOUSE_PYTHON NAMES python3
    HINTS "${PROJECT_SOURCE_DIR}/.venv/bin" NO_CMAKE_FIND_ROOT_PATH)
  execute_process(
    COMMAND "${GATEHOUSE_PYTHON}" -c
            "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE torch_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT torch_root)
    message(FATAL_ERROR "No torch package found by ${GATEHOUSE_PYTHON}: run tools/setup, or pass -DTorch_DIR=…/torch/share/cmake/Torch")
  endif()
  set(Torch_DIR "${torch_root}/share/cmake/Torch" CACHE PATH "Torch's CMake package")
endif()
find_package(Torch 2.11 REQUIRED)

if(GATEHOUSE_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
