# common.sh: what demo.sh and test.sh share: packages, building. Sourced, POSIX sh.

# What the build and the tests need, by Debian package.
FTK_PACKAGES="gcc libc6-dev make cmake ninja-build pkg-config git
libyaml-dev libjansson-dev libpcre2-dev libssl-dev libxxhash-dev libedit-dev libcmocka-dev"

say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "error: $*"
    exit 1
}

# Runs a command as root: directly, or through sudo for this one command.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        die "packages are missing and there is neither root nor sudo: install them with: apt-get install $*"
    fi
}

# Installs those of the packages that are missing; says nothing if none is.
install_packages() {
    command -v dpkg-query >/dev/null 2>&1 ||
        die "this is not a Debian system: install the counterparts of: $*"
    missing=""
    for package in "$@"; do
        state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=""
        [ "$state" = installed ] || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    say "installing:$missing"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    # shellcheck disable=SC2086 # a list of words
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# Folders that may hold a provider: every one from / down must belong to root or to this
# user, and not be writable by others (a sticky folder of root's, such as /tmp, may, if what
# lies in it is ours). Prints the first that is not so.
first_untrusted() {
    path=$1
    below=""
    while :; do
        owner=$(stat -c %u "$path")
        mode=$(stat -c %a "$path")
        if [ "$owner" -ne 0 ] && [ "$owner" -ne "$(id -u)" ]; then
            printf '%s (belongs to user %s)\n' "$path" "$(stat -c %U "$path")"
            return 0
        fi
        if [ $((0$mode & 022)) -ne 0 ]; then
            below_owner=$(stat -c %u "${below:-$path}")
            if [ $((0$mode & 01000)) -eq 0 ] || [ "$owner" -ne 0 ] || [ -z "$below" ] ||
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

# choose_build NAME: sets BUILD to the clone's NAME, or, where providers could not be loaded
# from there or nothing can be written, to a folder of the user's own. Says which and why.
choose_build() {
    BUILD="$FTK_ROOT/$1"
    nearest=$BUILD
    [ -d "$nearest" ] || nearest=$FTK_ROOT
    reason=$(first_untrusted "$nearest")
    if [ -z "$reason" ] && [ -w "$nearest" ]; then
        return 0
    fi
    BUILD="${XDG_DATA_HOME:-$HOME/.local/share}/freetoken/$1"
    if [ -n "$reason" ]; then
        say "A folder of this clone, or above it, fails the trust checks for providers:"
        say "  $reason"
    else
        say "$nearest cannot be written by this user."
    fi
    say "Building in $BUILD instead, and running from there."
    mkdir -p "$BUILD"
    reason=$(first_untrusted "$BUILD")
    [ -z "$reason" ] || die "$reason also fails the trust checks: set XDG_DATA_HOME to a folder that only you can write (chmod go-w)"
}

# build FOLDER [cmake options...]: configures and builds, quietly unless it fails; all of it,
# or BUILD_TARGET. A folder that was configured for another clone, or has moved since, is
# configured anew.
build() {
    folder=$1
    shift
    log="$folder/build.log"
    mkdir -p "$folder" || die "$folder cannot be made: run this as the owner of the clone"
    cache="$folder/CMakeCache.txt"
    if [ -f "$cache" ] && ! { grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$FTK_ROOT" "$cache" &&
        grep -qxF "CMAKE_CACHEFILE_DIR:INTERNAL=$folder" "$cache"; }; then
        set -- --fresh "$@"
    fi
    if ! { cmake -S "$FTK_ROOT" -B "$folder" -G Ninja "$@" && cmake --build "$folder" --target "${BUILD_TARGET:-all}"; } >"$log" 2>&1; then
        tail -n 60 "$log" >&2
        die "the build failed; the whole log is $log"
    fi
}
