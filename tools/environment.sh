# Sourced by tools/demo and tools/test: makes one virtual environment, or keeps it when nothing that it depends on has changed.

say() { printf '%s\n' "$*" >&2; }

# Print the first Python that is new enough; PYTHON overrides the search.
find_python() {
    local name
    for name in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python; do
        [ -n "$name" ] || continue
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
        if [ "$name" = "${PYTHON:-}" ]; then
            say "PYTHON must name a Python 3.11 or later, got $name"
            return 1
        fi
    done
    say "Python 3.11 or later is needed and was not found; install it (Debian 12, Ubuntu 24.04: apt-get install python3 python3-venv)"
    say "or name it: PYTHON=/path/to/python3.12 $0"
    return 1
}

# make_environment ROOT FOLDER PIP-ARGUMENT...
# Runs `pip install PIP-ARGUMENT...` in ROOT/FOLDER unless its stamp says that the same was done before.
make_environment() {
    local root=$1 folder=$1/$2 python stamp file
    shift 2
    python=$(find_python)
    stamp=$({
        printf '%s\n' "$root" "$python" "$@"
        "$python" -VV
        for file in pyproject.toml "$@"; do
            [ ! -f "$root/$file" ] || cat "$root/$file"
        done
    } | "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')
    if [ -x "$folder/bin/python" ] && [ "$(cat "$folder/stamp" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        say "$python cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"
        return 1
    fi
    say "making $folder with $("$python" -V): installs $*"
    rm -rf "$folder"
    "$python" -m venv "$folder"
    (cd "$root" && "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@")
    printf '%s\n' "$stamp" >"$folder/stamp"
}
