#!/bin/sh
# test.sh: installs what is missing, builds with tests, runs every test, and closes
# with "N passed, N failed, N skipped", counting single tests. Arguments: the build
# folder (default build) and further options of cmake.
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
say "building in $BUILD ..."
build "$BUILD" -DFTK_BUILD_TESTS=ON "$@"
LOG="$BUILD/test.log"
status=0
ctest --test-dir "$BUILD" --verbose --no-tests=error >"$LOG" 2>&1 || status=$?
sh "$FTK_ROOT/scripts/count_tests.sh" "$LOG" "$status"
