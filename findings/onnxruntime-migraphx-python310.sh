#!/usr/bin/env bash
# onnxruntime-migraphx 1.24.4 to 1.27.1 (ONNX Runtime for AMD GPUs): the index has wheels for CPython 3.10 that no pip installs on Python 3.10.
#
# The tags of the wheel are cp310-cp310-manylinux_2_34_x86_64, and its metadata has Requires-Python >=3.11. pip 26.2 obeys the metadata: on 3.10 a
# requirement of 1.27.1 fails, and one without a version gives 1.24.2 without a word. A tool that judges by the names of the wheels alone promises
# 1.27.1 for Python 3.10 (Ubuntu 22.04, which ROCm 7 supports), and a lock made so cannot be installed there.
# Asks the package index and downloads one wheel of 20 MB; nothing is installed but pip. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'pip==26.2' 2>/dev/null
fetch() { tools/bin/pip download --no-deps --only-binary=:all: --python-version 3.10 --platform manylinux_2_34_x86_64 "$@"; }
if fetch -vvv -d exact onnxruntime-migraphx==1.27.1 >exact.log 2>&1; then
    echo "changed: pip takes 1.27.1 on Python 3.10"; exit 1
fi
wheel=onnxruntime_migraphx-1.27.1-cp310-cp310-manylinux_2_34_x86_64.whl
grep -qF "$wheel" exact.log || { echo "changed: the index has no $wheel"; exit 1; }
grep -qF "1.27.1 Requires-Python >=3.11" exact.log || { echo "changed: another reason than Requires-Python"; exit 1; }
echo "1.27.1: the index has $wheel, and pip refuses it for Requires-Python >=3.11"
fetch -q -d any 'onnxruntime-migraphx<=1.27.1' >any.log 2>&1
taken=$(ls any); echo "without a version, Python 3.10 gets $taken"
[ "$taken" = onnxruntime_migraphx-1.24.2-cp310-cp310-manylinux_2_34_x86_64.whl ]
