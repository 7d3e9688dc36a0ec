#!/bin/sh
# I7. template.sh SOURCE BUILD SANITIZE: with nothing but an installed tree, a newcomer builds
# the provider template, allows it, runs it and asks about it, as docs/provider-guide.md says.
set -eu
umask 022
source=$1
build=$2
if [ -n "$3" ]; then
    echo "skip: the installed tree is tested without sanitizers; this build has $3"
    exit 77
fi
tmp=$(mktemp -d)
tmp=$(cd "$tmp" && pwd -P) # the trust checks want the path as it is reached from /
trap 'rm -rf "$tmp"' EXIT
fail() {
    echo "template: $1" >&2
    [ ! -f "$tmp/log" ] || cat "$tmp/log" >&2
    exit 1
}
same() { # WHAT FOUND WANTED
    [ "$2" = "$3" ] || fail "$1: found '$2', wanted '$3'"
}
# refused WHAT CODE TEXT COMMAND...: ends with this exit code and says so.
refused() {
    what=$1
    wanted=$2
    text=$3
    shift 3
    code=0
    "$@" >"$tmp/log" 2>&1 || code=$?
    same "$what: exit code" "$code" "$wanted"
    grep -q -- "$text" "$tmp/log" || fail "$what: nothing about '$text'"
}

# A newcomer has a home, and neither a configuration nor our build's variables.
unset LD_LIBRARY_PATH CMAKE_PREFIX_PATH PKG_CONFIG_PATH CPATH LIBRARY_PATH XDG_CONFIG_HOME
export HOME="$tmp/home" CFLAGS="-Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes"
mkdir "$HOME"
prefix="$tmp/installed"
cmake --install "$build" --prefix "$prefix" >"$tmp/log" 2>&1 || fail "cmake --install"
PATH="$prefix/bin:$PATH"
examples="$prefix/share/doc/freetoken/examples"
same "the template as installed" "$(cd "$examples/provider-template" && ls)" "$(cd "$source/docs/examples/provider-template" && ls)"

# ---- the guide, word for word ----
# Its blocks of commands, with the prefix of this test; of all of them only the first run,
# before anything is allowed, may fail. The reference of ft-provider-check has examples of its own.
awk '/^## Checking a provider/ {exit} /^ *```sh/ {on = 1; next} /^ *```/ {on = 0} on' "$prefix/share/doc/freetoken/provider-guide.md" |
    sed "s#/usr/local#$prefix#" >"$tmp/guide.sh"
(cd "$HOME" && umask 002 && sh "$tmp/guide.sh") >"$tmp/log" 2>&1 || fail "the last command of the guide"
same "what the guide's commands refuse" "$(grep -c 'error:' "$tmp/log")" 1
grep -q "error: no configuration.*providers allow" "$tmp/log" || fail "another refusal than that of the guide"
same "runs in the guide" "$(grep -o defghijklmnopqrstuvwxyz "$tmp/log" | wc -l)" 2
grep -q " passed, 0 failed, 0 skipped" "$tmp/log" || fail "ft-provider-check on the renamed template"
cd "$HOME/provider-template"
cmp chosen.f32 reference.f32 || fail "the guide's comparison"
[ "$(wc -c <alphabet.gguf)" -lt 1000000 ] || fail "alphabet.gguf is not small"
refused "a name in no search folder" 4 "no provider 'template' in the search" freetoken providers allow template

# ---- run: twice the same text, and the same bits from every variant ----
run() {
    freetoken run alphabet.gguf -p abc "$@" 2>"$tmp/log" || fail "freetoken run $*"
}
same "the alphabet" "$(run)" defghijklmnopqrstuvwxyz
same "the second run" "$(run)" defghijklmnopqrstuvwxyz
answer=$(echo hello | freetoken chat alphabet.gguf 2>"$tmp/log") || fail "freetoken chat"
same "an answer" "$answer" abcdefghijklmnopqrstuvwxyz
chosen=$(run --json | sed -n 's/.*"chosen": *"\(template\/relu2_[a-z0-9]*\)".*/\1/p')
[ -n "$chosen" ] || fail "no variant in the provenance"
text="The quick brown fox, 42 of them,  jumps over the lazy dog, over sixty-four positions and on to the next page."
freetoken logits alphabet.gguf -p "$text" --out "$tmp/chosen" >"$tmp/log" 2>&1 || fail "freetoken logits"
(cat "$HOME/.config/freetoken/config.yaml" && echo "policy: {fused: off}") >"$tmp/reference.yaml"
freetoken logits alphabet.gguf -p "$text" --out "$tmp/reference" --config "$tmp/reference.yaml" --chunk 7 \
    --threads 1 --graphs off >"$tmp/log" 2>&1 || fail "freetoken logits with policy.fused: off"
freetoken run alphabet.gguf -p abc --config "$tmp/reference.yaml" --json 2>&1 | grep -q '"chosen": *"template/relu2_reference"' || fail "policy.fused: off chose another variant"
cmp "$tmp/chosen" "$tmp/reference" || fail "$chosen and the reference differ"

# ---- what is said about it ----
freetoken providers explain alphabet.gguf >"$tmp/log" 2>&1 || fail "providers explain"
grep -q "^yes template" "$tmp/log" || fail "providers explain does not name the template"
freetoken providers list >"$tmp/log" 2>&1 || fail "providers list"
grep -q "^template 0.1.0: allowed, pinned, ok" "$tmp/log" || fail "providers list does not show the template"
freetoken providers check >"$tmp/log" 2>&1 || fail "providers check"

# ---- a changed build is another file; allowing by name from a search folder ----
printf 'x' >>build/providers/template/template.so
refused "a changed provider" 4 "allow --update" freetoken run alphabet.gguf -p abc
rm build/providers/template/template.so
cmake --build build >"$tmp/log" 2>&1 || fail "the second build"
cmake --install build --prefix "$prefix" >"$tmp/log" 2>&1 || fail "installing the template"
search=$(dirname "$(dirname "$(find "$prefix" -name template.so)")")
printf 'providers:\n  search: ["%s"]\n' "$search" >"$HOME/.config/freetoken/config.yaml"
refused "found but not allowed" 4 "template-dense" freetoken run alphabet.gguf -p abc
freetoken providers allow template >"$tmp/log" 2>&1 || fail "providers allow NAME"
same "the installed provider" "$(run)" defghijklmnopqrstuvwxyz

# ---- a damaged file is refused by the provider's own checks ----
LC_ALL=C sed 's/template-dense.block_count/template-dense.block_counT/' alphabet.gguf >damaged.gguf
refused "a missing key" 5 "block_count' is missing" freetoken run damaged.gguf -p abc
echo "template: built, allowed and run from the installed tree; $chosen gives the bits of the reference"
