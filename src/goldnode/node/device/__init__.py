"""Read and set GPUs in a separate process, which can be killed when the driver hangs.

:mod:`child` is the side of the caller; :mod:`reader` is what `goldnode-node device` runs, with :mod:`nvidia` (NVML) and :mod:`amd`
(sysfs) behind it. One JSON document goes in, one comes out (schema goldnode.device/1):

request::

    {"do": "read", "vendor": "nvidia"|"amd", "root": "/"}
    {"do": "set", "vendor": …, "root": …, "settings": [{"uuid": …, "field": …, "value": …}, …]}    applied in this order

answer to `read`::

    {"schema": "goldnode.device/1", "vendor": "nvidia", "driver": "580.178.04", "gpus": {"0": GPU, "1": GPU, …}}

    GPU = {
      "uuid": "GPU-…",  "address": "0000:07:00.0",  "pci_id": "10de:20b0",  "name": "NVIDIA A100-SXM4-40GB",
      "persistence_mode": true,
      "power": {"limit": 400, "default": 400, "min": 100, "max": 400},                        watts
      "clocks": {"application": {"graphics": 1410, "memory": 1215}, "max": {…},               MHz
                 "supported": {"1215": [[210, 1410, 15]]}},                 per memory clock: runs of first, last, step
      "ecc": {"current": true, "pending": true},
      "compute_mode": "default"|"exclusive_process"|"prohibited",
      "mig": {"current": false, "pending": false, "instances": ["3g.20gb", …], "profiles": ["1g.5gb", …]},
      "processes": [PID, …],
      "performance_level": "auto"                                                             AMD only, which has it and `power` alone
    }

answer to `set`: ``{"schema": …, "results": [{"uuid", "field", "value", "rc", "text", "parts"?}]}``, `rc` 0 for done.

Every value, and a whole GPU, may instead be a fault: ``{"rc": 3, "text": "Not Supported"}`` with NVML's return code. 3 and 13 mean that the
driver does not expose it; anything else that it could not be read. An answer with ``{"error": …}`` says that nothing could be read.

A capture is asked for with the arguments `device capture`, and answered line by line, so that what was read before a driver hung is kept
(:mod:`collect` writes the lines, :mod:`stream` reads them)::

    {"schema": …, "vendor": "nvidia", "driver": …, "nvml": …, "cuda": …, "count": 8}      or {"schema": …, "error": …, "rc": …}
    {"i": 0, "next": "ecc", "set": {…}}       a part of GPU 0 as docs/reference/capture.md has it, and the name of the part that is read next
    {"done": true, "cpu_ms": …, "rss_kib": …, "init_ms": …}
"""

SCHEMA = "goldnode.device/1"
