#!/bin/sh
# I6. install.sh SOURCE BUILD SANITIZE: installs the build below a prefix with a blank in its
# name, moves that, and uses it from there as an application, a provider's author and
# an operator would.
set -eu
umask 022
source=$1
build=$2
if [ -n "$3" ]; then
    echo "skip: the installed tree is tested without sanitizers; this build has $3"
    exit 77
fi
cc=${CC:-cc}
cxx=${CXX:-c++}
tmp=$(mktemp -d)
tmp=$(cd "$tmp" && pwd -P) # the trust checks want the path as it is reached from /
trap 'rm -rf "$tmp"' EXIT
failed=0

# Programs and packages of the prefix are found because this test names them, not because
# the user's environment does.
unset LD_LIBRARY_PATH CMAKE_PREFIX_PATH PKG_CONFIG_PATH CPATH LIBRARY_PATH
export XDG_CONFIG_HOME="$tmp/config"

fail() {
    echo "install: $1" >&2
    failed=1
}
# quietly WHAT COMMAND...: shows what the command said only if it fails.
quietly() {
    what=$1
    shift
    "$@" >"$tmp/log" 2>&1 && return 0
    cat "$tmp/log" >&2
    fail "$what"
    return 1
}
same() { # WHAT FOUND WANTED
    [ "$2" = "$3" ] || fail "$1: found '$2', wanted '$3'"
}

# ---- install, and move ----
# Also where new folders would be writable by the group.
(umask 002 && quietly "cmake --install" cmake --install "$build" --prefix "$tmp/first place") || exit 1
mkdir "$tmp/second place"
mv "$tmp/first place" "$tmp/second place/free token"
prefix="$tmp/second place/free token"
pc=$(find "$prefix" -name freetoken.pc)
lib=$(dirname "$(dirname "$pc")")
provider="$lib/freetoken/providers/qwen36"
model="$prefix/share/freetoken/tiny-story-qwen36-ud-q4_k_m.gguf"
examples="$prefix/share/doc/freetoken/examples"
config="$XDG_CONFIG_HOME/freetoken/config.yaml"
prompt="Once upon a time"

# ---- what lies there ----
for file in "$prefix/bin/freetoken" "$lib/libfreetoken.a" "$provider/qwen36.so" "$model" "${model%.gguf}.md" \
    "$provider/qwen36.provider.yaml" "$prefix/share/doc/freetoken/LICENSE"; do
    [ -f "$file" ] || fail "$file is missing"
done
same "libfreetoken.so" "$(readlink "$lib/libfreetoken.so")" libfreetoken.so.0
same "headers" "$(cd "$prefix/include" && find . -type f | sort)" "$(cd "$source/include" && find . -type f | sort)"
[ -z "$(find "$prefix" -perm /022 ! -type l)" ] || fail "others may write: $(find "$prefix" -perm /022 ! -type l)"
[ -z "$(find "$prefix" -name '*.yaml' ! -name '*.provider.yaml')" ] || fail "a configuration was installed"
names=$(nm --defined-only --extern-only "$lib/libfreetoken.a" 2>/dev/null | awk 'NF == 3 && $3 !~ /^(ftk|fti)_/ {print $3}')
[ -z "$names" ] || fail "libfreetoken.a has names without fti_ or ftk_: $names"

# Debug information may say where a source was; nothing else may.
find "$prefix" -type f >"$tmp/files"
while read -r file; do
    copy=$file
    if objcopy --strip-debug "$file" "$tmp/stripped" 2>/dev/null; then copy="$tmp/stripped"; fi
    for place in "$build/" "$source/src/" "$source/include/" "$source/providers/" "$tmp/first place/"; do
        if grep -qaF -- "$place" "$copy"; then fail "$file refers to $place"; fi
    done
    # shellcheck disable=SC2016 # the loader's $ORIGIN
    runpath=$(readelf -d "$file" 2>/dev/null | grep -E 'RPATH|RUNPATH' | grep -v '\[\$ORIGIN/' || :)
    [ -z "$runpath" ] || fail "$file has a foreign run path: $runpath"
done <"$tmp/files"

# ---- the headers alone ----
compiled=0
for header in $(cd "$prefix/include" && find freetoken -name '*.h'); do
    printf '#include <%s>\ntypedef int alone;\n' "$header" >"$tmp/alone.c"
    cp "$tmp/alone.c" "$tmp/alone.cc"
    quietly "$header as C" "$cc" -std=c99 -Wall -Wextra -pedantic -Werror -fsyntax-only "-I$prefix/include" "$tmp/alone.c" || :
    quietly "$header as C++" "$cxx" -std=c++11 -Wall -Wextra -pedantic -Werror -fsyntax-only "-I$prefix/include" "$tmp/alone.cc" || :
    compiled=$((compiled + 1))
done
[ "$compiled" -gt 0 ] || fail "no headers"

# ---- the program, and the operator's consent ----
version=$("$prefix/bin/freetoken" --version)
same "freetoken --version" "$version" "freetoken $(PKG_CONFIG_LIBDIR="$lib/pkgconfig" pkg-config --modversion freetoken)"
code=0
"$prefix/bin/freetoken" run "$model" -p "$prompt" >"$tmp/log" 2>&1 || code=$?
[ "$code" -eq 3 ] || fail "without a configuration: exit code $code, wanted 3: $(cat "$tmp/log")"
quietly "freetoken providers allow" "$prefix/bin/freetoken" providers allow "$provider" || exit 1
grep -qF "$provider/qwen36.so" "$config" || fail "$config does not name $provider/qwen36.so"
story=$("$prefix/bin/freetoken" run "$model" -p "$prompt" -n 64 2>"$tmp/log") || fail "freetoken run: $(cat "$tmp/log")"
[ "${#story}" -gt 100 ] || fail "freetoken run wrote only '$story'"

