#!/usr/bin/python3 -I
"""Fetch goldnode-node, verify it, and let it make this machine a member of its class.

`goldnode class user-data` prints this file, with a call of `begin` as its last line. cloud-init runs it at the end of
each boot, so that an interrupted boot is repeated; once the machine is a member it ends at once. Nothing here is secret.
"""

import base64
import gzip
import hashlib
import http.client
import io
import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path

RECORD = "/var/lib/cloud/data/goldnode-join.json"  # of `goldnode-node join`
INSTANCE = "/var/lib/cloud/data/instance-id"
INSTALLED = "/usr/lib/goldnode/goldnode-node"  # after the first part of the plan
PLACE = "/run/goldnode-join"
PATIENCE = 600  # seconds, for a network or a server that is not ready
PAUSE = 5  # seconds between two attempts
LARGEST = 1 << 26


def content(path):
    """Return the bytes of a file; empty if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def joined():
    """Return the record of this instance if it is a member; otherwise None."""
    try:
        record = json.loads(content(RECORD))
        here = record["instance"] == content(INSTANCE).decode().strip()
        return record if here and record["state"] == "joined" else None
    except (ValueError, KeyError, TypeError):
        return None


def sha256(data):
    """Return the digest in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def fetch(url):
    """Return what the address answers. Exit with the reason if it does not, in PATIENCE."""
    end, said = time.monotonic() + PATIENCE, ""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - http or https
                return answer.read(LARGEST)
        except (OSError, http.client.HTTPException) as problem:
            final = isinstance(problem, urllib.error.HTTPError) and problem.code < 500
            if final or time.monotonic() > end:
                sys.exit(f"goldnode: {url} cannot be fetched: {problem}. Nothing was changed.")
            if str(problem) != said:
                said = str(problem)
                print(f"goldnode: {url}: {said}; it is tried again", flush=True)
            time.sleep(PAUSE)


def program(settings):
    """Return the verified program. Exit with the reason if it is another one."""
    wanted = settings["program"]
    installed = content(INSTALLED)
    if sha256(installed) == wanted:
        return installed
    if "embedded" in settings:
        data = gzip.decompress(base64.b64decode(settings["embedded"]))
    else:
        data = fetch(settings["url"])
        if sha256(data) != settings["sha256"]:
            sys.exit(
                f"goldnode: {settings['url']} has SHA-256 {sha256(data)}, and the user data names {settings['sha256']}. "
                "Nothing was changed."
            )
        if data.startswith(b"!<arch>"):
            command = ["dpkg-deb", "--fsys-tarfile", "/dev/stdin"]
            tar = subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(tar)) as files:
                data = files.extractfile("./usr/bin/goldnode-node").read()
    if sha256(data) != wanted:
        sys.exit(
            f"goldnode: the program has SHA-256 {sha256(data)}, expected {wanted}. Nothing was changed."
        )
    return data


def begin(settings, document):
    """Run `goldnode-node join`, which replaces this process."""
    record = joined()
    if record:
        print(
            f"goldnode: this machine joined class {record['class']} on {record['time']}: nothing is done",
            flush=True,
        )
        sys.exit(0)
    Path(PLACE).mkdir(0o700, exist_ok=True)
    files = {
        "goldnode-node": program(settings),
        "class.json": gzip.decompress(base64.b64decode(document)),
    }
    for name, data in files.items():
        Path(PLACE, name).write_bytes(data)
    # Not the file itself: /run may be mounted without permission to execute.
    python, file = sys.executable, f"{PLACE}/goldnode-node"
    words = ["-I", "-S", file, "join", "--class", f"{PLACE}/class.json", *settings["options"]]
    os.execv(python, [python, *words])  # noqa: S606 - the verified program
