#!/bin/sh
# check_tidy.sh BUILD: clang-tidy over the sources that BUILD's compile_commands.json
# knows, function sizes included. Findings are errors.
set -eu
cd "$(dirname "$0")/.."
build=$1
files=$(git ls-files 'src/*.c' 'providers/*.c' 'bench/*.c' 'provider-check/*.c')
printf '%s\n' "$files" | xargs -P "$(nproc)" -n 1 clang-tidy -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option 2>/tmp/ftk-tidy.$$ || {
    grep -v 'warnings generated' /tmp/ftk-tidy.$$ >&2 || true
    rm -f /tmp/ftk-tidy.$$
    echo "clang-tidy: findings"
    exit 1
}
rm -f /tmp/ftk-tidy.$$
echo "clang-tidy: clean"
