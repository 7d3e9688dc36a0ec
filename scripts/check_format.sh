#!/bin/sh
# check_format.sh: every C file is as clang-format (14, Debian 12) writes it, and no
# text file has tabs at line starts, trailing blanks or a missing last newline.
# With --fix, rewrites C files.
set -eu
cd "$(dirname "$0")/.."
files=$(git ls-files '*.c' '*.h')
if [ "${1:-}" = --fix ]; then
    # shellcheck disable=SC2086 # file names of this tree have no blanks
    clang-format -i $files
    exit 0
fi
failed=0
# shellcheck disable=SC2086
clang-format --dry-run -Werror $files || failed=1
texts=$(git ls-files | grep -vE '^tests/data/|\.tsv$')
# shellcheck disable=SC2086
if grep -nIE '[[:blank:]]+$' $texts; then
    echo "format: trailing blanks"
    failed=1
fi
for file in $texts; do
    [ ! -s "$file" ] || [ -z "$(tail -c 1 "$file")" ] || { echo "format: $file: no newline at its end"; failed=1; }
done
[ "$failed" -eq 0 ] && echo "format: clean"
exit "$failed"
