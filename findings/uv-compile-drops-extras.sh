#!/usr/bin/env bash
# uv 0.13.9: `uv pip compile` writes "NAME==VERSION" for a requirement "NAME[EXTRA]", so that the file no longer shows what was asked for.
#
# `tensorflow[and-cuda]` becomes `tensorflow==2.21.0` with a dozen nvidia-* lines, and `jax[cuda12]` becomes `jax==0.12.0`. A reader that looks for the
# extra takes the file for one without a GPU; the pins of CUDA's libraries are what is left of it. --no-strip-extras keeps them.
# Installs uv 0.13.9 in a temporary folder. Ends with 0 while the behaviour is this,
# 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'uv==0.13.9'
mkdir links
tools/bin/python - <<'PY'
import zipfile
for name, needs in {"frame": 'Provides-Extra: cuda\nRequires-Dist: runtime==12.0; extra == "cuda"\n', "runtime": ""}.items():
    version = "12.0" if name == "runtime" else "2.0"
    with zipfile.ZipFile(f"links/{name}-{version}-py3-none-any.whl", "w") as archive:
        info = f"{name}-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
PY
echo 'frame[cuda]' >in.txt
compile() { tools/bin/uv pip compile -q --no-config --no-index --find-links links --no-header --no-annotate --python tools/bin/python "$@" in.txt | tr '\n' ' '; }
plain=$(compile); echo "by itself: $plain"
named=$(compile --no-strip-extras); echo "with --no-strip-extras: $named"
[ "$plain" = "frame==2.0 runtime==12.0 " ] && [ "$named" = "frame[cuda]==2.0 runtime==12.0 " ]
