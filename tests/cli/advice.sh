#!/bin/sh
# advice.sh BUILD MODEL: what a refusal tells the operator to run is run, word for word, and
# then the model runs.
set -eu
bin=$1/bin/freetoken
model=$2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() {
    echo "advice: $1" >&2
    exit 1
}
# follow TEXT: executes the command between "run: freetoken" and " (--config".
follow() {
    command=$(printf '%s\n' "$1" | sed -n 's/.*run: freetoken \(.*\) (--config FILE.*/\1/p')
    [ -n "$command" ] || fail "no command in: $1"
    eval "\"$bin\" $command --config \"$tmp/config.yaml\"" >/dev/null || fail "refused: $command"
}
run() {
    "$bin" run "$model" --config "$tmp/config.yaml" -p "The king" -n 1 2>&1 >/dev/null
}
providers=$(cd "$1/lib/freetoken/providers" && pwd -P)
mkdir "$tmp/search" && cp -R "$providers/qwen36" "$tmp/search/"
printf "providers:\n  search: ['%s']\n" "$tmp/search" >"$tmp/config.yaml"
message=$(run) && fail "a provider that is not allowed was loaded"
follow "$message"
message=$(run) || fail "after following the advice: $message"
printf 'x' >>"$tmp/search/qwen36/qwen36.so"
message=$(run) && fail "a changed provider was loaded"
follow "$message"
message=$(run) || fail "after following the second advice: $message"
echo "advice: followed twice"
