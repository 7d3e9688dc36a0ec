#!/bin/sh
# manual.sh BUILD: every command has a page that explains each of its options, and roff
# has nothing to say against any page.
set -eu
build=$1
pages=$build/share/man
failed=0
fail() {
    echo "manual: $*"
    failed=1
}

# explains PAGE PROGRAM ARGUMENT...: the page has every option that the help has.
explains() {
    page=$1
    shift
    options=$("$@" | grep -oE -- '--[a-z][a-z-]+ ' | sort -u)
    [ -n "$options" ] || fail "'$*' shows no options"
    [ -s "$page" ] || fail "no page $page"
    for option in $options; do
        escaped=$(printf '%s' "$option" | sed 's/-/\\\\-/g')
        grep -q -e "\\\\fB$escaped\\\\fR" "$page" || fail "$page does not explain $option"
    done
}

explains "$pages/man1/ft-provider-check.1" "$build/bin/ft-provider-check" --help
for command in $("$build/bin/freetoken" help --commands); do
    explains "$pages/man1/freetoken-$command.1" "$build/bin/freetoken" help "$command"
    grep -q "freetoken\\\\-$command" "$pages/man1/freetoken.1" || fail "freetoken.1 lacks $command"
done
for key in providers.allow numerics memory.kv_tokens; do
    grep -q "^.fB$key.fR$" "$pages/man5/freetoken.yaml.5" || fail "freetoken.yaml.5 lacks $key"
done

if command -v groff >/dev/null; then
    for page in "$pages"/man1/* "$pages"/man5/*; do
        said=$(groff -man -ww -Tutf8 -z -rLL=78n "$page" 2>&1) || fail "groff refuses $page"
        [ -z "$said" ] || fail "$page: $said"
    done
else
    echo "note: groff is not installed: pages were not rendered"
fi
[ "$failed" -eq 0 ] && echo "manual: $(ls "$pages"/man1 "$pages"/man5 | grep -c '\.[15]$') pages"
exit "$failed"
