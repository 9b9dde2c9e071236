"""Driver script for a guest: makes the calls of a controller, from the payload disk. Not a test; it runs in
the guest.

- python3 drive.py forward NEWER.json [SIGN…]: apply a class document, and pause when each file SIGN appears
- python3 drive.py back: return to the previous document
- python3 drive.py settle: print the result of the boot check, finish the return, and print the remaining
  actions
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PROGRAM = "/run/payload/goldnode-node"
STILL = 10.0  # seconds
PARTS = (
    "node_class",
    "kernel",
    "gpu_driver",
    "container_runtime",
    "gpu_policy",
    "host_tuning",
    "sanity",
)


def say(text: str) -> None:
    # systemd writes its own lines to the same console.
    print(f"\nDRIVE {text}", flush=True)


def answer(**request: Any) -> Any:
    asked = {
        "operation": "plan",
        "state": "present",
        "part": None,
        "document": None,
        "lock_timeout": 60,
        "to": "",
        **request,
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", PROGRAM, "answer"],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    reported = json.loads(done.stdout)
    plan = reported.get("plan") or {}
    if reported.get("failed") or plan.get("refusals"):
        say(f"FAILED {reported.get('msg')} {plan.get('refusals')}")
        sys.exit(1)
    return reported


def apply_request(**request: Any) -> Any:
    """Plan, and apply each part that is not empty, as site.yml and rollback.yml do. Returns the first plan's answer and its actions."""
    first = reported = answer(**request)
    request.update(
        {"to": reported["rollback"]["to"]["document"]} if reported.get("rollback") else {}
    )
    for part in PARTS:
        if reported["plan"]["parts"][part]:
            reported = answer(operation="apply", part=part, **request)
    say(
        "LEFT "
        + json.dumps([f"{row['kind']} {row['target']}" for row in reported["plan"]["actions"]])
    )
    return first


def freeze(signs: list[str]) -> None:
    """Stop every process the moment a file of `signs`, in their order, is there, and have the disk hold just that. The host copies the disk or
    pulls the plug; where it does neither for the time of STILL, the work goes on."""
    for sign in signs:
        while not Path(sign).exists():
            time.sleep(0.005)
        stopped = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit() and int(place.name) not in (1, os.getpid()):
                with contextlib.suppress(OSError):
                    words = (place / "cmdline").read_bytes()
                    if words and b"systemd" not in words and b"/usr/local/sbin/guest" not in words:
                        os.kill(int(place.name), signal.SIGSTOP)
                        stopped.append(int(place.name))
        os.sync()
        say(f"CUT {sign}")
        time.sleep(STILL)
        for number in stopped:
            with contextlib.suppress(OSError):
                os.kill(number, signal.SIGCONT)


def main() -> None:
    what = sys.argv[1]
    say(f"KERNEL {os.uname().release} @")
    if what == "forward":
        if sys.argv[3:]:
            threading.Thread(target=freeze, args=(sys.argv[3:],), daemon=True).start()
        first = apply_request(document=json.loads(Path(sys.argv[2]).read_text()))
    elif what == "back":
        first = apply_request(state="earlier")
    else:
        # The boot check is at work or done; this waits for it.
        subprocess.run(["systemctl", "start", "goldnode-sanity.service"], check=False)
        output = subprocess.run(
            ["journalctl", "-b", "-u", "goldnode-sanity", "-o", "cat", "--no-pager"],
            stdout=subprocess.PIPE,
            check=False,
        )
        say("CHECK " + json.dumps(output.stdout.decode()))
        if what == "look":
            return
        first = apply_request(state="earlier")
    say("DID " + json.dumps([f"{row['kind']} {row['target']}" for row in first["plan"]["actions"]]))


main()
