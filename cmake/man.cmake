# Manual pages and shell completion, made at build by the programs themselves.
include(GNUInstallDirs)
list(JOIN CMAKE_CROSSCOMPILING_EMULATOR "|" manual_emulator)
set(manual_programs -DPROGRAM=$<TARGET_FILE:freetoken_cli>)
set(manual_depends freetoken_cli)
if(FTK_BUILD_BENCH)
    list(APPEND manual_programs -DBENCH=$<TARGET_FILE:freetoken_bench>)
    list(APPEND manual_depends freetoken_bench)
endif()
list(APPEND manual_programs -DCHECK=$<TARGET_FILE:ft_provider_check>)
list(APPEND manual_depends ft_provider_check)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/share/man/man1/freetoken.1
    COMMAND ${CMAKE_COMMAND} ${manual_programs} "-DEMULATOR=${manual_emulator}"
            -DCONFIG_DOC=${CMAKE_CURRENT_SOURCE_DIR}/docs/config.md
            -DOUTPUT=${CMAKE_BINARY_DIR}/share
            -P ${CMAKE_CURRENT_SOURCE_DIR}/scripts/write_man.cmake
    DEPENDS ${manual_depends} ${CMAKE_CURRENT_SOURCE_DIR}/docs/config.md
            ${CMAKE_CURRENT_SOURCE_DIR}/scripts/write_man.cmake
            ${CMAKE_CURRENT_SOURCE_DIR}/scripts/man_config.awk
    COMMENT "Writing share/man and shell completion" VERBATIM)
add_custom_target(manual ALL DEPENDS ${CMAKE_BINARY_DIR}/share/man/man1/freetoken.1)
install(DIRECTORY ${CMAKE_BINARY_DIR}/share/man/ DESTINATION ${CMAKE_INSTALL_MANDIR})
install(DIRECTORY ${CMAKE_BINARY_DIR}/share/bash-completion ${CMAKE_BINARY_DIR}/share/zsh
    DESTINATION ${CMAKE_INSTALL_DATADIR})
