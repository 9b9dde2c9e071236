"""Small programs for schedulers, in plain shell.

They read text files that the last check wrote (:data:`.verdict_files.STATUS`, :data:`.gate_files.MODE`,
:data:`.gate_files.REASON`). So they work even if goldnode's program is broken, and in a pod without Python.
integrations/ contains the same texts.
"""

from __future__ import annotations

from ..ground import verdict_files
from ..ground.host import PROGRAM

MEMORY = "/var/lib/goldnode/slurm-health"  # the reason for which SLURM (below) has drained the node
INTENT = MEMORY + ".new"  # the same before the drain; SLURM settles it

SLURM = f"""#!/bin/sh
# goldnode: Slurm's HealthCheckProgram, for classes with `gate: drain`. It always exits with 0, and logs its actions to slurmd's log.
#
# A bad verdict drains the node through goldnode's gate, at the check that finds it. The gate cannot report that checks have
# stopped. In that case this program drains the node, and resumes it when checks run again and the gate is open. It does not drain a node that
# is already drained, resumes only its own drain (the reason must be unchanged), and does not drain a node again that an administrator has
# resumed.
run=${{GOLDNODE_RUN:-/run/goldnode}} state=${{GOLDNODE_STATE:-/var/lib/goldnode}}
memory=$state/slurm-health limit={verdict_files.LIMIT}

read -r now rest </proc/uptime || exit 0
at= late= mode=
[ ! -r "$run/status" ] || read -r at rest <"$run/status"
case $at in
'' | *[!0-9]*) late="no verdict since this boot" ;;
*)
    age=$((${{now%%.*}} - at))
    if [ "$age" -lt -1 ]; then late="no verdict since this boot"; elif [ "$age" -gt "$limit" ]; then late="the last verdict is too old"; fi
    ;;
esac
[ -z "$late" ] && [ ! -e "$memory" ] && [ ! -e "$memory.new" ] && exit 0

[ ! -r "$state/gate.mode" ] || read -r mode <"$state/gate.mode"
[ "$mode" = drain ] || late=
if [ -n "$late" ]; then
    [ -e "$memory" ] && exit 0
else
    [ -e "$memory" ] || [ -e "$memory.new" ] || exit 0
    if [ "$mode" = drain ]; then
        # A check writes its verdict before the gate acts on it: a pass of an earlier verdict may be of a node that is bad now.
        passed=
        [ ! -r "$run/pass" ] || read -r passed rest <"$run/pass"
        case $passed in '' | *[!0-9]*) exit 0 ;; esac
        [ "$passed" -ge "$at" ] || exit 0
    fi
    # A run of goldnode that has the node out of service may be about to reboot it.
    [ -z "$(find "$state/drain.json" -mmin -1680 2>/dev/null)" ] || exit 0
fi

node=$SLURMD_NODENAME
if [ -z "$node" ]; then read -r node </proc/sys/kernel/hostname; node=${{node%%.*}}; fi
PATH=${{GOLDNODE_PATH:+$GOLDNODE_PATH:}}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin
row=$(timeout 20 scontrol show node "$node" --oneliner) || exit 0
# State comes before the texts of persons, which may contain anything. Reason is the first of these.
rest=${{row#* State=}} drained= reason=
[ "$rest" != "$row" ] || exit 0
case ${{rest%% *}} in *DRAIN*) drained=yes ;; esac
case $rest in *" Reason="*) reason=${{rest#* Reason=}} ;; esac

if [ -e "$memory.new" ]; then # an update that was cut off, or reported a failure
    read -r text <"$memory.new"
    case $drained:$reason in yes:"$text"*) mv -f "$memory.new" "$memory" ;; *) rm -f "$memory.new" ;; esac
fi
if [ -n "$late" ]; then
    [ -z "$drained" ] || exit 0
    text="goldnode: health check: $late; see systemctl status goldnode-watch.timer"
    mkdir -p "$state" && printf '%s\\n' "$text" >"$memory.new" || exit 0
    if timeout 20 scontrol update NodeName="$node" State=DRAIN Reason="$text"; then
        mv -f "$memory.new" "$memory"
        echo "goldnode: drained $node: $late" >&2
    fi
    exit 0
fi
[ -e "$memory" ] || exit 0
read -r text <"$memory"
case $drained:$reason in
yes:"$text"*)
    timeout 20 scontrol update NodeName="$node" State=RESUME && rm -f "$memory" && echo "goldnode: resumed $node: checks are made again" >&2
    ;;
*) rm -f "$memory" ;; # it was resumed, or drained for another reason
esac
exit 0
"""

