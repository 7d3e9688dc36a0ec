# Writes OUTPUT: a configuration that allows PROVIDER by its path and SHA-256, and
# nothing else.
file(REAL_PATH ${PROVIDER} path)
file(REAL_PATH ${SEARCH} search)
file(SHA256 ${path} digest)
string(REPLACE "'" "''" path_text "${path}")
string(REPLACE "'" "''" search_text "${search}")
set(text "# Written by the build: allows the provider that was just built, and no other.
providers:
  search: ['${search_text}']
  allow:
    - name: qwen36
      path: '${path_text}'
      sha256: ${digest}
")
set(old "")
if(EXISTS ${OUTPUT})
    file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
    file(WRITE ${OUTPUT} "${text}")
    file(CHMOD ${OUTPUT} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endif()
