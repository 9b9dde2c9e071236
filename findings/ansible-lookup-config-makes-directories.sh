#!/usr/bin/env bash
# ansible-core 2.19.14: the lookup `config` of DEFAULT_LOCAL_TMP makes a new directory each time, and none is removed.
#
# The lookup "finds the current value" of a setting, says its documentation. The value of this one is the temporary directory of the run, with which
# plugins of one run recognise each other. The lookup works it out again, which makes a directory under ~/.ansible/tmp: an expression that is
# evaluated twice is not equal to itself, a condition in a play of 1,000 hosts leaves 1,000 directories, and check mode leaves them too.
# Only the directory of the run itself is removed at its end. 2.22.0rc1 gives two values as well.
# Expected: the value in effect, and no change of the file system by a lookup of a setting.
# Installs ansible-core 2.19.14 in a temporary folder. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'ansible-core==2.19.14'
export HOME=$folder ANSIBLE_LOCALHOST_WARNING=false ANSIBLE_INVENTORY_UNPARSED_WARNING=false
cat >play.yml <<'YAML'
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.assert:
        that: lookup('ansible.builtin.config', 'DEFAULT_LOCAL_TMP') == lookup('ansible.builtin.config', 'DEFAULT_LOCAL_TMP')
        quiet: true
      ignore_errors: true
      register: equal
    - ansible.builtin.debug: {msg: "equal to itself: {{ not equal.failed }}"}
YAML
ran=$(tools/bin/ansible-playbook --check play.yml | grep -o 'equal to itself: .*' | tr -d '"')
left=$(find .ansible/tmp -mindepth 1 -maxdepth 1 -name 'ansible-local-*' | wc -l)
echo "$ran; left by a run in check mode: $left directories"
[ "$ran, $left" = "equal to itself: False, 2" ]
