#!/bin/sh
# symbols.sh BUILD: what the built objects export and need. The library exports ftk_
# names only and stays loaded; the provider exports its entry and nothing else, and
# takes nothing from the library but what tables hand it.
set -eu
lib=$1/lib/libfreetoken.so
provider=$1/lib/freetoken/providers/qwen36/qwen36.so
fail() {
    echo "symbols: $1" >&2
    exit 1
}
exported() {
    nm -D --defined-only "$1" | awk '$2 ~ /[TDBRVW]/ {print $3}' | sed 's/@.*//' | grep -vE '^(FREETOKEN_|__(asan|ubsan|tsan|odr)|_init$|_fini$)' || true
}
others=$(exported "$lib" | grep -v '^ftk_' || true)
[ -z "$others" ] || fail "libfreetoken.so also exports: $others"
exported "$lib" | grep -q '^ftk_engine_open$' || fail "libfreetoken.so does not export ftk_engine_open"
readelf -d "$lib" | grep -q 'SONAME.*libfreetoken\.so\.0' || fail "SONAME is not libfreetoken.so.0"
readelf -d "$lib" | grep -q 'NODELETE' || fail "libfreetoken.so can be unloaded"
readelf -d "$lib" | grep -qE 'RPATH|RUNPATH' && [ -z "${FTK_SANITIZED:-}" ] && fail "libfreetoken.so has a run path"
# EVP reads the file that OPENSSL_CONF names, which may load any code.
if nm -D --undefined-only "$lib" | grep -E ' (EVP|OPENSSL|CONF)_|getenv'; then fail "libfreetoken.so calls what reads the environment"; fi
[ "$(exported "$provider")" = freetoken_provider_v1 ] || fail "the provider exports: $(exported "$provider")"
if nm -D --undefined-only "$provider" | grep -E ' (ftk|fti)_'; then fail "the provider needs symbols of the library"; fi
readelf -n "$provider" | grep -q freetoken || fail "the provider has no note"
echo "symbols: as they should be"
