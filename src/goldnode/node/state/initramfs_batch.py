"""Batch copies for Debian 12's mkinitramfs, which starts about twelve programs for each file of an image.

Most of its time goes to two shell functions of ``/usr/share/initramfs-tools/hook-functions``: copy_file
normalises paths with realpath(1) and readlink(1), also for files that are in the image already, and
manual_add_modules runs cp(1) and modinfo(1) for each module. The versions here copy all modules of a call at
once, and give everything unusual (links, other paths, verbose runs) to Debian's own function. mkinitramfs, its
hooks and their order stay as they are.

No file of the node is changed. The functions exist only in a mount namespace of one mkinitramfs, which ends with
it, however it ends. They are used only where Debian's functions have the text that they were compared with
(:data:`KNOWN`). In all other cases mkinitramfs runs alone, and a line states why. Later updates by
apt always run it alone. Since 0.143, initramfs-tools calls dracut-install, and needs none of this.
"""

from __future__ import annotations

from ..ground.host import ENVIRONMENT, Host, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

HOOK_FUNCTIONS = "/usr/share/initramfs-tools/hook-functions"
MAKER = "/usr/sbin/mkinitramfs"
# Not in /run, which Debian mounts noexec. Nothing has this directory on its path but the runs that are started here.
TOOLS = "/var/lib/goldnode/mkinitramfs"
PATH = f"{TOOLS}:{ENVIRONMENT['PATH']}"
# A mkinitramfs of an administrator, which update-initramfs finds before Debian's.
OWN = ("/usr/local/sbin/mkinitramfs", "/usr/local/bin/mkinitramfs")
# SHA-256 of the functions that are replaced, as the command `sed` of WRAPPER prints them: initramfs-tools 0.142, Debian 12.
KNOWN = "4a13dfa87323c2b197cb0fd800757e1da3d28a7a74937ef406d6d268f84935c8"
REPLACED = ("copy_file", "manual_add_modules")
_PRINT = "".join(f"/^{name}()/,/^}}$/p;" for name in REPLACED)
_RENAME = "".join(f"s/^{name}()/debian_{name}()/;" for name in REPLACED)
MARK = "goldnode: mkinitramfs "

# The first transaction of a node installs initramfs-tools itself, so Debian's functions are read when mkinitramfs runs.
# Whether a namespace can be made is tried before, because failures of mkinitramfs must stay its own.
WRAPPER = f"""#!/bin/sh
# goldnode: mkinitramfs with functions that copy in batches (the file "batch" of this directory)
functions={HOOK_FUNCTIONS}
batch=${{0%/*}}/batch
overlay=${{0%/*}}/functions.$$
why=''
if grep -q dracut-install "$functions" 2>/dev/null; then
    exec {MAKER} "$@"
elif [ "$(sed -n '{_PRINT}' "$functions" 2>/dev/null | sha256sum)" != '{KNOWN}  -' ]; then
    why="$functions has other functions than initramfs-tools 0.142"
elif ! {{ sed '{_RENAME}' "$functions" && cat "$batch"; }} >"$overlay" 2>/dev/null; then
    why="$overlay cannot be written"
elif ! unshare --mount mount --bind "$overlay" "$functions" 2>/dev/null; then
    why='no mount namespace can be made here'
else
    exec unshare --mount sh -c 'mount --bind "$0" {HOOK_FUNCTIONS}; rm -f "$0"; exec {MAKER} "$@"' "$overlay" "$@"
fi
rm -f "$overlay"
echo "{MARK}copies file by file: $why"
exec {MAKER} "$@"
"""

