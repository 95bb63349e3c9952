# CMake toolchain file: compiles on another processor for Linux on aarch64, with Debian's cross compiler. Programs that
# the build or ctest starts run under qemu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
# Libraries of this machine's processor are not found by chance. Headers of /usr/include are the same for both.
set(CMAKE_IGNORE_PREFIX_PATH /usr/local)
