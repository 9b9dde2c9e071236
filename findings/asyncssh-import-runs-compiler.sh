#!/usr/bin/env bash
# asyncssh 2.24.1: `import asyncssh` runs the C compiler and the linker, where they are installed.
#
# It looks for liboqs (as `oqs` and as `liboqs`) and libnettle by ctypes.util.find_library at its import, whether an exchange needs them or not. On Linux
# that function asks ldconfig, then links a program with gcc -l NAME, then with ld -l NAME. On a machine with a compiler and without liboqs each start of a
# program with asyncssh takes four more processes than on one without, and 0.03 s of CPU on the machine where it was seen.
# Installs asyncssh in a temporary folder, and imports it with a gcc and an ld that write down their arguments and find nothing.
# Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'asyncssh==2.24.1'
mkdir bin
for name in gcc ld; do
    printf '#!/bin/sh\necho "%s $*" >>%s/calls\nexit 1\n' "$name" "$folder" >"bin/$name"
    chmod +x "bin/$name"
done
PATH=$folder/bin tools/bin/python -c 'import sys, asyncssh; print(f"asyncssh {asyncssh.__version__}, Python {sys.version.split()[0]}")'
sed 's,-o [^ ]*,-o FILE,' calls
[ "$(grep -c '^gcc .*-l\(lib\)\?oqs$' calls)" = 2 ] && [ "$(grep -c '^ld .*-l\(lib\)\?oqs$' calls)" = 2 ]
