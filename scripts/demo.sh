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

# shellcheck disable=SC2086 # a list of words
install_packages $FTK_PACKAGES

choose_build build
say "building (about a minute the first time) ..."
build "$BUILD" -DFTK_BUILD_TESTS=OFF
say ""
printf '%s' "$PROMPT"
"$BUILD/bin/freetoken" run "$MODEL" --config "$BUILD/etc/demo.yaml" -p "$PROMPT" -n 160 --ignore-eos

cat >&2 <<END

That was a 33-million-parameter mixture of experts, run through a provider that
$BUILD/etc/demo.yaml allows by path and SHA-256. Where to go next:
  cd "$BUILD"
  another story  bin/freetoken run --config etc/demo.yaml \\
                   "$MODEL" -p "The king said" --temp 0.8 --seed 1
  look inside    bin/freetoken inspect "$MODEL"
  who may load   bin/freetoken providers list --config etc/demo.yaml
  the tests      scripts/test.sh, in the clone
  how it works   docs/architecture.md
END
