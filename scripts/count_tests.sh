#!/bin/sh
# count_tests.sh LOG STATUS: reads the log of `ctest --verbose` and prints what each
# failed or skipped test said, then one line with the number of single tests that
# passed, failed and were skipped. A program that ended without its closing line (a
# crash, a time-out) counts as one failure. Exits non-zero if anything failed.
set -eu
log=$1
ctest_status=$2
awk -v ctest_status="$ctest_status" '
    # Lines of a running test begin with its number and a colon; programs that run at the
    # same time take turns.
    { line = $0; program = match(line, /^[0-9]+: /) ? substr(line, 1, RLENGTH) : ""; sub(/^[0-9]+: /, "", line) }
    line ~ /^\[       OK \]/ { passed++ }
    line ~ /^\[  FAILED  \] [A-Za-z_0-9]+$/ && !listing[program] { failed++; show[++shown] = line }
    line ~ /^\[  SKIPPED \] [A-Za-z_0-9]+$/ && !listing[program] { skipped++; show[++shown] = line }
    line ~ /^skip: / { show[++shown] = line }
    line ~ /^\[==========\] Running/ { listing[program] = 0 }
    line ~ /^\[==========\] [0-9]+ test\(s\) run/ { listing[program] = 1 }
    line ~ /^\[  ERROR   \]/ || line ~ /^ERROR: / { show[++shown] = line }
    # The summary of ctest: programs that are no cmocka groups count as one each.
    $0 ~ /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / {
        name = $4
        ended[name] = $0
        if ($0 ~ /\*\*\*(Exception|Timeout|Not Run)/ || $0 ~ /Subprocess (aborted|killed)/) { failed++; show[++shown] = $0 }
        else if (!seen_ok[name] && name ~ /^script_/) { if ($0 ~ /Passed/) passed++; else if ($0 ~ /Skipped/) skipped++; else { failed++; show[++shown] = $0 } }
    }
    END {
        for (i = 1; i <= shown; i++) print show[i]
        if (ctest_status != 0 && failed == 0) { failed = 1; print "ctest failed with status " ctest_status }
        printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
        exit failed > 0
    }' "$log"
