#!/usr/bin/env bash
# pyarrow 26.0.1: a `with` block of S3FileSystem.open_output_stream that ends by an exception completes the object, with the bytes written so far.
#
# The end of the block closes the stream, and closing completes the upload. So a program that fails halfway leaves an object that looks whole, where one
# that is killed leaves none. A stream has no way to abort. pyarrow.fs.copy_files of a local file has no such block.
# The server is simulated: moto 5.2.5.
# Installs pyarrow 26.0.1 and moto 5.2.5 in a temporary folder. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); server=; trap '[ -z "$server" ] || kill "$server"; rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'pyarrow==26.0.1' 'moto[s3,server]==5.2.5'
port=$(tools/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
tools/bin/moto_server -H 127.0.0.1 -p "$port" >server.log 2>&1 & server=$!
tools/bin/python - "$port" <<'PY'
import socket, sys, time
from pyarrow import fs

port = int(sys.argv[1])
for _ in range(600):
    with socket.socket() as opened:
        if opened.connect_ex(("127.0.0.1", port)) == 0:
            break
    time.sleep(0.1)
storage = fs.S3FileSystem(
    access_key="simulated", secret_key="simulated", region="us-east-1", scheme="http",
    endpoint_override=f"127.0.0.1:{port}", allow_bucket_creation=True,
)
storage.create_dir("a-bucket")
try:
    with storage.open_output_stream("a-bucket/object") as stream:
        stream.write(b"half")
        raise RuntimeError("the source of the other half failed")
except RuntimeError:
    pass
info = storage.get_file_info("a-bucket/object")
print(f"after the exception: {info.type.name}, {info.size} bytes")
raise SystemExit((info.type, info.size) != (fs.FileType.File, 4))
PY
