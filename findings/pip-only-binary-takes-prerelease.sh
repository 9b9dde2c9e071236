#!/usr/bin/env bash
# pip 26.3: `pip download --only-binary :all:` takes a pre-release of long ago for a project whose releases have sources alone.
#
# pip excludes pre-releases unless no other version is left (PEP 440). With --only-binary, releases without a wheel do not count as left, so that a
# wheel of a pre-release wins without a word: deepspeed gave 0.3.1.dev5 of 2020 where 0.18 was the newest release, and tensorrt 10.0.0b6.
# Expected: "No matching distribution found", as without that wheel. A tool that reads "the newest wheel" this way reads the wrong release.
# Installs pip 26.3 in a temporary folder. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'pip==26.3'
mkdir links
# A release with sources alone, and a wheel of an older pre-release.
tools/bin/python - <<'PY'
import io, tarfile, zipfile
with tarfile.open("links/kernels-1.0.tar.gz", "w:gz") as archive:
    for name, text in {"PKG-INFO": "Metadata-Version: 2.1\nName: kernels\nVersion: 1.0\n", "setup.py": "import setuptools; setuptools.setup(name='kernels', version='1.0')\n"}.items():
        row = tarfile.TarInfo(f"kernels-1.0/{name}"); row.size = len(text)
        archive.addfile(row, io.BytesIO(text.encode()))
with zipfile.ZipFile("links/kernels-0.3.dev5-py3-none-any.whl", "w") as archive:
    archive.writestr("kernels-0.3.dev5.dist-info/METADATA", "Metadata-Version: 2.1\nName: kernels\nVersion: 0.3.dev5\n")
    archive.writestr("kernels-0.3.dev5.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    archive.writestr("kernels-0.3.dev5.dist-info/RECORD", "")
PY
take() { tools/bin/pip --isolated download -q --no-index --find-links links --no-deps --only-binary :all: -d "$1" kernels 2>&1 | tail -n 1; ls "$1" 2>/dev/null || true; }
with=$(take first); echo "with the old pre-release: $with"
rm links/*.whl
without=$(take second); echo "without it: $without"
[ "$with" = kernels-0.3.dev5-py3-none-any.whl ] && [[ $without == *"No matching distribution found for kernels"* ]]
