# shellcheck shell=bash
# Shared set-up of scripts/demo and scripts/test: Python, virtual environment, engine. Sourced, not executed.
# Expects `here` (the project directory) and `yes` (1: install without asking).

say() { printf '%s\n' "$*"; }
fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 2
}

# Prints a path that the caller gave, as an absolute one: the scripts change to the checkout. Expects `from`,
# the directory of the caller.
from_caller() { case $1 in /*) printf '%s\n' "$1" ;; *) printf '%s\n' "$from/$1" ;; esac; }

step=0
stage() {
    step=$((step + 1))
    printf '\n== %d. %s\n' "$step" "$*"
}

# Asks for confirmation, unless --yes was given or there is no terminal.
confirm() {
    [ "$yes" = 1 ] && return 0
    [ -t 0 ] || return 0
    local answer
    read -r -p "$* [Y/n] " answer
    case $answer in '' | [Yy]*) return 0 ;; *) return 1 ;; esac
}

# Prefer 3.11, for which the lock was resolved. Run each candidate: a version manager's shim may exist but
# fail.
find_python() {
    local candidate
    for candidate in python3.11 python3 /usr/bin/python3 python3.12 python3.13; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

setup_python() {
    python=$(find_python) && return 0
    command -v apt-get >/dev/null ||
        fail "needs Python 3.11 or newer with its venv module, and there is no apt-get to install it. Install both and run again."
    [ "$(id -u)" = 0 ] || fail "needs Python 3.11 or newer with venv. Run as root, or: sudo apt-get install python3 python3-venv"
    say "will install with apt-get: python3 python3-venv"
    confirm "Install them?" || fail "declined. Install by hand: apt-get install python3 python3-venv"
    # An unreachable third-party source makes `update` fail even if the distribution's own index was fetched.
    apt-get update -q >/dev/null || say "apt-get update had errors; trying the installation all the same"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3 python3-venv >/dev/null ||
        fail "apt-get could not install python3-venv. Check the network and the apt sources."
    python=$(find_python) || fail "this system's python3 is older than 3.11. Use Debian 12, Ubuntu 24.04 or newer."
}

# Prints the hash of what .venv depends on. The path is included: a copied .venv refers to the original
# checkout.
venv_wanted() {
    { cat "$here/requirements/dev.lock" "$here/pyproject.toml" && echo "$here"; } | sha256sum | cut -d' ' -f1
}

venv_is_ready() {
    [ "$(cat "$here/.venv/goldnode.stamp" 2>/dev/null)" = "$(venv_wanted)" ] && "$here/.venv/bin/python" -c 'import goldnode' 2>/dev/null
}

# Installs requirements/dev.lock in .venv. Quick if it is up to date.
setup_venv() {
    local log
    if ! venv_is_ready; then
        setup_python
        mkdir -p "$here/.goldnode"
        log=$here/.goldnode/setup.log
        say "installing the Python packages of requirements/dev.lock into .venv (log: .goldnode/setup.log)"
        "$here/.venv/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear "$here/.venv" || fail "could not make $here/.venv"
        {
            # --no-compile: Python compiles modules on first import, and most of these are never imported.
            "$here/.venv/bin/python" -m pip install -q --disable-pip-version-check --no-compile --require-hashes -r "$here/requirements/dev.lock" &&
                # The lock has just installed the dependencies and the build backend.
                "$here/.venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e "$here"
        } >"$log" 2>&1 || {
            tail -n 5 "$log" >&2
            fail "pip could not install the packages. Check the network and pip's index (PIP_INDEX_URL); see .goldnode/setup.log."
        }
        venv_wanted >"$here/.venv/goldnode.stamp"
    fi
    PATH=$here/.venv/bin:$PATH
    export PATH
}

# Sets `missing` to the packages of missing PATH-OR-PROGRAM=PACKAGE pairs, and asks for permission to install
# them.
offer_tools() {
    local pair
    missing=()
    for pair in "$@"; do
        case $pair in
            /*) [ -e "${pair%%=*}" ] || missing+=("${pair#*=}") ;;
            # Not every user's PATH includes sbin.
            *) PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}") ;;
        esac
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || fail "needs ${missing[*]}, and there is no apt-get to install them. Install them and run again."
    [ "$(id -u)" = 0 ] || fail "needs ${missing[*]}. Run as root, or: sudo apt-get install ${missing[*]}"
    say "will install with apt-get: ${missing[*]}"
    confirm "Install them?" || fail "declined. Install by hand: apt-get install ${missing[*]}"
}

install_missing() {
    [ ${#missing[@]} -gt 0 ] || return 0
    apt-get update -q >/dev/null || say "apt-get update had errors; trying the installation all the same"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null ||
        fail "apt-get could not install ${missing[*]}. Check the network and the apt sources."
}

# Installs missing PATH-OR-PROGRAM=PACKAGE pairs, as in: setup_tools zstd=zstd
# /usr/share/OVMF/OVMF_CODE_4M.fd=ovmf
setup_tools() {
    offer_tools "$@"
    install_missing
}

# Runs setup_venv and setup_tools in parallel: one waits for the network while the other unpacks.
setup_venv_and_tools() {
    local installer
    # apt-get cannot run twice at once, so install a missing Python first.
    venv_is_ready || setup_python
    offer_tools "$@"
    install_missing &
    installer=$!
    # In a subshell, since setup_venv exits on failure; wait for apt-get even then.
    (setup_venv) || {
        wait "$installer"
        exit 2
    }
    wait "$installer" || exit 2
    setup_venv
}

setup_engine() {
    local options=()
    [ "$yes" = 1 ] && options=(--yes)
    python -m goldnode.testing.lab engine "${options[@]}" || exit 2
}
