"""Drop-ins, masks and programs of others: which contradict goldnode's units, and which are harmless."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.node.roots import make

from goldnode.node.effective.systemd import UnitTree
from goldnode.node.ground.host import PROGRAM, Host
from goldnode.node.state import overrides
from goldnode.node.state.domains import program, units

ETC = "/etc/systemd/system/"
OWN = {
    program.UNIT: program.UNIT_TEXT,
    ETC + units.WATCH: units.WATCH_TEXT,
    ETC + units.TIMER: units.TIMER_TEXT,
    ETC + units.EVENTS: units.EVENTS_TEXT,
}
DOCKER = "/usr/lib/systemd/system/docker.service"
# The relevant lines of the unit of package docker.io.
DOCKER_TEXT = """[Unit]
Requires=docker.socket
[Service]
Type=notify
ExecStart=/usr/sbin/dockerd -H fd:// $DOCKER_OPTS
LimitNOFILE=infinity
"""

# Files of others -> fragments of the only text that is reported; no fragment: it is harmless.
CASES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "nothing": ({}, ()),
    "another program by a drop-in": (
        {ETC + "goldnode-sanity.service.d/x.conf": "[Service]\nExecStart=\nExecStart=/bin/true\n"},
        ("goldnode-sanity.service.d/x.conf:2", "program of goldnode-sanity.service"),
    ),
    "another program by the drop-in of a prefix": (
        {ETC + "goldnode-.service.d/x.conf": "[Service]\nExecStart=\nExecStart=/bin/true\n"},
        ("goldnode-.service.d/x.conf:2", "goldnode-events", "goldnode-sanity", "goldnode-watch"),
    ),
    "another program by the drop-in of all services": (
        {"/run/systemd/system/service.d/x.conf": "[Service]\nExecStart=\nExecStart=/bin/true\n"},
        ("/run/systemd/system/service.d/x.conf:2", "goldnode-watch.service"),
    ),
    "another program by the drop-in of a second name": (
        {
            ETC + "site-check.service": "-> goldnode-sanity.service",
            ETC + "site-check.service.d/x.conf": "[Service]\nExecStart=\nExecStart=/bin/true\n",
        },
        ("site-check.service.d/x.conf:2", "program of goldnode-sanity.service"),
    ),
    "a link to another unit that outranks /etc": (
        {
            "/etc/systemd/system.control/goldnode-watch.service": "-> other.service",
            "/usr/lib/systemd/system/other.service": "[Service]\nExecStart=/bin/true\n",
        },
        ("system.control/goldnode-watch.service takes the place of goldnode-watch.service",),
    ),
    "a timer once a year": (
        {ETC + "goldnode-watch.timer.d/x.conf": "[Timer]\nOnCalendar=\nOnCalendar=yearly\n"},
        ("goldnode-watch.timer.d/x.conf:2", "changes the times of goldnode-watch.timer"),
    ),
    "a timer that nothing starts the first time": (
        {ETC + "goldnode-watch.timer.d/x.conf": "[Timer]\nOnActiveSec=\nOnUnitInactiveSec=5min\n"},
        ("goldnode-watch.timer.d/x.conf:2",),
    ),
    "a timer of another unit": (
        {ETC + "goldnode-watch.timer.d/x.conf": "[Timer]\nUnit=other.service\n"},
        ("goldnode-watch.timer.d/x.conf:2", "Unit=other.service"),
    ),
    "a timer that waits for a day": (
        {ETC + "goldnode-watch.timer.d/x.conf": "[Timer]\nRandomizedDelaySec=1d\n"},
        ("delays goldnode-watch.timer",),
    ),
    "a condition that does not hold": (
        {ETC + "goldnode-watch.service.d/x.conf": "[Unit]\nConditionPathExists=/etc/not/there\n"},
        ("goldnode-watch.service.d/x.conf:2", "keeps systemd from starting"),
    ),
    "a condition on the kernel command line": (
        {ETC + "goldnode-watch.service.d/x.conf": "[Unit]\nAssertKernelCommandLine=debug\n"},
        ("goldnode-watch.service.d/x.conf:2",),
    ),
    "a mask that outranks /etc": (
        {"/etc/systemd/system.control/goldnode-watch.timer": ""},
        ("/etc/systemd/system.control/goldnode-watch.timer masks goldnode-watch.timer",),
    ),
    "systemd.mask= on the kernel command line": (
        {"/run/systemd/generator.early/goldnode-sanity.service": ""},
        ("generator.early/goldnode-sanity.service masks",),
    ),
    "another unit that outranks /etc": (
        {"/run/systemd/transient/goldnode-watch.service": "[Service]\nExecStart=/bin/true\n"},
        ("takes the place of goldnode-watch.service",),
    ),
    "no devices for any service": (
        {ETC + "service.d/hard.conf": "[Service]\nPrivateDevices=yes\n"},
        ("service.d/hard.conf:2", "takes the devices or rights away"),
    ),
    "an ordinary user": (
        {ETC + "goldnode-sanity.service.d/x.conf": "[Service]\nUser=nobody\n"},
        ("goldnode-sanity.service.d/x.conf:2",),
    ),
    "a second to check a node": (
        {ETC + "goldnode-watch.service.d/x.conf": "[Service]\nTimeoutStartSec=1\n"},
        ("ends too early goldnode-watch.service",),
    ),
    "a command before it that fails": (
        {ETC + "goldnode-watch.service.d/x.conf": "[Service]\nExecStartPre=/bin/false\n"},
        ("ends the start of goldnode-watch.service",),
    ),
    "timers that are masked": ({ETC + "timers.target": ""}, ("timers.target masks timers.target",)),
    "a boot to rescue.target": (
        {ETC + "default.target": "-> /usr/lib/systemd/system/rescue.target"},
        ("rescue.target, which starts no",),
    ),
    "a daemon that is /bin/true": (
        {ETC + "docker.service.d/x.conf": "[Service]\nExecStart=\nExecStart=/bin/true\n"},
        ("docker.service.d/x.conf:3", "leaves no program to docker.service"),
    ),
    "a masked daemon": ({ETC + "docker.service": ""}, ("docker.service masks docker.service",)),
    # moby/moby#14491, NVIDIA/nvidia-container-runtime#97: without the empty line systemd refuses the unit.
    "a second command for a daemon": (
        {ETC + "docker.service.d/override.conf": "[Service]\nExecStart=/usr/bin/dockerd -D\n"},
        ("override.conf:2", "a second program"),
    ),
    # NVIDIA/nvidia-docker#761
    "the daemon with a runtime of NVIDIA": (
        {
            ETC
            + "docker.service.d/override.conf": "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd "
            "--host=fd:// --add-runtime=nvidia=/usr/bin/nvidia-container-runtime\n"
        },
        (),
    ),
    # docs.docker.com, Daemon proxy configuration
    "a proxy for the daemon": (
        {
            ETC + "docker.service.d/http-proxy.conf": "[Service]\n"
            'Environment="HTTP_PROXY=http://proxy.example.com:3128"\n'
        },
        (),
    ),
    # kubernetes/minikube#11563: docker-machine writes this with the empty line
    "the daemon of docker-machine": (
        {
            ETC + "docker.service.d/10-machine.conf": "[Service]\nType=notify\nRestart=on-failure\n"
            "ExecStart=\nExecStart=/usr/bin/dockerd -H tcp://0.0.0.0:2376 \\\n  -H unix:///var/run/docker.sock\n"
        },
        (),
    ),
    "limits, order and environment": (
        {
            ETC
            + "goldnode-sanity.service.d/x.conf": "[Unit]\nAfter=network-online.target\n[Service]\n"
            "Environment=A=B\nMemoryMax=1G\nNice=5\nTimeoutStartSec=1200\nUser=root\n"
            "ExecStartPre=/bin/sleep 5\n",
            ETC + "goldnode-watch.timer.d/x.conf": "[Timer]\nAccuracySec=1s\nOnCalendar=daily\n"
            "[Install]\nWantedBy=timers.target\n",
            ETC + "goldnode-events.service.d/x.conf": "[Service]\nRestart=always\nRestartSec=1\n",
        },
        (),
    ),
    # The generator of a system container writes a drop-in for every service.
    "a system container": (
        {
            "/run/systemd/system/service.d/zzz-lxc-service.conf": "[Service]\nProcSubset=all\n"
            "ProtectProc=default\nProtectControlGroups=no\nProtectKernelTunables=no\nNoNewPrivileges=no\n"
            "PrivateDevices=no\n"
        },
        (),
    ),
    # Fedora's package systemd
    "a drop-in of the distribution": (
        {
            "/usr/lib/systemd/system/service.d/10-timeout-abort.conf": "[Service]\n"
            "TimeoutStopFailureMode=abort\n"
        },
        (),
    ),
    "hardening that leaves the places of a check writable": (
        {ETC + "goldnode-watch.service.d/x.conf": "[Service]\nProtectSystem=full\n"},
        (),
    ),
    "hardening that does not": (
        {
            ETC
            + "goldnode-watch.service.d/x.conf": "[Service]\nProtectSystem=strict\nInaccessiblePaths=/dev\n"
        },
        ("x.conf:3 (`InaccessiblePaths=/dev`)",),
    ),
    "a sandbox without its directories": (
        {ETC + "goldnode-watch.service.d/x.conf": "[Service]\nReadWritePaths=\n"},
        ("x.conf:2 (`ReadWritePaths=`)",),
    ),
    "a sandbox with another directory and capability": (
        {
            ETC
            + "goldnode-watch.service.d/x.conf": "[Service]\nReadWritePaths=/srv\nCapabilityBoundingSet=CAP_NET_ADMIN\n"
        },
        (),
    ),
    "a capability that is taken away": (
        {
            ETC
            + "goldnode-watch.service.d/x.conf": "[Service]\nCapabilityBoundingSet=~CAP_SYS_PTRACE\n"
        },
        ("x.conf:2 (`CapabilityBoundingSet=~CAP_SYS_PTRACE`)",),
    ),
    "a condition that holds": (
        {ETC + "goldnode-watch.service.d/x.conf": "[Unit]\nConditionPathExists=/etc/systemd\n"},
        (),
    ),
    "a condition that is cleared again": (
        {
            ETC
            + "goldnode-watch.service.d/x.conf": "[Unit]\nConditionPathExists=/a\nAssertACPower=\nConditionPathExists=\n"
        },
        (),
    ),
    "a drop-in that a mask hides": (
        {
            "/usr/lib/systemd/system/goldnode-watch.service.d/x.conf": "[Service]\nUser=nobody\n",
            ETC + "goldnode-watch.service.d/x.conf": "-> /dev/null",
        },
        (),
    ),
    "a slower timer that a verdict outlives": (
        {
            ETC
            + "goldnode-watch.timer.d/x.conf": "[Timer]\nOnActiveSec=\nOnActiveSec=60\nOnUnitInactiveSec=10min\n"
        },
        (),
    ),
    "a timer by the clock": (
        {ETC + "goldnode-watch.timer.d/x.conf": "[Timer]\nOnCalendar=\nOnCalendar=*:0/5\n"},
        (),
    ),
    "a second name": ({ETC + "site-check.service": "-> goldnode-sanity.service"}, ()),
    "a link that systemd ignores": (
        {"/etc/systemd/system.control/goldnode-watch.service": "-> goldnode-watch.timer"},
        (),
    ),
    "a file that systemd does not read": (
        {ETC + "goldnode-watch.service.d/x.conf.dpkg-old": "[Service]\nUser=nobody\n"},
        (),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_units_are_compared_by_effect(tmp_path: Path, case: str) -> None:
    files, expected = CASES[case]
    own = dict(OWN)
    links = {name: text[3:] for name, text in files.items() if text.startswith("-> ")}
    others = {name: text for name, text in files.items() if name not in links}
    vendor = {DOCKER: DOCKER_TEXT, "/usr/lib/systemd/system/rescue.target": "[Unit]\n"}
    make(tmp_path, {**own, **vendor, **others}, links)
    names = [path[len(ETC) :] for path in OWN]
    texts = overrides.survey(UnitTree(Host(str(tmp_path))), set(own), names, ["docker.service"])
    if expected:
        assert texts
    else:
        assert texts == []
    for fragment in expected:
        assert fragment in "; ".join(texts)


@pytest.mark.parametrize(
    ("files", "links", "expected"),
    [
        ({}, {}, []),
        (
            {"/usr/local/bin/goldnode-node": "#!/bin/sh\n"},
            {},
            ["/usr/local/bin/goldnode-node"],
        ),
        ({}, {"/usr/local/sbin/goldnode-node": PROGRAM}, []),
        # pip's entry point, as `pip install goldnode` writes it
        (
            {
                "/usr/local/bin/goldnode-node": "#!/usr/bin/python3\nimport sys\n"
                "from goldnode.node.__main__ import command\n"
            },
            {},
            [],
        ),
        ({"/bin/goldnode-node": "x"}, {}, []),
        (
            {
                "/opt/site/bin/goldnode-node": "#!/bin/sh\n",
                "/etc/environment": 'PATH="/opt/site/bin:/usr/local/sbin:/usr/sbin:/usr/bin"\n',
            },
            {},
            ["/opt/site/bin/goldnode-node"],
        ),
        (
            {
                "/opt/first/goldnode-node": "#!/bin/sh\n",
                "/etc/login.defs": "# x\nENV_SUPATH\tPATH=/opt/first:/usr/sbin:/usr/bin\n",
            },
            {},
            ["/opt/first/goldnode-node"],
        ),
    ],
)
def test_another_program_before_goldnodes(
    tmp_path: Path, files: dict[str, str], links: dict[str, str], expected: list[str]
) -> None:
    make(tmp_path, {PROGRAM: "#!/usr/bin/python3\n", **files}, {program.COMMAND: PROGRAM, **links})
    assert overrides.shadows(Host(str(tmp_path)), program.COMMAND) == expected
