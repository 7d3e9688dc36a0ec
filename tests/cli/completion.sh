#!/bin/sh
# completion.sh BUILD: what bash offers for half-written command lines.
set -eu
if ! command -v bash >/dev/null; then
    echo "skip: bash is not installed"
    exit 77
fi
BUILD=$1 exec bash -s <<'EOS'
. "$BUILD/share/bash-completion/completions/freetoken"
failed=0

# expect WANTED WORD...: the last word is the one being written.
expect() {
    wanted=$1
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _freetoken_complete
    got=" ${COMPREPLY[*]} "
    case $got in
    *" $wanted "*) ;;
    *) echo "completion: '$*' gives '$got', wanted '$wanted' in it"; failed=1 ;;
    esac
}
only() {
    expect "$@"
    [ "$got" = " $1 " ] || { echo "completion: '$*' gives '$got', wanted '$1' alone"; failed=1; }
}

expect run freetoken ''
only selftest freetoken sel
only perplexity freetoken help per
only --temp freetoken run model.gguf --te
only --window freetoken perplexity --win
only '' freetoken tokenize --win
expect -p freetoken run -
only 'auto on off' freetoken run model.gguf --graphs ''
only 'on off' freetoken run model.gguf --graphs = o
only 'auto on off' freetoken run model.gguf --graphs =
only 'cpu cuda' freetoken inspect --backend c
only allow freetoken providers al
only '' freetoken run model.gguf --seed ''
only '' freetoken run mod
complete -p freetoken | grep -q -- '-F _freetoken_complete freetoken' || failed=1
complete -p freetoken | grep -q -- '-o default' || failed=1
if [ -e "$BUILD/share/bash-completion/completions/freetoken-bench" ]; then
    . "$BUILD/share/bash-completion/completions/freetoken-bench"
    complete -p freetoken-bench | grep -q -- "-F _freetoken_bench_complete" || failed=1
fi
. "$BUILD/share/bash-completion/completions/ft-provider-check"
COMP_WORDS=(ft-provider-check folder --tol) COMP_CWORD=2
_ft_provider_check_complete
[ "${COMPREPLY[*]}" = --tolerance ] || { echo "completion: ft-provider-check --tol gives '${COMPREPLY[*]}'"; failed=1; }
[ "$failed" -eq 0 ] && echo "completion: all as expected"
exit "$failed"
EOS
