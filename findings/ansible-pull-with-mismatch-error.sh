#!/usr/bin/env bash
# ansible-core 2.19.14: ansible-pull never works with host_pattern_mismatch=error, unless the inventory names the machine.
#
# ansible-pull limits its run to `localhost,HOSTNAME,127.0.0.1`, as "Could not match supplied host pattern, ignoring" shows even where the setting is a
# warning. With `host_pattern_mismatch = error`, the setting against misspelt names, its own pattern ends the run ("[ERROR]: … ignoring: HOSTNAME"), after
# the checkout and before any task. An ansible.cfg in the repository is enough. `-l localhost` replaces the patterns.
# Expected: the patterns that ansible-pull adds are not judged as those of a person are.
# Needs git. Installs ansible-core 2.19.14 in a temporary folder. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'ansible-core==2.19.14'
export HOME=$folder GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
git init -q site
cat >site/local.yml <<'YAML'
- hosts: all
  gather_facts: false
  tasks: [{ansible.builtin.debug: {msg: the task ran}}]
YAML
printf 'nodes:\n  hosts:\n    localhost: {ansible_connection: local, ansible_python_interpreter: "%s"}\n' "$folder/tools/bin/python" >hosts.yml
pull() { # what a run with further options came to, with this ansible.cfg in the repository
    printf '[inventory]\nhost_pattern_mismatch = %s\n' "$1" >site/ansible.cfg
    git -C site add . && git -C site commit -q --message "host_pattern_mismatch = $1" --allow-empty
    # It fails in one of the cases.
    output=$(tools/bin/ansible-pull --url "file://$folder/site" --directory "$folder/checkout" --inventory "$folder/hosts.yml" "${@:2}" local.yml 2>&1) || :
    grep -oE "the task ran|ERROR.: Could not match supplied host pattern" <<<"$output" | tail -n 1
}
warning=$(pull warning); echo "warning: $warning"
error=$(pull error); echo "error: $error"
named=$(pull error --limit localhost); echo "error, --limit localhost: $named"
[ "$warning, $error, $named" = "the task ran, ERROR]: Could not match supplied host pattern, the task ran" ]