PROLOG = f"""#!/bin/sh
# goldnode: Slurm's Prolog, for classes with `gate: drain` or `gate: block`. A job starts only where the node's verdict counts and is good.
#
# Otherwise the exit status is 1: Slurm drains the node and requeues the job. With `gate: drain` the reason is that of the pre-flight, and
# slurm-health resumes the node when its verdict is good again. With `gate: report` it only logs. Jobs cannot fail this check: see
# slurm-task-prolog.
program=${{GOLDNODE_PROGRAM:-{PROGRAM}}} state=${{GOLDNODE_STATE:-/var/lib/goldnode}}
memory=$state/slurm-health mode=

node=$SLURMD_NODENAME
if [ -z "$node" ]; then read -r node </proc/sys/kernel/hostname; node=${{node%%.*}}; fi
why=$(timeout 20 "$program" preflight --node "$node" 2>&1) && exit 0
why=$(printf '%s' "${{why:-goldnode: $node: the pre-flight had no answer within 20 s.}}" | tr '\\n' ' ' | cut -c1-240)
echo "$why" >&2
[ ! -r "$state/gate.mode" ] || read -r mode <"$state/gate.mode"
case $mode in
drain) ;;
block) exit 1 ;;
*) exit 0 ;;
esac

PATH=${{GOLDNODE_PATH:+$GOLDNODE_PATH:}}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin
row=$(timeout 20 scontrol show node "$node" --oneliner)
row=${{row#* State=}}
case ${{row%% *}} in
'' | *DRAIN*) ;; # drained already, for a reason that stays
*)
    # slurm-health settles what is left of an update that is cut off or reports a failure.
    if [ ! -e "$memory" ] && mkdir -p "$state" && printf '%s\\n' "$why" >"$memory.new"; then
        timeout 20 scontrol update NodeName="$node" State=DRAIN Reason="$why" && mv -f "$memory.new" "$memory"
    fi
    ;;
esac
exit 1
"""

TASK_PROLOG = f"""#!/bin/sh
# goldnode: Slurm's TaskProlog. It checks what the job declares, and ends the task with one line in its output if the job does not fit this node.
# Variables of the job: GOLDNODE_COHORT (a directory of the job that its nodes share), GOLDNODE_IMAGE_FILE (description of its image),
# GOLDNODE_CACHES (directory of all caches) with GOLDNODE_IMAGE (digest of its image) and GOLDNODE_CACHE_NAMES. Without them it does nothing.
program=${{GOLDNODE_PROGRAM:-{PROGRAM}}}
[ -n "$GOLDNODE_COHORT$GOLDNODE_IMAGE_FILE$GOLDNODE_CACHES" ] || exit 0

fail() {{
    printf '%s' "$2" | tr '\\n' ' ' | sed 's/^/print /'
    echo
    exit "$1"
}}

case $GOLDNODE_CACHES in *[!A-Za-z0-9/._-]*) fail 3 "goldnode: GOLDNODE_CACHES has characters that no directory of caches may have." ;; esac
why=$(timeout 20 "$program" preflight --node "${{SLURMD_NODENAME:-$(uname -n)}}" --cohort-size "${{SLURM_JOB_NUM_NODES:-1}}" 2>&1) || fail $? "$why"
[ -n "$GOLDNODE_CACHES" ] || exit 0
set -- ${{GOLDNODE_CACHE_NAMES:-cuda triton inductor}}
lines=$(timeout 60 "$program" cache path "$@" --caches "$GOLDNODE_CACHES" ${{GOLDNODE_IMAGE:+--image "$GOLDNODE_IMAGE"}} --export 2>&1) || fail $? "$lines"
printf '%s\\n' "$lines" | grep '^export ' # TaskProlog's own form
exit 0
"""

NPD = f"""#!/bin/sh
# goldnode: a custom plugin of Kubernetes' node-problem-detector. Exit 0: no problem, 1: a problem, 2: unknown. Prints one line of at most 80 characters.
# It reads files below GOLDNODE_RUN (/run/goldnode; in a pod, where the node's directory is mounted) and starts nothing that could hang.
run=${{GOLDNODE_RUN:-/run/goldnode}} limit={verdict_files.LIMIT}

say() {{
    printf '%.80s\\n' "$(printf '%s' "$2" | tr -cd '\\40-\\176')"
    exit "$1"
}}

read -r now rest </proc/uptime || say 2 "goldnode: /proc/uptime cannot be read"
[ -r "$run/status" ] || say 2 "goldnode: no verdict since this boot"
at= code= why=
read -r at code rest <"$run/status"
case $at in '' | *[!0-9]*) say 2 "goldnode: the verdict cannot be read" ;; esac
age=$((${{now%%.*}} - at))
[ "$age" -ge -1 ] || say 2 "goldnode: the last verdict is of another boot"
[ "$age" -le "$limit" ] || say 2 "goldnode: the last verdict is ${{age}}s old, limit ${{limit}}s"
[ ! -r "$run/gate.reason" ] || read -r why <"$run/gate.reason"
why=${{why#goldnode gate: }}
case $code in
0) say 0 "goldnode: healthy" ;;
1) say 0 "goldnode: degraded" ;;
2) say 1 "goldnode: ${{why:-drain}}" ;;
4) say 1 "goldnode: not of its class${{why:+: $why}}" ;;
*) say 2 "goldnode: could not check${{why:+: $why}}" ;;
esac
"""
