# SPDX-License-Identifier: Apache-2.0
# Installs header and library into an empty folder and builds the example against them alone.
file(REMOVE_RECURSE "${PREFIX}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --component c --prefix "${PREFIX}"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CC}" -std=c99 -Wall -Wextra -pedantic -Werror "-I${PREFIX}/${INCLUDE}"
  "${SOURCE}" "-L${PREFIX}/${LIB}" -lyeto -lm "-Wl,-rpath,${PREFIX}/${LIB}" -o "${PREFIX}/c_learner"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${PREFIX}/c_learner" --version OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
if(NOT said STREQUAL "yeto ${VERSION}\n")
  message(FATAL_ERROR "the installed library says: ${said}")
endif()
