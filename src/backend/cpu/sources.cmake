# Sources of the CPU backend. The kernels are one source compiled once per
# instruction set, optimised for vector units, with equal bits.
target_sources(freetoken_objects PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/backend.c
    ${CMAKE_CURRENT_LIST_DIR}/kernels_c.c
    ${CMAKE_CURRENT_LIST_DIR}/operators.c
    ${CMAKE_CURRENT_LIST_DIR}/pool.c
    ${CMAKE_CURRENT_LIST_DIR}/scale.c
    ${CMAKE_CURRENT_LIST_DIR}/slots.c
    ${CMAKE_CURRENT_LIST_DIR}/stream.c
    ${CMAKE_CURRENT_LIST_DIR}/system.c)
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_c.c PROPERTIES COMPILE_OPTIONS "-O3")
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    target_sources(freetoken_objects PRIVATE
        ${CMAKE_CURRENT_LIST_DIR}/kernels_avx2.c
        ${CMAKE_CURRENT_LIST_DIR}/kernels_vnni.c)
    set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_avx2.c PROPERTIES
        COMPILE_OPTIONS "-O3;-mavx2;-mfma;-mf16c")
    set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_vnni.c PROPERTIES COMPILE_OPTIONS
        "-O3;-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vnni")
elseif(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    target_sources(freetoken_objects PRIVATE ${CMAKE_CURRENT_LIST_DIR}/kernels_neon.c)
    set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels_neon.c PROPERTIES
        COMPILE_OPTIONS "-O3;-march=armv8.2-a+dotprod")
endif()