# For dash and bash, also with -e and -u, which hooks may set.
FUNCTIONS = r"""
# -- goldnode: the functions above, in batches

# Return whether a path is absolute and normalised.
goldnode_plain() {
	case "$1/" in
	//* | *//* | */./* | */../*) return 1 ;;
	/*) return 0 ;;
	esac
	return 1
}

# Set goldnode_path to a path as it is where /bin, /lib and /sbin are links into /usr.
goldnode_merged() {
	goldnode_path=$1
	case "$1" in
	/bin/* | /lib* | /sbin/*) goldnode_path=/usr$1 ;;
	esac
}

# Return whether no part of a normalised path is a link. The last directory is remembered, since files come by directory.
goldnode_straight() {
	[ ! -L "$1" ] || return 1
	[ "${1%/*}" != "${goldnode_straight_directory:-}" ] || return 0
	goldnode_rest=${1%/*}
	while [ -n "$goldnode_rest" ]; do
		[ ! -L "$goldnode_rest" ] || return 1
		goldnode_rest=${goldnode_rest%/*}
	done
	goldnode_straight_directory=${1%/*}
}

copy_file() {
	local goldnode_path goldnode_rest goldnode_target
	goldnode_target=${3:-$2}
	if [ "${verbose:-}" = y ] || [ ! -f "$2" ] || [ ! /bin -ef /usr/bin ] ||
		! goldnode_plain "$2" || ! goldnode_plain "$goldnode_target"; then
		debian_copy_file "$@"
		return
	fi
	if [ -d "$DESTDIR/$goldnode_target" ]; then
		goldnode_target=$goldnode_target/${2##*/}
	fi
	goldnode_merged "$goldnode_target"
	goldnode_target=$goldnode_path
	if [ -e "$DESTDIR/$goldnode_target" ]; then
		return 1
	fi
	goldnode_merged "$2"
	if ! goldnode_straight "$goldnode_path"; then
		debian_copy_file "$@"
		return
	fi
	[ -d "$DESTDIR/${goldnode_target%/*}" ] || mkdir -p "$DESTDIR/${goldnode_target%/*}"
	cp -pP "$goldnode_path" "$DESTDIR/$goldnode_target" || return $(($? + 1))
}

# Read paths of modules, and print those that the image lacks, after "batch" or, if Debian's function has to decide, "single".
goldnode_missing() {
	while read -r goldnode_module; do
		[ -f "$goldnode_module" ] || continue
		goldnode_merged "$goldnode_module"
		if ! goldnode_plain "$goldnode_module"; then
			printf 'single %s\n' "$goldnode_module"
		elif [ ! -e "$DESTDIR/$goldnode_path" ]; then
			if [ /bin -ef /usr/bin ] && goldnode_straight "$goldnode_path"; then
				printf 'batch %s\n' "$goldnode_module"
			else
				printf 'single %s\n' "$goldnode_module"
			fi
		fi
	done
}

# Copy modules, all below /usr and without links.
goldnode_copy_all() {
	goldnode_names=$(printf '%s\n' "$1" | sed -e 's:^/usr/:/:' -e 's:^/:usr/:')
	printf '%s\n' "$goldnode_names" | sed 's:/[^/]*$::' | sort -u | (cd "$DESTDIR" && xargs -d '\n' mkdir -p --) &&
		printf '%s\n' "$goldnode_names" | (cd / && cpio -pm --quiet "$DESTDIR") && return
	# Debian's function reports the error of each file.
	printf '%s\n' "$goldnode_names" | (cd "$DESTDIR" && xargs -d '\n' rm -f --)
	printf '%s\n' "$1" | while read -r goldnode_module; do
		debian_copy_file module "$goldnode_module" || :
	done
}

# Add the firmware of modules. As in Debian's function, the shell splits and expands the names that modinfo prints.
goldnode_add_firmware() {
	printf '%s\n' "$1" | xargs -d '\n' modinfo -k "${version?}" |
		awk '/^filename:/ { module = $2 } /^firmware:/ { $1 = module; print }' |
		while read -r goldnode_module goldnode_wanted; do
			goldnode_module=${goldnode_module##*/}
			goldnode_module=${goldnode_module%%.*}
			for goldnode_firmware in $goldnode_wanted; do
				if ! add_firmware "$goldnode_firmware" && [ -e /proc/modules ]; then
					if [ "$goldnode_module" != "${goldnode_asked:-}" ]; then
						goldnode_asked=$goldnode_module
						goldnode_used=n
						! grep -q "^$goldnode_module\\>" /proc/modules "${CONFDIR}/modules" || goldnode_used=y
					fi
					[ "$goldnode_used" = n ] ||
						echo "W: Possible missing firmware /lib/firmware/${goldnode_firmware} for module ${goldnode_module}" >&2
				fi
			done
		done
}

manual_add_modules() {
	if [ $# -eq 0 ] || [ "${verbose:-}" = y ]; then
		debian_manual_add_modules "$@"
		return
	fi
	# A subshell, so that no variable of a hook changes.
	(
		set +eu
		# As Debian's function: once with the modules that install commands name, once with soft dependencies.
		goldnode_list=$(
			for goldnode_option in --ignore-install --quiet; do
				/sbin/modprobe --all --set-version="$version" "$goldnode_option" --quiet --show-depends "$@"
			done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | goldnode_missing
		)
		goldnode_all=$(printf '%s\n' "$goldnode_list" | sed -n 's/^batch //p')
		[ -z "$goldnode_all" ] || goldnode_copy_all "$goldnode_all"
		goldnode_single=$(
			printf '%s\n' "$goldnode_list" | sed -n 's/^single //p' | while read -r goldnode_module; do
				if copy_file module "$goldnode_module"; then
					printf '%s\n' "$goldnode_module"
				fi
			done
		)
		goldnode_all=$(printf '%s\n' $goldnode_all $goldnode_single)
		[ -z "$goldnode_all" ] || goldnode_add_firmware "$goldnode_all"
	)
	return 0
}
"""


def install(host: Host) -> None:
    """Write the wrapper of mkinitramfs and the functions that it adds."""
    host.write(f"{TOOLS}/batch", FUNCTIONS.encode(), 0o644)
    host.write(f"{TOOLS}/mkinitramfs", WRAPPER.encode(), 0o755)


def remove(host: Host) -> None:
    """Delete the wrapper."""
    import shutil  # start-up time: read-only runs do not need it

    shutil.rmtree(host.located(TOOLS), ignore_errors=True)


def update_initramfs(host: Host, say: Callable[[str], None], *arguments: str) -> Result:
    """Run update-initramfs(8) with the wrapper on its path. Report why it was of no use, if so."""
    own = next((path for path in OWN if host.exists(path)), None)
    if own:
        say(f"mkinitramfs runs as it is: {own} comes before Debian's")
        return host.run("update-initramfs", *arguments, timeout=900)
    install(host)
    try:
        done = host.run("env", f"PATH={PATH}", "update-initramfs", *arguments, timeout=900)
    finally:
        remove(host)
    for line in done.out.splitlines():
        if line.startswith(MARK):
            say(line[len("goldnode: ") :])
    return done
