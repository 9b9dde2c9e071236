"""AMD GPUs through the files of the amdgpu driver (the kernel's Documentation/gpu/amdgpu and
hwmon/sysfs-interface).
"""

from __future__ import annotations

import glob
import os

from ..ground.host import Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Mapping, Sequence, Tuple


MICRO = 1000000  # hwmon has microwatts


def cards(root: str) -> Iterator[Tuple[str, Json]]:
    """Return (directory of the device, its uevent fields) of each card that amdgpu drives, in the order of
    PCI addresses.
    """
    rows = []
    for name in glob.glob(os.path.join(root, "sys/class/drm/card*[0-9]/device/uevent")):
        with open(name, encoding="utf-8", errors="replace") as opened:
            fields = dict(line.rstrip("\n").split("=", 1) for line in opened if "=" in line)
        if fields.get("DRIVER") == "amdgpu":
            rows.append((os.path.dirname(name), fields))
    return iter(sorted(rows, key=lambda row: str(row[1].get("PCI_SLOT_NAME"))))


def value(name: str, convert: Callable[[str], Any]) -> Any:
    """Return the content of a sysfs file, or a fault.

    A missing file means that this driver does not expose the value.
    """
    try:
        with open(name, encoding="utf-8") as opened:
            return convert(opened.read().strip())
    except FileNotFoundError:
        return {"rc": 3, "text": f"no {os.path.basename(name)} in sysfs"}
    except (OSError, ValueError) as problem:
        return {"rc": 999, "text": f"{os.path.basename(name)}: {problem}"}


def watts(text: str) -> float:
    """Convert microwatts to watts, as an integer if possible."""
    micro = int(text)
    return micro / MICRO if micro % MICRO else micro // MICRO


def hwmon(device: str) -> str:
    """Return the directory of the card's power readings."""
    return next(iter(sorted(glob.glob(f"{device}/hwmon/hwmon*"))), f"{device}/hwmon/none")


def read(root: str) -> Json:
    """Return the settings of all cards."""
    gpus = {}
    for number, (device, fields) in enumerate(cards(root)):
        sensor = hwmon(device)
        address = fields.get("PCI_SLOT_NAME", "")
        unique = value(f"{device}/unique_id", str)
        gpus[str(number)] = {
            "uuid": unique if isinstance(unique, str) and unique else address,
            "address": address,
            "pci_id": fields.get("PCI_ID", "").lower(),
            "name": value(f"{device}/product_name", str),
            "performance_level": value(f"{device}/power_dpm_force_performance_level", str),
            "power": {
                key: value(f"{sensor}/power1_{file}", watts)
                for key, file in (
                    ("limit", "cap"),
                    ("default", "cap_default"),
                    ("min", "cap_min"),
                    ("max", "cap_max"),
                )
            },
            "processes": [],
        }
    return {"driver": "amdgpu", "gpus": gpus}


def change(root: str, settings: Sequence[Mapping[str, Any]]) -> Json:
    """Write settings in their order."""
    where = {
        gpu["uuid"]: device for gpu, (device, _) in zip(read(root)["gpus"].values(), cards(root))
    }
    results = []
    for setting in settings:
        device = where.get(setting["uuid"])
        text, rc = "Success", 0
        if device is None:
            text, rc = "no such card", 6
        else:
            name, written = f"{hwmon(device)}/power1_cap", setting["value"]
            if setting["field"] == "performance_level":
                name = f"{device}/power_dpm_force_performance_level"
            else:
                written *= MICRO
            try:
                with open(name, "w", encoding="utf-8") as opened:
                    opened.write(str(written))
            except OSError as problem:
                text, rc = f"{os.path.basename(name)}: {problem.strerror}", 999
        results.append({**setting, "rc": rc, "text": text})
    return {"results": results}
