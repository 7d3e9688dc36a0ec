#!/bin/sh
# headers.sh ROOT: every public header compiles alone, without a warning, in every
# language that applications may use, with each compiler that is installed.
set -eu
root=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
count=0
for header in freetoken/status.h freetoken/version.h freetoken/freetoken.h freetoken/provider.h \
    freetoken/device/base.h freetoken/device/quant.h freetoken/device/dot.h freetoken/device/math.h; do
    printf '#include <%s>\ntypedef int ftk_alone;\n' "$header" >"$tmp/alone.c"
    cp "$tmp/alone.c" "$tmp/alone.cc"
    padded=-Wpadded
    case $header in freetoken/device/*) padded= ;; esac
    flags="-Wall -Wextra -Wpedantic -Werror $padded -fsyntax-only"
    for cc in gcc clang; do
        command -v "$cc" >/dev/null || continue
        for std in c99 c11 c17; do
            # shellcheck disable=SC2086 # a list of flags
            "$cc" -std=$std $flags "-I$root/include" "$tmp/alone.c"
            count=$((count + 1))
        done
    done
    for cxx in g++ clang++; do
        command -v "$cxx" >/dev/null || continue
        for std in c++11 c++14 c++17 c++20; do
            # shellcheck disable=SC2086
            "$cxx" -std=$std $flags "-I$root/include" "$tmp/alone.cc"
            count=$((count + 1))
        done
    done
done
echo "headers: $count compilations"
