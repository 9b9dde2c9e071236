#!/usr/bin/env bash
# pip 23.2.1 refuses with --require-hashes what a constraints file pins and gives a hash for; pip 26.3 accepts it.
#
# A requirement that only the metadata of another package names has no "==" of its own. pip 23.2.1 ends with "all requirements must have their versions
# pinned with ==", although the constraint has version and hash; so a lock has to be installed with -r, whole. pip 26.3 takes both from the constraint.
# Installs both versions of pip in temporary environments. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
mkdir links
python3 - <<'PY'
import zipfile
for name, needs in {"frame": "Requires-Dist: runtime\n", "runtime": ""}.items():
    with zipfile.ZipFile(f"links/{name}-1.0-py3-none-any.whl", "w") as archive:
        info = f"{name}-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
PY
hash_of() { sha256sum "links/$1-1.0-py3-none-any.whl" | cut -d' ' -f1; }
echo "frame==1.0 --hash=sha256:$(hash_of frame)" >requirements.txt
echo "runtime==1.0 --hash=sha256:$(hash_of runtime)" >constraints.txt
try() {
    python3 -m venv "pip-$1" && "pip-$1/bin/python" -m pip -q install "pip==$1"
    "pip-$1/bin/python" -m pip install -q --no-index --find-links links --require-hashes -c constraints.txt -r requirements.txt >out 2>&1 || true
    if grep -q "pinned with ==" out; then echo "refused"; else "pip-$1/bin/python" -c 'import importlib.metadata as m; print("installed", m.version("runtime"))'; fi
}
old=$(try 23.2.1); echo "pip 23.2.1: $old"
new=$(try 26.3); echo "pip 26.3: $new"
[ "$old" = "refused" ] && [ "$new" = "installed 1.0" ]
