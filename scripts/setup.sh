# Sourced by the other scripts: makes .venv with the package and its extras, once, and again when what the
# package needs has changed; of the versions that the tests have run on (constraints.txt). Usage:
# . scripts/setup.sh; setup EXTRAS, e.g. "dev" or "dev,tensorflow". An environment with more extras will do.

set -euo pipefail
[[ "${PYTHON:-}" != [!/]*/* ]] || PYTHON="$PWD/$PYTHON" # a path from the folder it is called in
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
    local name newest names=(python3 python3.13 python3.12 python3.11 python3.14 python3.15)
    [[ -z "${PYTHON:-}" ]] || names=("$PYTHON")
    for newest in 13 99; do # one that TensorFlow has packages for, or else any
        for name in "${names[@]}"; do
            if "$name" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, $newest))" 2>/dev/null; then
                echo "$name"
                return
            fi
        done
    done
    echo "Python 3.11 or newer is needed; set PYTHON to its path." >&2
    return 2
}

# torch as this machine's GPU wants it (docs/gpu.md); none, where pip's own choice will do.
install_torch() {
    local wanted
    wanted="$(.venv/bin/python -m ptb_lm.common.nvidia)"
    if [[ -n "$wanted" ]]; then
        local -a arguments
        mapfile -t arguments <<< "$wanted"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --upgrade "${arguments[@]}"
    fi
}

setup() {
    local extras="${1:-}" stamp wanted
    stamp=".venv/installed${extras:+-$extras}"
    # With the folder, because the installed package names it: after a move the package is installed again.
    wanted="$(cat pyproject.toml setup.py constraints.txt <(printf %s "${PTB_LM_TORCH_INDEX:-}" "$(pwd -P)") | cksum)"
    # A script that was started beside this one waits, and then finds all done. Not every system has flock.
    is_set_up || (
        ! command -v flock >/dev/null || flock 9
        is_set_up || install
    ) 9<.
}

# The next two are parts of setup, and read its variables.

is_set_up() {
    local found extra
    [[ -x .venv/bin/python ]] || return 1
    for found in .venv/installed*; do
        [[ "$(cat "$found" 2>/dev/null)" == "$wanted" ]] || continue
        for extra in ${extras//,/ }; do
            [[ ",${found#.venv/installed-}," == *",$extra,"* ]] || continue 2
        done
        return
    done
    return 1
}

install() {
    local python=.venv/bin/python
    # Of pip the version is unpacked last: where it is missing, pip was not installed to its end.
    "$python" -c 'import importlib.metadata as m; m.version("pip")' 2> /dev/null || python="$(find_python)"
    echo "Setting up .venv with $("$python" --version)${extras:+ and the extras $extras}; once, in a few minutes." >&2
    [[ "$python" == .venv/bin/python ]] || "$python" -m venv .venv
    # What has no package for this Python is left out; its tests are skipped.
    local possible=",$extras,"
    "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 14))' || possible="${possible/,tensorflow,/,}"
    "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 15))' || possible="${possible/,pytensor,/,}"
    possible="${possible#,}" possible="${possible%,}"
    install_torch
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
        --constraint constraints.txt --editable ".${possible:+[$possible]}"
    # By all cores, where pip compiles by one. Some packages carry files that are no Python of today.
    .venv/bin/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib || true
    # Written last, so that an interrupted installation is made again.
    echo "$wanted" > "$stamp"
}
