#!/bin/sh
# test.sh: installs what is missing, builds with tests, runs every test, and closes
# with "N passed, N failed, N skipped", counting single tests. Arguments: the build
# folder (default build), then `--label NAME` for the tests of one label alone (threads,
# kernel_threads), and further options of cmake.
set -eu
umask 022
FTK_ROOT=$(cd "$(dirname "$0")/.." && pwd -P)
. "$FTK_ROOT/scripts/common.sh"

# shellcheck disable=SC2086 # a list of words
install_packages $FTK_PACKAGES g++

case ${1:-} in
/*) BUILD=$1 ;;
*) choose_build "${1:-build}" ;;
esac
[ $# -eq 0 ] || shift
label=""
if [ "${1:-}" = --label ]; then
    label=${2:?"--label needs the name of a label"}
    BUILD_TARGET=tests_$label
    shift 2
fi
# Programs run side by side, but not many: most have threads of their own.
jobs=$(nproc)
[ "$jobs" -le 4 ] || jobs=4
say "building in $BUILD ..."
build "$BUILD" -DFTK_BUILD_TESTS=ON "$@"
LOG="$BUILD/test.log"
status=0
ctest --test-dir "$BUILD" --verbose --no-tests=error --parallel "$jobs" ${label:+-L "^$label\$"} \
    >"$LOG" 2>&1 || status=$?
sh "$FTK_ROOT/scripts/count_tests.sh" "$LOG" "$status"
