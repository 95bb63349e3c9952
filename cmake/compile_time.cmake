# Compiles what nearly every file includes once instead of in each file. Not beside a compiler cache, which works by file.
if(CMAKE_CXX_COMPILER_LAUNCHER OR NOT FORESHOCK_AGENT)
  return()
endif()

# GCC (release): five files are compiled as one, in 40 to 60 % of the time. A file that its neighbours would disturb has
# SKIP_UNITY_BUILD_INCLUSION. Headers compiled in advance gain GCC nothing.
if(NOT FORESHOCK_SANITIZE)
  set_target_properties(foreshock_agent foreshock_cli_parts foreshock_exporters foreshock_lab
                        PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 5)
  return()
endif()

# Clang (sanitizers): headers compiled in advance, in a third of the time. There every file is still compiled alone.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  return()
endif()
set(common_headers <algorithm> <atomic> <chrono> <cmath> <filesystem> <fstream> <functional> <map> <memory>
                   <nlohmann/json.hpp> <optional> <random> <set> <span> <string> <thread> <vector>)
foreach(library foreshock_agent foreshock_cli_parts foreshock_exporters foreshock_lab)
  target_precompile_headers(${library} PRIVATE ${common_headers})
endforeach()

get_property(test_programs GLOBAL PROPERTY FORESHOCK_TEST_PROGRAMS)
if(test_programs)
  # A program, since its objects are compiled as those of programs are (-fPIE).
  file(CONFIGURE OUTPUT test_headers.cpp CONTENT "int main() {}\n")
  add_executable(test_headers EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/test_headers.cpp)
  target_link_libraries(test_headers PRIVATE foreshock_build GTest::gtest GTest::gmock)
  target_precompile_headers(test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h> ${common_headers})
  foreach(program IN LISTS test_programs)
    target_precompile_headers(${program} REUSE_FROM test_headers)
  endforeach()
endif()
