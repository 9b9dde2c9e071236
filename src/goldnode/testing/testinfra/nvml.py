"""NVML through plain ctypes on the host, with its own structure definitions and without pynvml.

Each value is a number, a list, a text, or ``{"rc": N}`` with NVML's return code if there is no value.
"""

from __future__ import annotations

SCRIPT = r"""
import ctypes, json, sys
uint = ctypes.c_uint
try:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
except OSError as error:
    sys.exit(print(json.dumps({"library": str(error)})))
rc = nvml.nvmlInit_v2()
if rc:
    sys.exit(print(json.dumps({"init": rc})))
class Pci(ctypes.Structure):
    _fields_ = [("legacy", ctypes.c_char * 16), ("domain", uint), ("bus", uint), ("device", uint), ("id", uint), ("sub", uint),
                ("name", ctypes.c_char * 32)]
class Profile(ctypes.Structure):
    _fields_ = [("version", uint), ("id", uint), ("counts", uint * 9), ("memory", ctypes.c_ulonglong), ("name", ctypes.c_char * 96)]
def numbers(name, count, *given):
    out = [uint() for _ in range(count)]
    rc = getattr(nvml, name)(*given, *map(ctypes.byref, out)) if hasattr(nvml, name) else 13
    values = [one.value for one in out]
    return {"rc": rc} if rc else values[0] if count == 1 else values
def instances(gpu):
    found = []
    for index in range(32):
        profile = Profile(version=2 << 24 | ctypes.sizeof(Profile))
        if nvml.nvmlDeviceGetGpuInstanceProfileInfoV(gpu, uint(index), ctypes.byref(profile)):
            continue
        handles, count = (ctypes.c_void_p * 64)(), uint(64)
        if nvml.nvmlDeviceGetGpuInstances(gpu, uint(profile.id), handles, ctypes.byref(count)) == 0:
            found += [profile.name.decode().replace("MIG ", "")] * count.value
    return sorted(found)
def devices(gpu):
    one, count = ctypes.c_void_p(), 0
    for index in range(64):
        count += nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, uint(index), ctypes.byref(one)) == 0
    return count
gpus, total = [], uint()
nvml.nvmlDeviceGetCount_v2(ctypes.byref(total))
for index in range(total.value):
    gpu, uuid, pci = ctypes.c_void_p(), ctypes.create_string_buffer(96), Pci()
    rc = nvml.nvmlDeviceGetHandleByIndex_v2(uint(index), ctypes.byref(gpu))
    rc = rc or nvml.nvmlDeviceGetUUID(gpu, uuid, uint(96)) or nvml.nvmlDeviceGetPciInfo_v3(gpu, ctypes.byref(pci))
    if rc:
        gpus.append({"index": index, "rc": rc})
        continue
    mig = numbers("nvmlDeviceGetMigMode", 2, gpu)
    gpus.append({
        "index": index, "uuid": uuid.value.decode(), "pci_id": "%04x:%04x" % (pci.id & 0xFFFF, pci.id >> 16),
        "persistence_mode": numbers("nvmlDeviceGetPersistenceMode", 1, gpu),
        "power_limit_mw": numbers("nvmlDeviceGetPowerManagementLimit", 1, gpu),
        "application_clocks": [numbers("nvmlDeviceGetApplicationsClock", 1, gpu, uint(kind)) for kind in (0, 2)],
        "ecc": numbers("nvmlDeviceGetEccMode", 2, gpu),
        "compute_mode": numbers("nvmlDeviceGetComputeMode", 1, gpu),
        "mig": mig,
        "instances": instances(gpu) if mig == [1, 1] else [],
        "mig_devices": devices(gpu) if mig == [1, 1] else 0,
    })
print(json.dumps({"gpus": gpus}))
"""
