#!/bin/sh
# check_layers.sh: the rules of the layers (docs/architecture.md), as searches that
# must find nothing. Comments count too: a model's name in the core is a leak.
set -eu
cd "$(dirname "$0")/.."
failed=0

# forbid RULE PATTERN FOLDER...: an extended regular expression, case-insensitive.
forbid() {
    rule=$1
    pattern=$2
    shift 2
    if found=$(grep -rniE --include='*.[ch]' --include='*.cu' --include='*.hip' -e "$pattern" -- "$@"); then
        printf 'layering: %s:\n%s\n' "$rule" "$found"
        failed=1
    fi
}

forbid "src/ and include/ know no model" '(qwen|gdn|delta.?net|gated.?delta|(^|[^a-z])ssm)' src include
forbid "core and sched know no GPU API" '(cuda|hip)[A-Z_][a-z]*[A-Z(_]|#include *[<"](cuda|hip)' src/core src/sched
forbid "sched does no I/O and knows no backend" '#include *[<"](backend/|stdio|unistd|fcntl|pthread|sys/)' src/sched
forbid "the backends know neither core nor sched" '#include *"(core|sched)/(engine|config|loader|tokenizer|sampler|checkpoint|budget|steps)' src/backend
forbid "the library reads no environment" '(^|[^a-z_])(secure_)?getenv *\(' src/core src/sched src/backend include providers
forbid "the library never ends or interrupts the process" \
    '(^|[^a-z_])(exit|_exit|quick_exit|abort|raise|signal|sigaction|longjmp) *\(' src/core src/sched src/backend include providers
forbid "the library never prints" '(^|[^a-z_])(v?printf|puts|putchar|perror|fputs|fputc) *\(|(std(out|err))' \
    src/core src/sched src/backend include providers
forbid "allocation goes through one pair of functions" '(^|[^a-z_])(malloc|calloc|realloc|strdup|strndup) *\(' \
    src/sched src/core/engine.c src/core/plan.c src/core/serve.c src/core/step.c src/core/request.c src/core/asking.c src/core/chat.c src/core/host.c providers

# Providers see the public headers, their own files and the C library.
if found=$(grep -rnE --include='*.[ch]' '#include' providers | grep -vE '<freetoken/' | grep -E '#include *"[^"]*/|#include *<[^>]*/'); then
    printf 'layering: providers include only freetoken/ and the C library:\n%s\n' "$found"
    failed=1
fi

# Everything that is not static inside the library begins with fti_ or ftk_.
for object in "$@"; do
    if found=$(nm --defined-only --extern-only "$object" 2>/dev/null | awk 'NF == 3 {print $3}' | grep -vE '^(fti_|ftk_|__)'); then
        printf 'layering: names without fti_ or ftk_ in %s:\n%s\n' "$object" "$found"
        failed=1
    fi
done
[ "$failed" -eq 0 ] && echo "layering: clean"
exit "$failed"
