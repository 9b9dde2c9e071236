# shellcheck shell=bash
# Shared set-up of scripts/demo and scripts/test: a Python, the virtual environment, the engine. Sourced, not run.
# Expects `here` (the project's directory) and `yes` (1: install without asking) to be set.

say() { printf '%s\n' "$*"; }
fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 2
}

step=0
stage() {
    step=$((step + 1))
    printf '\n== %d. %s\n' "$step" "$*"
}

# Asks, unless --yes was given or nobody could answer.
confirm() {
    [ "$yes" = 1 ] && return 0
    [ -t 0 ] || return 0
    local answer
    read -r -p "$* [Y/n] " answer
    case $answer in '' | [Yy]*) return 0 ;; *) return 1 ;; esac
}

# The lock was resolved for 3.11, so that one first. A shim of a version manager may exist and not run, so each is tried.
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
    # A third party's unreachable source fails `update` although the distribution's own index arrived.
    apt-get update -q >/dev/null || say "apt-get update had errors; trying the installation all the same"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3 python3-venv >/dev/null ||
        fail "apt-get could not install python3-venv. Check the network and the apt sources."
    python=$(find_python) || fail "this system's python3 is older than 3.11. Use Debian 12, Ubuntu 24.04 or newer."
}

# What .venv must be made from. The directory belongs to it: a copied .venv installs, and imports, the checkout it came from.
venv_wanted() {
    { cat "$here/requirements/dev.lock" "$here/pyproject.toml" && echo "$here"; } | sha256sum | cut -d' ' -f1
}

venv_is_ready() {
    [ "$(cat "$here/.venv/goldnode.stamp" 2>/dev/null)" = "$(venv_wanted)" ] && "$here/.venv/bin/python" -c 'import goldnode' 2>/dev/null
}

# Makes .venv what requirements/dev.lock says; quick when it already is.
setup_venv() {
    local log
    if ! venv_is_ready; then
        setup_python
        mkdir -p "$here/.goldnode"
        log=$here/.goldnode/setup.log
        say "installing the Python packages of requirements/dev.lock into .venv (log: .goldnode/setup.log)"
        "$here/.venv/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear "$here/.venv" || fail "could not make $here/.venv"
        {
            # Python compiles a module when it is first imported, and most of these never are.
            "$here/.venv/bin/python" -m pip install -q --disable-pip-version-check --no-compile --require-hashes -r "$here/requirements/dev.lock" &&
                # Its dependencies and its build backend are what the lock just brought.
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

# Sets `missing` to the packages that are missing of PATH-OR-PROGRAM=PACKAGE pairs, and asks whether to install them.
offer_tools() {
    local pair
    missing=()
    for pair in "$@"; do
        case $pair in
            /*) [ -e "${pair%%=*}" ] || missing+=("${pair#*=}") ;;
            # sbin is not in every user's PATH.
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

# Installs what is missing of PATH-OR-PROGRAM=PACKAGE pairs: setup_tools zstd=zstd /usr/share/OVMF/OVMF_CODE_4M.fd=ovmf
setup_tools() {
    offer_tools "$@"
    install_missing
}

# setup_venv and setup_tools at the same time: one waits for the network while the other unpacks.
setup_venv_and_tools() {
    local installer
    # apt-get cannot run twice at once, so the Python it may have to install comes first.
    venv_is_ready || setup_python
    offer_tools "$@"
    install_missing &
    installer=$!
    # In a subshell, since it ends the script when it fails; apt-get is not left behind then.
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
    python -m goldnode.lab engine "${options[@]}" || exit 2
}
