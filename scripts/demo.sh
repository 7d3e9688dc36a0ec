#!/bin/sh
# demo.sh: installs what is missing, builds, and lets the embedded demo model tell
# a story. Runs under sh and bash, as root or as a user (sudo is used for packages
# only).
set -eu
umask 022
FTK_ROOT=$(cd "$(dirname "$0")/.." && pwd -P)
. "$FTK_ROOT/scripts/common.sh"

PROMPT="Once upon a time there was a little girl who"
MODEL="$FTK_ROOT/tests/data/tiny-story-qwen36-ud-q4_k_m.gguf"

# Folders that may hold a provider: every one from / down must belong to root or
# to this user, and not be writable by others (a sticky folder of root's, such as
# /tmp, may, if what lies in it is ours). Prints the first that is not so.
first_untrusted() {
    path=$1
    below=""
    while :; do
        owner=$(stat -c %u "$path")
        mode=$(stat -c %a "$path")
        last=$((0$mode & 022))
        sticky=$((0$mode & 01000))
        if [ "$owner" -ne 0 ] && [ "$owner" -ne "$(id -u)" ]; then
            printf '%s (belongs to user %s)\n' "$path" "$(stat -c %U "$path")"
            return 0
        fi
        if [ "$last" -ne 0 ]; then
            below_owner=$(stat -c %u "${below:-$path}")
            if [ "$sticky" -eq 0 ] || [ "$owner" -ne 0 ] || [ -z "$below" ] ||
                { [ "$below_owner" -ne 0 ] && [ "$below_owner" -ne "$(id -u)" ]; }; then
                printf '%s (others may write to it: mode %s)\n' "$path" "$mode"
                return 0
            fi
        fi
        [ "$path" != / ] || return 0
        below=$path
        path=$(dirname "$path")
    done
}

# shellcheck disable=SC2086 # a list of words
install_packages $FTK_PACKAGES

BUILD="$FTK_ROOT/build"
UNTRUSTED=$(first_untrusted "$FTK_ROOT")
if [ -n "$UNTRUSTED" ]; then
    BUILD="${XDG_DATA_HOME:-$HOME/.local/share}/freetoken/build"
    say "A folder above this clone fails the trust checks for providers:"
    say "  $UNTRUSTED"
    say "Building in $BUILD instead, and running from there."
fi
if [ -d "$BUILD" ] && [ ! -w "$BUILD" ]; then
    die "$BUILD belongs to another user: remove it, or run this as that user"
fi

say "building (about a minute the first time) ..."
build "$BUILD" -DFTK_BUILD_TESTS=OFF
STILL=$(first_untrusted "$BUILD")
[ -z "$STILL" ] || die "$STILL also fails the trust checks: set XDG_DATA_HOME to a folder that only you can write"

say ""
printf '%s' "$PROMPT"
"$BUILD/bin/freetoken" run "$MODEL" --config "$BUILD/etc/demo.yaml" -p "$PROMPT" -n 160 --ignore-eos

cat >&2 <<END

That was a 33-million-parameter mixture of experts, run through a provider that
$BUILD/etc/demo.yaml allows by path and SHA-256. Where to go next:
  another story  $BUILD/bin/freetoken run --config $BUILD/etc/demo.yaml \\
                   $MODEL -p "The king said" --temp 0.8 --seed 1
  look inside    $BUILD/bin/freetoken inspect $MODEL
  who may load   $BUILD/bin/freetoken providers list --config $BUILD/etc/demo.yaml
  the tests      scripts/test.sh
  how it works   docs/architecture.md
END
