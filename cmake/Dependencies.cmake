# SPDX-License-Identifier: Apache-2.0
# The only file that names third parties. A system package wins; nothing is downloaded where it exists.
# Each entry ends as one imported target that rooms link by name:
#   yeto::dep::{asio, ssl, tls, json, fmt, spdlog, expected, xxhash, gtest, threads}
include(FetchContent)

option(YETO_ALLOW_FETCH "Download pinned sources where a system package is missing" OFF)
if(NOT YETO_ALLOW_FETCH)
  set(FETCHCONTENT_FULLY_DISCONNECTED ON)
endif()

function(yeto_missing what apt_package)
  message(FATAL_ERROR "yeto: ${what} was not found. On Debian or Ubuntu: apt-get install ${apt_package}\n"
    "Or configure with -DYETO_ALLOW_FETCH=ON where a network is allowed.")
endfunction()

# yeto_dependency(NAME PACKAGE … TARGET … APT … GIT … TAG … [VERSION …])
function(yeto_dependency name)
  cmake_parse_arguments(D "" "PACKAGE;TARGET;APT;GIT;TAG;VERSION" "" ${ARGN})
  find_package(${D_PACKAGE} ${D_VERSION} QUIET)
  if(NOT TARGET ${D_TARGET})
    if(NOT YETO_ALLOW_FETCH)
      yeto_missing(${D_PACKAGE} ${D_APT})
    endif()
    FetchContent_Declare(${name} GIT_REPOSITORY ${D_GIT} GIT_TAG ${D_TAG})
    FetchContent_MakeAvailable(${name})
  endif()
  add_library(yeto_dep_${name} INTERFACE)
  target_link_libraries(yeto_dep_${name} INTERFACE ${D_TARGET})
  add_library(yeto::dep::${name} ALIAS yeto_dep_${name})
endfunction()

find_package(Threads REQUIRED)
add_library(yeto_dep_threads INTERFACE)
target_link_libraries(yeto_dep_threads INTERFACE Threads::Threads)
add_library(yeto::dep::threads ALIAS yeto_dep_threads)

# Result<T> stands on tl::expected: g++ 12 has std::expected only in C++23 mode.
yeto_dependency(expected PACKAGE tl-expected TARGET tl::expected APT libexpected-dev
  GIT https://github.com/TartanLlama/expected TAG v1.1.0)
yeto_dependency(json PACKAGE nlohmann_json VERSION 3.11 TARGET nlohmann_json::nlohmann_json
  APT nlohmann-json3-dev GIT https://github.com/nlohmann/json TAG v3.11.3)

# fmt and spdlog are used header-only, each in one .cc of base: Debian has no static archives of them.
find_path(YETO_FMT_INCLUDE fmt/core.h)
if(NOT YETO_FMT_INCLUDE)
  yeto_missing(fmt libfmt-dev)
endif()
add_library(yeto_dep_fmt INTERFACE)
target_include_directories(yeto_dep_fmt SYSTEM INTERFACE ${YETO_FMT_INCLUDE})
add_library(yeto::dep::fmt ALIAS yeto_dep_fmt)
find_path(YETO_SPDLOG_INCLUDE spdlog/spdlog.h)
if(NOT YETO_SPDLOG_INCLUDE)
  yeto_missing(spdlog libspdlog-dev)
endif()
add_library(yeto_dep_spdlog INTERFACE)
target_include_directories(yeto_dep_spdlog SYSTEM INTERFACE ${YETO_SPDLOG_INCLUDE})
target_compile_definitions(yeto_dep_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
add_library(yeto::dep::spdlog ALIAS yeto_dep_spdlog)

# Asio has no CMake package in Debian. The two coroutine defines repair 1.22 under clang.
# Its choice of aligned_alloc depends on which standard header came first, so files could disagree on how
# memory is freed: all use operator new.
find_path(YETO_ASIO_INCLUDE asio.hpp)
if(NOT YETO_ASIO_INCLUDE)
  yeto_missing(asio libasio-dev)
endif()
add_library(yeto_dep_asio INTERFACE)
target_include_directories(yeto_dep_asio SYSTEM INTERFACE ${YETO_ASIO_INCLUDE})
target_compile_definitions(yeto_dep_asio INTERFACE ASIO_STANDALONE ASIO_SEPARATE_COMPILATION
  ASIO_HAS_CO_AWAIT ASIO_HAS_STD_COROUTINE ASIO_DISABLE_STD_ALIGNED_ALLOC)
if(YETO_SANITIZE MATCHES thread)
  # TSan does not know atomic_thread_fence; Asio's locks order what its fences do.
  target_compile_definitions(yeto_dep_asio INTERFACE ASIO_DISABLE_FENCED_BLOCK)
endif()
target_link_libraries(yeto_dep_asio INTERFACE Threads::Threads)
add_library(yeto::dep::asio ALIAS yeto_dep_asio)

if(YETO_STATIC_RUNTIME)
  set(OPENSSL_USE_STATIC_LIBS ON)
endif()
find_package(OpenSSL 3.0 QUIET)
if(NOT OpenSSL_FOUND)
  yeto_missing("OpenSSL 3" libssl-dev)
endif()
add_library(yeto_dep_ssl INTERFACE)
target_link_libraries(yeto_dep_ssl INTERFACE OpenSSL::Crypto ${CMAKE_DL_LIBS})
add_library(yeto::dep::ssl ALIAS yeto_dep_ssl)
add_library(yeto_dep_tls INTERFACE)
target_link_libraries(yeto_dep_tls INTERFACE OpenSSL::SSL yeto::dep::ssl)
add_library(yeto::dep::tls ALIAS yeto_dep_tls)

find_path(YETO_XXHASH_INCLUDE xxhash.h)
if(NOT YETO_XXHASH_INCLUDE)
  yeto_missing(xxhash libxxhash-dev)
endif()
add_library(yeto_dep_xxhash INTERFACE)
target_include_directories(yeto_dep_xxhash SYSTEM INTERFACE ${YETO_XXHASH_INCLUDE})
target_compile_definitions(yeto_dep_xxhash INTERFACE XXH_INLINE_ALL)
add_library(yeto::dep::xxhash ALIAS yeto_dep_xxhash)

if(YETO_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    yeto_missing(GoogleTest libgtest-dev)
  endif()
  add_library(yeto_dep_gtest INTERFACE)
  target_link_libraries(yeto_dep_gtest INTERFACE GTest::gtest GTest::gtest_main)
  add_library(yeto::dep::gtest ALIAS yeto_dep_gtest)
endif()
if(YETO_PYTHON)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
  if(NOT nanobind_ROOT)
    execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
      OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT)
  endif()
  find_package(nanobind CONFIG REQUIRED)
endif()
