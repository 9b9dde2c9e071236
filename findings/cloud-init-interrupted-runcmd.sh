#!/usr/bin/env bash
# cloud-init 22.4.2, 25.1.4 and 26.2 (Debian 12, 13, 14): a first boot that is interrupted in `runcmd` is never finished, and the next
# boot's `cloud-init status` is `done`, without an error, with exit status 0.
#
# A module that runs once per instance is marked as run (/var/lib/cloud/instance/sem/config_scripts_user) before it begins. After a loss of
# power in the middle, the next boot skips it. The same holds for a shell script as user data, for write_files and for the packages that
# cloud-init installs. A part of type text/x-shellscript-per-boot is written and run again at each boot.
# Needs root and an apt of Debian, pip, and a kernel with overlayfs: cloud-init runs in an overlay of this machine's root, without systemd.
# Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
if [ -z "${INSIDE:-}" ]; then # the mounts end with the inner process, so that the folder can be removed
    folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
    INSIDE=$folder unshare --mount --uts --pid --fork --mount-proc bash "$(realpath "$0")"
    exit
fi
folder=$INSIDE; cd "$folder"
archive=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" | sort -u | sed -n 1p) # where this machine has Debian from
python3 -m venv python
python/bin/pip install -q configobj==5.0.9 PyYAML==6.0.4 jsonschema==4.26.0 jsonpatch==1.48 requests==2.34.2 oauthlib==4.0.1 jinja2==3.1.6
try() { # VERSION SUITE
    mkdir -p "$2"/{lists/partial,cache/archives/partial}; touch "$2/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $2 main" >"$2/sources.list"
    cat >"$2/apt.conf" <<CONF
Dir::State "$folder/$2"; Dir::State::lists "$folder/$2/lists"; Dir::State::status "$folder/$2/status"; Dir::Cache "$folder/$2/cache";
Dir::Etc::sourcelist "$folder/$2/sources.list"; Dir::Etc::sourceparts "-"; APT::Sandbox::User "root"; Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
CONF
    (cd "$2" && export APT_CONFIG=$folder/$2/apt.conf && apt-get -qq update && apt-get -qq download "cloud-init=$1" && dpkg-deb -x cloud-init_*.deb x)
    mkdir "$2/layers"; mount -t tmpfs none "$2/layers"; mkdir "$2"/layers/{up,work,root}
    mount -t overlay overlay -o "lowerdir=/,upperdir=$2/layers/up,workdir=$2/layers/work" "$2/layers/root"
    root=$folder/$2/layers/root
    mount --rbind /proc "$root/proc"; mount --bind /dev "$root/dev"; mount -t tmpfs none "$root/run"
    rm -rf "$root/etc/cloud" "$root/var/lib/cloud"; cp -r "$2/x/etc/cloud" "$root/etc/cloud"; rm -f "$root"/etc/cloud/cloud.cfg.d/*
    mkdir -p "$root/var/lib/cloud/seed/nocloud" "$root/inner"
    cp -r "$2/x/usr/lib/python3/dist-packages" "$root/inner/modules"; cp -r python "$root/inner/python"
    # Nothing but runcmd and what carries it out, so that the machine's own settings do not matter.
    cat >"$root/etc/cloud/cloud.cfg" <<'CONF'
datasource_list: [NoCloud]
network: {config: disabled}
cloud_init_modules: [bootcmd]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user]
system_info: {distro: debian}
CONF
    echo 'instance-id: i-1' >"$root/var/lib/cloud/seed/nocloud/meta-data"
    printf '#cloud-config\nruncmd: [echo began >>/log, sleep 120, echo ended >>/log]\n' >"$root/var/lib/cloud/seed/nocloud/user-data"
    cat >"$root/inner/boot" <<'BOOT'
export PYTHONPATH=/inner/modules
init() { /inner/python/bin/python3 -W ignore -m cloudinit.cmd.main "$@"; }
if [ "$1" = status ]; then init status; exit; fi
rm -rf /run/cloud-init
for stage in "init --local" init "modules --mode config" "modules --mode final"; do init $stage >/dev/null 2>&1; done
BOOT
    setsid chroot "$root" bash /inner/boot start & process=$!
    for _ in $(seq 100); do [ ! -s "$root/log" ] || break; sleep 0.2; done
    kill -9 -- "-$process"; wait "$process" 2>/dev/null || true # power is lost
    if pgrep -f 'sleep 120'; then exit 1; fi # nothing of it is left
    chroot "$root" bash /inner/boot start
    state=$(chroot "$root" bash /inner/boot status) && code=0 || code=$?
    echo "cloud-init $1: $(tr '\n' ' ' <"$root/log")- next boot: $state, exit status $code"
    [ "$(cat "$root/log")" = began ] && [ "$state" = "status: done" ] && [ "$code" = 0 ]
}
try 22.4.2-1+deb12u4 bookworm
try 25.1.4-1+deb13u1 trixie
try 26.2-1 forky
