#!/bin/sh
# check_threads.sh BUILD: a test that CI does not run under ThreadSanitizer, having neither
# the label threads nor kernel_threads, has one thread: its program imports nothing that
# starts another or runs a program, and nothing of the shared library that does.
set -eu
build=$1
failed=0
checked=0
starts='pthread_create|thrd_create|clone3?|posix_spawnp?|popen|system|exec[lv][a-z]*|fexecve|ftk_engine_open(_memory)?|ftk_selftest'
programs=$(ctest --test-dir "$build" -N --verbose -LE 'threads$' |
    sed -n 's/^[0-9]*: Test command: //p' | grep -E '/test_[a-z_0-9]+"?$' | tr -d '"')
[ -n "$programs" ] || { echo "threads: no tests in $build" >&2; exit 1; }
while read -r program; do
    checked=$((checked + 1))
    [ -x "$program" ] || { echo "threads: $program is not built" >&2; exit 1; }
    if found=$(nm -D --undefined-only "$program" | awk '{sub(/@.*/, "", $NF); print $NF}' | grep -xE "$starts"); then
        printf 'threads: %s uses %s: take SINGLE from its ftk_add_test, so that ThreadSanitizer sees it\n' \
            "${program##*/}" "$(printf '%s' "$found" | tr '\n' ' ')"
        failed=1
    fi
done <<EOF
$programs
EOF
[ "$failed" -eq 0 ] && echo "threads: clean ($checked programs have one)"
exit "$failed"
