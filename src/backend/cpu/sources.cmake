# Sources of the CPU backend. The kernels are one source compiled once per
# instruction set, optimised for vector units, with equal bits.
file(GLOB FTK_CPU_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c)
list(FILTER FTK_CPU_SOURCES EXCLUDE REGEX "kernels_avx2\\.c$")
target_sources(freetoken_objects PRIVATE ${FTK_CPU_SOURCES})
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_c.c PROPERTIES COMPILE_OPTIONS "-O3")
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    target_sources(freetoken_objects PRIVATE ${CMAKE_CURRENT_LIST_DIR}/kernels_avx2.c)
    set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_avx2.c PROPERTIES
        COMPILE_OPTIONS "-O3;-mavx2;-mfma;-mf16c")
endif()
