# aarch64-linux-gnu.cmake: builds for 64-bit ARM on another machine, with Debian's cross
# compiler, and runs what was built by qemu's user emulation, tests included:
#   cmake -S . -B build-aarch64 -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -DFTK_SYSROOT=FOLDER
# FOLDER has the C library and the libraries for ARM, unpacked from Debian's packages as
# they are; scripts/check_neon.sh makes one, and does all of the above.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

if(NOT IS_DIRECTORY "${FTK_SYSROOT}/usr/lib/aarch64-linux-gnu")
    message(FATAL_ERROR "FTK_SYSROOT is '${FTK_SYSROOT}': give a folder with the libraries for ARM, as "
            "scripts/check_neon.sh makes one (usr/lib/aarch64-linux-gnu in it)")
endif()
set(CMAKE_SYSROOT "${FTK_SYSROOT}")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FTK_SYSROOT)

set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
foreach(kind LIBRARY INCLUDE PACKAGE)
    set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${FTK_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR} "${FTK_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig")

# QEMU_CPU in the environment chooses a processor: cortex-a53 is one without dot products.
# The sysroot's loader is the program, since qemu's own -L shows the sysroot in the place of
# the root folder to whoever opens that, as the trust checks do.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static "${FTK_SYSROOT}/lib/ld-linux-aarch64.so.1"
    --library-path "${FTK_SYSROOT}/lib/aarch64-linux-gnu:${FTK_SYSROOT}/usr/lib/aarch64-linux-gnu")