# ---- the examples ----
# try NAME PROGRAM NEEDED: generates the same story, and needs the shared library or not.
try() {
    needed=$(readelf -d "$2" | grep -c 'NEEDED.*libfreetoken\.so\.0' || :)
    same "$1: needs libfreetoken.so.0" "$needed" "$3"
    case $1 in
    *chat*)
        text=$(echo "Tell me a story about a fox." | LD_LIBRARY_PATH=$4 "$2" "$config" "$model" 2>"$tmp/log") || fail "$1: $(cat "$tmp/log")"
        case $text in *fox*) ;; *) fail "$1: no fox in '$text'" ;; esac
        ;;
    *)
        text=$(LD_LIBRARY_PATH=$4 "$2" "$config" "$model" "$prompt" 2>"$tmp/log") || fail "$1: $(cat "$tmp/log")"
        same "$1" "$text" "$story"
        ;;
    esac
    tried=$((tried + 1))
}
tried=0

# by_pkg_config KIND NEEDED FLAGS: the flags are words of a shell, blanks escaped.
by_pkg_config() {
    if eval "$cc -std=c99 \"\$examples/generate.c\" -o \"\$tmp/c-$1\" $3" &&
        eval "$cc -std=c99 \"\$examples/chat.c\" -o \"\$tmp/chat-$1\" $3" &&
        eval "$cxx -std=c++11 \"\$examples/generate.cpp\" -o \"\$tmp/c++-$1\" $3"; then
        for language in c chat c++; do
            try "$language by pkg-config, $1" "$tmp/$language-$1" "$2" "$lib"
        done
    else
        fail "the examples do not build by pkg-config, $1"
    fi
}
# The shared library asks for no other package's development files.
flags=$(PKG_CONFIG_LIBDIR="$lib/pkgconfig" pkg-config --cflags --libs freetoken) || fail "pkg-config"
by_pkg_config shared 1 "$flags"
flags=$(PKG_CONFIG_PATH="$lib/pkgconfig" pkg-config --static --cflags --libs freetoken) || fail "pkg-config --static"
by_pkg_config static 0 "$(echo "$flags" | sed 's/-lfreetoken/-l:libfreetoken.a/')"

# By the CMake package.
mkdir "$tmp/application"
cat >"$tmp/application/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(application LANGUAGES C CXX)
find_package(freetoken 0.1 REQUIRED CONFIG)
foreach(kind freetoken freetoken_static)
    add_executable(c-\${kind} "\${EXAMPLES}/generate.c")
    add_executable(chat-\${kind} "\${EXAMPLES}/chat.c")
    add_executable(c++-\${kind} "\${EXAMPLES}/generate.cpp")
    set_target_properties(c++-\${kind} PROPERTIES CXX_STANDARD 11)
    foreach(language c chat c++)
        target_link_libraries(\${language}-\${kind} PRIVATE freetoken::\${kind})
    endforeach()
endforeach()
END
# project FOLDER OPTIONS...: configures and builds it in FOLDER.build, against the prefix.
project() {
    folder=$1
    out="$tmp/$(basename "$folder").build"
    shift
    quietly "cmake $folder" cmake -S "$folder" -B "$out" -G Ninja "-DCMAKE_PREFIX_PATH=$prefix" "$@" && quietly "building $folder" cmake --build "$out"
}
if project "$tmp/application" "-DEXAMPLES=$examples"; then
    for language in c chat c++; do
        try "$language by CMake, shared" "$out/$language-freetoken" 1 ""
        try "$language by CMake, static" "$out/$language-freetoken_static" 0 ""
    done
fi

# ---- the provider, built alone ----
cp -R "$source/providers/qwen36" "$tmp/qwen36"
if project "$tmp/qwen36" -DCMAKE_BUILD_TYPE=Release; then
    quietly "installing the provider" cmake --install "$out" --prefix "$tmp/own" || :
    own=$(dirname "$(find "$tmp/own" -name qwen36.so)")
    quietly "allowing it" "$prefix/bin/freetoken" providers allow "$own" --config "$tmp/own.yaml" || :
    text=$("$prefix/bin/freetoken" run "$model" --config "$tmp/own.yaml" -p "$prompt" -n 64 2>"$tmp/log") || fail "its run: $(cat "$tmp/log")"
    same "the provider built alone" "$text" "$story"
    tried=$((tried + 1))
fi

# ---- a clone in a folder whose name a shell or a generator could trip over ----
clone="$tmp/a clone of \$me's"
mkdir "$clone"
for entry in "$source"/*; do
    case ${entry##*/} in build* | tests) ;; *) cp -R "$entry" "$clone" ;; esac
done
if quietly "cmake in a clone" cmake -S "$clone" -B "$clone/build" -G Ninja -DFTK_BUILD_TESTS=OFF -DFTK_BUILD_BENCH=OFF -DCMAKE_BUILD_TYPE=Debug &&
    quietly "building a clone" cmake --build "$clone/build" --target freetoken_cli demo_config; then
    text=$("$clone/build/bin/freetoken" run "$model" --config "$clone/build/etc/demo.yaml" -p "$prompt" -n 64 2>"$tmp/log") || fail "the clone's run: $(cat "$tmp/log")"
    same "a clone's program" "$text" "$story"
    tried=$((tried + 1))
fi
[ "$failed" -eq 0 ] && echo "install: $compiled headers, $tried programs that tell the same story"
exit "$failed"
