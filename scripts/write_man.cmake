# write_man.cmake: manual pages and shell completion of the built programs, out of their
# own tables. -DPROGRAM=FILE [-DBENCH=FILE] -DCHECK=FILE -DCONFIG_DOC=FILE -DOUTPUT=FOLDER (share/)
# -DEMULATOR=WORD|WORD..., what runs programs that were built for another machine
cmake_minimum_required(VERSION 3.25)

string(REPLACE "|" ";" EMULATOR "${EMULATOR}")
foreach(program PROGRAM BENCH CHECK)
    if(${program})
        list(PREPEND ${program} ${EMULATOR})
    endif()
endforeach()

function(write name)
    execute_process(COMMAND ${ARGN} OUTPUT_FILE ${OUTPUT}/${name}.new COMMAND_ERROR_IS_FATAL ANY)
    file(RENAME ${OUTPUT}/${name}.new ${OUTPUT}/${name})
endfunction()

file(REMOVE_RECURSE ${OUTPUT}/man ${OUTPUT}/bash-completion ${OUTPUT}/zsh)
file(MAKE_DIRECTORY ${OUTPUT}/man/man1 ${OUTPUT}/man/man5 ${OUTPUT}/bash-completion/completions
    ${OUTPUT}/zsh/site-functions)
execute_process(COMMAND ${PROGRAM} help --commands OUTPUT_VARIABLE commands
    COMMAND_ERROR_IS_FATAL ANY)
string(STRIP "${commands}" commands)
string(REPLACE "\n" ";" commands "${commands}")
write(man/man1/freetoken.1 ${PROGRAM} help --man)
foreach(command IN LISTS commands)
    write(man/man1/freetoken-${command}.1 ${PROGRAM} help --man ${command})
endforeach()
write(bash-completion/completions/freetoken ${PROGRAM} help --completion bash)
write(zsh/site-functions/_freetoken ${PROGRAM} help --completion zsh)
if(BENCH)
    write(man/man1/freetoken-bench.1 ${BENCH} help --man all)
    write(bash-completion/completions/freetoken-bench ${BENCH} help --completion bash)
    write(zsh/site-functions/_freetoken-bench ${BENCH} help --completion zsh)
endif()
write(man/man1/ft-provider-check.1 ${CHECK} help --man)
write(bash-completion/completions/ft-provider-check ${CHECK} help --completion bash)
write(zsh/site-functions/_ft-provider-check ${CHECK} help --completion zsh)
write(man/man5/freetoken.yaml.5 awk -f ${CMAKE_CURRENT_LIST_DIR}/man_config.awk ${CONFIG_DOC})
