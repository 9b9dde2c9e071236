#!/usr/bin/env bash
# pyarrow 26.0.1: the first array of a list or of numpy, and the first scalar, import pandas 3.1.1 where it is installed, without a value of pandas.
#
# `import pyarrow` does not, so that a program which only measures its imports does not see it. It took 0.28 to 0.32 s of CPU here, and more with the
# packages that pandas uses where they are installed. pandas comes with other packages (chdb 4.4 needs it). An array made of buffers does not
# import it. Without pandas nothing is imported.
# Installs pyarrow 26.0.1, numpy and pandas 3.1.1 in a temporary folder. Ends with 0 while the behaviour is this, 1 if it has changed.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv tools && tools/bin/python -m pip -q install 'pyarrow==26.0.1' 'pandas==3.1.1'
cat >try.py <<'PY'
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet

what = sys.argv[1]
before, begin = "pandas" in sys.modules, time.process_time()
if what == "list":
    pa.array([1, 2, 3])
elif what == "numpy":
    pa.array(np.arange(3))
elif what == "scalar":
    pa.scalar("text")
else:
    pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(np.arange(3))])
print(f"{what}: before {before}, after {'pandas' in sys.modules}, {time.process_time() - begin:.2f} s of CPU")
raise SystemExit(before or ("pandas" in sys.modules) != (what != "buffers"))
PY
for what in list numpy scalar buffers; do tools/bin/python try.py "$what"; done
