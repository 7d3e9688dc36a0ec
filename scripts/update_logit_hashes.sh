#!/bin/sh
# update_logit_hashes.sh [BUILD]: builds, and writes tests/data/logit_hashes.json from the
# reference path. Only a change of the arithmetic is a reason to run it: then
# FTK_NUMERICS_VERSION rises too, and docs/numerics.md says what changed.
set -eu
umask 022
FTK_ROOT=$(cd "$(dirname "$0")/.." && pwd -P)
. "$FTK_ROOT/scripts/common.sh"

BUILD=${1:-build}
case $BUILD in
/*) ;;
*) BUILD="$FTK_ROOT/$BUILD" ;;
esac
say "building in $BUILD ..."
build "$BUILD" -DFTK_BUILD_TESTS=ON
"$BUILD/tests/test_hashes" --write "$FTK_ROOT/tests/data/logit_hashes.json"
say "wrote tests/data/logit_hashes.json"
