# commit.cmake: writes OUTPUT, a header that names the commit of SOURCE, if what it would
# say has changed. Outside a checkout of its own (a release, a copy inside somebody else's
# repository) it names VERSION.
set(commit "release ${VERSION}")
find_program(GIT git)
if(GIT)
    execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-toplevel
        OUTPUT_VARIABLE top RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    file(REAL_PATH "${SOURCE}" source)
    if(NOT failed AND "${top}" STREQUAL "${source}")
        execute_process(COMMAND ${GIT} --no-optional-locks -C ${SOURCE} describe --always --dirty
                --tags --abbrev=12
            OUTPUT_VARIABLE found RESULT_VARIABLE failed ERROR_QUIET
            OUTPUT_STRIP_TRAILING_WHITESPACE)
        if(NOT failed)
            set(commit "${found}")
        endif()
    endif()
endif()
set(text "/* Written by the build: bench/commit.cmake. */\n#define FTI_BENCH_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS "${OUTPUT}")
    file(READ "${OUTPUT}" old)
endif()
if(NOT old STREQUAL text)
    file(WRITE "${OUTPUT}" "${text}")
endif()
