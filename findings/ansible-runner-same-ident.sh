#!/usr/bin/env bash
# ansible-runner 2.4.3: a second run with the ident of an earlier one has the events of both, and so has the earlier one.
#
# `ident` names the run and the directory of its artifacts. A run into a directory that is there removes nothing from `job_events`, and `Runner.events`
# reads all files in it, by number: the events of both runs alternate. `Runner.stats` is that of the end that comes last, which by the random part of
# the file's name may be of either run: in one of two trials a run with status `failed` had the statistics of the successful one. A caller that names runs after a job or a host judges an old result. Facts are
# shared in the same way: ansible-runner sets a cache of facts in that directory.
# Expected: a refusal, or the events of that run alone. Installs ansible-runner 2.4.3 and ansible-core 2.19.14 in a temporary folder. Ends with 0
# while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'ansible-runner==2.4.3' 'ansible-core==2.19.14'
export PATH=$folder/tools/bin:$PATH
python - <<'PY'
import os

import ansible_runner

def run(module):
    play = {"hosts": "localhost", "gather_facts": False, "tasks": [{f"ansible.builtin.{module}": {"msg": "a message"}}]}
    return ansible_runner.run(private_data_dir=os.getcwd(), ident="node1", playbook=[play], quiet=True, envvars={"ANSIBLE_LOCALHOST_WARNING": "false"})

first = run("fail")
alone = [event["event"] for event in first.events].count("playbook_on_stats"), sorted(first.stats["failures"])
second = run("debug")
both = [[event["event"] for event in runner.events].count(end) for runner in (first, second) for end in ("runner_on_failed", "playbook_on_stats")]
print("first alone:", first.status, *alone, "; failures and ends among the events of the first, then of the second:", both)
raise SystemExit(alone != (1, ["localhost"]) or (first.status, second.status) != ("failed", "successful") or both != [1, 2, 1, 2])
PY
