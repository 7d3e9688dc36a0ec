#!/bin/sh
# check_neon.sh [FOLDER]: builds the whole project for 64-bit ARM (in FOLDER, default
# build-aarch64) and runs the kernels' tests and the demo model's logit hashes there, by
# qemu's user emulation: with the NEON kernels, and on a processor without dot products,
# where the reference must be taken. Closes with "N passed, N failed, N skipped".
#
# The libraries for ARM are Debian's packages of this system's own sources, unpacked into
# FOLDER/sysroot by an apt whose lists and caches lie there too: the system stays as it is.
# Emulation tells of bits only, not of speed.
set -eu
umask 022
FTK_ROOT=$(cd "$(dirname "$0")/.." && pwd -P)
. "$FTK_ROOT/scripts/common.sh"

install_packages gcc-aarch64-linux-gnu qemu-user-static make cmake ninja-build pkg-config git

case ${1:-} in
/*) BUILD=$1 ;;
*) choose_build "${1:-build-aarch64}" ;;
esac
SYSROOT="$BUILD/sysroot"

arm_apt() {
    state="$BUILD/apt"
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Debug::NoLocking=1 \
        -o APT::Sandbox::User="$(id -un)" -o Dir::State="$state" -o Dir::State::lists="$state/lists" \
        -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" "$@"
}

# What the build links, with all that it needs in turn. Whole or not there at all.
make_sysroot() {
    say "fetching the libraries for ARM ..."
    rm -rf "$BUILD/apt" "$SYSROOT.new"
    mkdir -p "$BUILD/apt/lists/partial" "$BUILD/apt/cache/archives/partial" "$SYSROOT.new"
    : >"$BUILD/apt/status"
    arm_apt update
    arm_apt install --yes --download-only --no-install-recommends libc6-dev libyaml-dev \
        libjansson-dev libpcre2-dev libssl-dev libxxhash-dev libedit-dev libcmocka-dev
    for package in "$BUILD"/apt/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$SYSROOT.new"
    done
    mv "$SYSROOT.new" "$SYSROOT"
    rm -rf "$BUILD/apt"
}
[ -d "$SYSROOT" ] || make_sysroot

say "building in $BUILD ..."
build "$BUILD" -DCMAKE_TOOLCHAIN_FILE="$FTK_ROOT/cmake/aarch64-linux-gnu.cmake" \
    -DFTK_SYSROOT="$SYSROOT" -DFTK_WERROR=ON

LOG="$BUILD/test.log"
: >"$LOG"
status=0
# tests_on PROCESSOR [ctest options...]
tests_on() {
    processor=$1
    shift
    say "testing on $processor ..."
    QEMU_CPU=$processor ctest --test-dir "$BUILD" --verbose --no-tests=error --parallel "$(nproc)" \
        "$@" >>"$LOG" 2>&1 || status=$?
}
tests_on max -R '^test_(math|quant|matmul|ops|scale|stream|pool|hashes|provenance)$'
tests_on cortex-a53 -R '^test_(scale|stream|hashes|provenance)$'
sh "$FTK_ROOT/scripts/count_tests.sh" "$LOG" "$status"
