#!/bin/sh
# cases.sh ROOT: holds docs/cases.md and the tests together: every id of the tables, and each
# of G1 to G24, occurs in the tests, and every test that a table names is there.
set -eu
cd "$1"
failed=0
complain() {
    echo "cases: $*"
    failed=1
}

ids=$(sed -n 's/^| \([A-Z][0-9][0-9]*\) |.*/\1/p' docs/cases.md)
[ "$(echo "$ids" | wc -l)" -ge 40 ] || complain "docs/cases.md has fewer than 40 ids"
for n in $(seq 24); do
    echo "$ids" | grep -qx "G$n" || complain "G$n is not in docs/cases.md"
done
for id in $ids; do
    row=$(grep "^| $id |" docs/cases.md)
    [ "$(echo "$row" | wc -l)" -eq 1 ] || complain "$id is in docs/cases.md more than once"
    grep -rqiE --include='*.[ch]' --include='*.sh' --exclude=cases.sh "(^|[^a-z0-9])$id([^0-9a-z]|\$)" tests ||
        complain "$id occurs in no test"
    # Words in the last column that can only be names of test functions, or of programs.
    for name in $(echo "$row" | sed 's/.*|\(.*\)|$/\1/' | grep -oE '[a-z][a-z0-9]*(_[a-z0-9]+)+'); do
        grep -rqw --include='*.[ch]' --include=CMakeLists.txt "$name" tests ||
            [ -n "$(find tests -name "$name.c")" ] ||
            [ -n "$(find tests -name "${name#script_}.sh")" ] ||
            complain "$id names $name, which is no test"
    done
done

# G16: what comes after opening is a statement, not a test.
grep -q SIGBUS docs/trust.md || complain "G16: docs/trust.md does not say what happens"
# G22: nothing restores a saved state; whatever will do so gets the reader's treatment.
! grep -nE 'ftk_[a-z_]*(save|restore|snapshot)' include/freetoken/*.h ||
    complain "G22: there are saved states now, and no test of damaged ones"

[ "$failed" -eq 0 ] && echo "cases: $(echo "$ids" | wc -l) ids, each with its tests"
exit "$failed"
