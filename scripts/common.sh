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

# build FOLDER [cmake options...]: configures and builds, quietly unless it fails.
build() {
    folder=$1
    shift
    log="$folder/build.log"
    mkdir -p "$folder"
    if ! { cmake -S "$FTK_ROOT" -B "$folder" -G Ninja "$@" && cmake --build "$folder"; } >"$log" 2>&1; then
        tail -n 60 "$log" >&2
        die "the build failed; the whole log is $log"
    fi
}
