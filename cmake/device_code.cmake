# Makes libforeshock.fatbin, the kernels for CUDA devices: machine code for each architecture, and PTX for later ones, in
# a file beside the library, which reads the file when it first needs a kernel. CMake's own CUDA language is not used,
# because it would link the CUDA runtime and require a toolkit for every build.
#
# A driver loads machine code that an assembler (ptxas) of its own major version or an older one has made, and PTX of its
# own version or an older one. So nvcc only makes PTX, once, for the oldest architecture. This PTX is marked as version
# 8.0 and assembled by ptxas 12.0, which would reject an instruction of a later version; ptxas 12.9 assembles it for the
# architectures that 12.0 does not know. The drivers for those are of CUDA 12.8 or later. The result loads from driver
# 525 (CUDA 12.0) on. `./dev` installs both assemblers. Without them, the ptxas of nvcc makes the machine code, which
# loads from a driver of its major version on.
#
# Sets FORESHOCK_HAS_DEVICE_CODE, FORESHOCK_FATBIN, and FORESHOCK_OLDEST_DRIVER as cuDriverGetVersion returns versions.

set(FORESHOCK_PTXAS "${PROJECT_SOURCE_DIR}/build/ptxas" CACHE PATH
    "Folder with the assemblers 12.0/ptxas and 12.9/ptxas, which ./dev installs, for drivers from 525 on")

set(nvcc_flags -std=c++20 --expt-relaxed-constexpr
  # Every operation is rounded separately, as on the host.
  --fmad=false
  --Werror all-warnings
  -arch=compute_80)

# Whether nvcc exists and compiles with the host compiler that it finds.
function(foreshock_check_nvcc result)
  set(${result} OFF PARENT_SCOPE)
  if(NOT FORESHOCK_DEVICE_CODE)
    return()
  endif()
  find_program(FORESHOCK_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(NOT FORESHOCK_NVCC)
    return()
  endif()
  set(probe ${CMAKE_CURRENT_BINARY_DIR}/probe.cu)
  file(WRITE ${probe} "#include <cstdint>\nextern \"C\" __global__ void probe(uint32_t* to) { *to = 1; }\n")
  execute_process(COMMAND ${FORESHOCK_NVCC} ${nvcc_flags} -ptx -o ${probe}.ptx ${probe}
                  RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(failed)
    message(WARNING "${FORESHOCK_NVCC} is left alone, kernels for devices are not built:\n${said}")
    return()
  endif()
  set(${result} ON PARENT_SCOPE)
endfunction()

foreshock_check_nvcc(FORESHOCK_HAS_DEVICE_CODE)
add_feature_info(device-code FORESHOCK_HAS_DEVICE_CODE
                 "kernels for devices, made by nvcc (off: FORESHOCK_DEVICE_CODE=OFF); without, tensors on devices are not read")
if(NOT FORESHOCK_HAS_DEVICE_CODE)
  return()
endif()

# The tools of one toolkit lie in one folder.
get_filename_component(toolkit_folder ${FORESHOCK_NVCC} DIRECTORY)
find_program(FORESHOCK_NVCC_PTXAS ptxas HINTS ${toolkit_folder} REQUIRED)
find_program(FORESHOCK_FATBINARY fatbinary HINTS ${toolkit_folder} REQUIRED)
execute_process(COMMAND ${FORESHOCK_NVCC} --version OUTPUT_VARIABLE nvcc_version)
string(REGEX MATCH "release ([0-9]+)\\." matched "${nvcc_version}")
set(toolkit_major ${CMAKE_MATCH_1})

# `machine_code`: architecture and its assembler.
if(EXISTS ${FORESHOCK_PTXAS}/12.0/ptxas AND EXISTS ${FORESHOCK_PTXAS}/12.9/ptxas)
  set(FORESHOCK_OLDEST_DRIVER 12000)
  set(machine_code)
  foreach(architecture 80 86 89 90)
    list(APPEND machine_code ${architecture} ${FORESHOCK_PTXAS}/12.0/ptxas)
  endforeach()
  foreach(architecture 100 103 120)
    list(APPEND machine_code ${architecture} ${FORESHOCK_PTXAS}/12.9/ptxas)
  endforeach()
  set(mark_ptx COMMAND sed -i "s/^[.]version .*/.version 8.0/" device_kernels.ptx)
else()
  math(EXPR FORESHOCK_OLDEST_DRIVER "1000 * ${toolkit_major}")
  set(machine_code)
  foreach(architecture 80 90 100 120)
    list(APPEND machine_code ${architecture} ${FORESHOCK_NVCC_PTXAS})
  endforeach()
  set(mark_ptx)
  message(STATUS "Kernels for devices will need a driver of CUDA ${toolkit_major}.0 or later: ${FORESHOCK_PTXAS} has no "
                 "12.0/ptxas and 12.9/ptxas, which ./dev build installs, for drivers from 525 (CUDA 12.0) on")
endif()

set(folder ${CMAKE_CURRENT_BINARY_DIR})
set(ptx ${folder}/device_kernels.ptx)
add_custom_command(OUTPUT ${ptx}
  COMMAND ${FORESHOCK_NVCC} ${nvcc_flags} -I${PROJECT_SOURCE_DIR} -MD -MF ${folder}/device_kernels.d
          -ptx -o ${ptx} ${PROJECT_SOURCE_DIR}/kernels/device_kernels.cu
  ${mark_ptx}
  DEPENDS ${PROJECT_SOURCE_DIR}/kernels/device_kernels.cu
  DEPFILE ${folder}/device_kernels.d
  WORKING_DIRECTORY ${folder}
  COMMENT "PTX of the kernels for devices" VERBATIM COMMAND_EXPAND_LISTS)

set(images)
set(cubins)
while(machine_code)
  list(POP_FRONT machine_code architecture assembler)
  set(cubin ${folder}/device_kernels.sm_${architecture}.cubin)
  # A kernel that spills registers into memory fails the build.
  add_custom_command(OUTPUT ${cubin}
    COMMAND ${assembler} -arch sm_${architecture} --fmad false --warn-on-spills --warning-as-error -o ${cubin} ${ptx}
    DEPENDS ${ptx} ${assembler}
    COMMENT "Kernels for sm_${architecture}" VERBATIM)
  list(APPEND cubins ${cubin})
  list(APPEND images --image3=kind=elf,sm=${architecture},file=${cubin})
endwhile()

# Not compressed: the default compression of this tool needs a driver of CUDA 12.4.
set(FORESHOCK_FATBIN ${PROJECT_BINARY_DIR}/lib/libforeshock.fatbin)
add_custom_command(OUTPUT ${FORESHOCK_FATBIN}
  COMMAND ${FORESHOCK_FATBINARY} --create=${FORESHOCK_FATBIN} -64 --compress=false ${images}
          --image3=kind=ptx,sm=80,file=${ptx}
  DEPENDS ${cubins} ${ptx}
  COMMENT "Kernels for devices" VERBATIM COMMAND_EXPAND_LISTS)
