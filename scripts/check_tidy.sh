#!/bin/sh
# check_tidy.sh BUILD: clang-tidy over the sources that BUILD's compile_commands.json
# knows, function sizes included. Findings are errors.
set -eu
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# A source of several targets would be read once for each: the first alone is kept.
awk '/^\{/ { block = $0; next }
    /^ *"file": / { file = $0 }
    /^\}/ { if (!seen[file]++) { printf "%s%s\n}", n++ ? ",\n" : "[\n", block }; next }
    { block = block "\n" $0 }
    END { print "\n]" }' "$1/compile_commands.json" >"$tmp/compile_commands.json"
# The kernels of another architecture are not among them. The longest file comes first.
files=$(git ls-files 'src/*.c' 'providers/*.c' 'bench/*.c' 'provider-check/*.c' | xargs ls -S | while read -r file; do
    ! grep -qF "/$file\"" "$tmp/compile_commands.json" || printf '%s\n' "$file"
done)
[ -n "$files" ] || { echo "clang-tidy: no sources in $1/compile_commands.json" >&2; exit 1; }
printf '%s\n' "$files" | xargs -P "$(nproc)" -n 1 clang-tidy -p "$tmp" --quiet --extra-arg=-Wno-unknown-warning-option 2>"$tmp/log" || {
    grep -v 'warnings generated' "$tmp/log" >&2 || true
    echo "clang-tidy: findings"
    exit 1
}
echo "clang-tidy: clean"
