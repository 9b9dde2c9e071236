# ruff: noqa: E501
"""The fault scoreboard's table: what is wrong with a node, and what a checker has to say of it.

F01 to F27 and H0 to H3 are the scenarios with which the public tools were measured (their marks are in peers.py); the rest is ours. What is
expected follows from what the fault means for the work on the node: degraded where it can go on, drain where it must not, could not check
where nobody knows. The names of findings are the program's own (docs/reference/sanity.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.steps import (
    Step,
    blocked,
    board,
    bus,
    clock,
    documented,
    edit,
    environment,
    file,
    link,
    log,
    memory,
    program,
    ring,
    several,
    syslog,
    turning,
    unit,
    until,
)  # fmt: skip

HEALTHY, DEGRADED, DRAIN, UNKNOWN, OTHER = 0, 1, 2, 3, 4


@dataclass(frozen=True)
class Row:
    """One row.

    :param do: what is wrong.  find: pattern of the ids of findings that say so.  codes: exit codes that are right.
    :param remedy: pattern of what the remedy must say.  blast: what following it takes along.  about: what a finding must name.
    :param outlives: whether it is still there after a boot; where not, the node must be healthy then.
    :param boot: what is left of it after a boot, in place of `do`.  boots: whether the row is run after a boot at all.
    :param trap: the node is healthy, and no checker may say otherwise.
    :param once: it is told when it happens; a later check may have nothing to say.
    :param red: why goldnode does not do as it should, as long as it does not: the test fails once it does.
    """

    name: str
    text: str
    do: Step
    find: str = ""
    codes: tuple[int, ...] = (DRAIN,)
    remedy: str = ""
    blast: str | None = None
    about: str = ""
    outlives: bool = True
    boot: Step | None = None
    boots: bool = True
    trap: bool = False
    note: bool = False
    node: str = "board_h100"
    once: bool = False
    red: str | None = None


def fault(
    name: str, text: str, do: Step, find: str, codes: int | tuple[int, ...] = DRAIN, **more: object
) -> Row:
    return Row(name, text, do, find, (codes,) if isinstance(codes, int) else codes, **more)  # type: ignore[arg-type]


def trap(name: str, text: str, do: Step, **more: object) -> Row:
    return Row(name, text, do, trap=True, **more)  # type: ignore[arg-type]


def nothing(*_: object) -> None:
    """Nothing is done."""


GPU3 = "0000:28:00.0"
XID = "NVRM: Xid (PCI:0000:28:00"

MEASURED = (
    trap("H0", "healthy, idle at full generation", nothing),
    trap("H1", "healthy, idle: generation 1 of 5, P8", board("gpu*.pcie.generation=1", "gpu*.performance_state=8", "gpu*.clock.0=345")),
    trap(
        "H2", "healthy: one row remapped and one uncorrected error in the life of the card, nothing pending",
        board("gpu3.remapped.uncorrectable=1", "gpu3.ecc_errors.1.1=1"),
    ),
    trap("H3", "healthy: Xid 31 of an application (a user's fault) in the log", log(f"{XID}): 31, pid=4242, name=python3, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_READ")),
    fault("F01", "one GPU at x8 of x16", board("gpu3.pcie.width=8"), r"pcie\.width", DRAIN, about=GPU3, remedy="reseat|power-cycle|slot|riser", blast="hardware"),
    fault(
        "F02", "one GPU at x8, and NVML's own maximum is x8 (slot, bifurcation, BIOS)",
        board("gpu3.pcie.width=8", "gpu3.pcie.width_max=8", "gpu3.pcie.port_width=8"), r"pcie\.width", DRAIN, about=GPU3, remedy="slot|bios|bifurcation|riser",
    ),
    fault(
        "F03", "all GPUs at generation 4, maximum 4, the device could 5 (BIOS)",
        board("gpu*.pcie.generation=4", "gpu*.pcie.generation_max=4", "gpu*.pcie.port_generation=4", "gpu*.utilization.gpu=90"), r"pcie\.gen", DRAIN, remedy="bios|firmware|slot",
    ),
    fault("F04", "7 of 8 GPUs", board("gpu7.absent=1"), r"gpu\.count", DRAIN, remedy="reseat|power-cycle"),
    fault("F05", "a row remap is pending", board("gpu3.remapped.pending=1"), r"gpu\.remap\.pending", DRAIN, about=GPU3, remedy="reset", blast="gpu", outlives=False, boot=board("gpu3.remapped.uncorrectable=1")),
    fault("F06", "a row remap failed", board("gpu3.remapped.failure=1"), r"gpu\.remap\.failure", DRAIN, about=GPU3, remedy="RMA|replace|field diagnostic", blast="hardware"),
    fault("F07", "persistence mode is off on one GPU", board("gpu3.persistence_mode=0"), r"policy\.persistence_mode", DEGRADED, remedy="goldnode-policy|policy apply|site.yml|persistence"),
    fault("F08", "ECC is off on one GPU", board("gpu3.ecc_current=0", "gpu3.ecc_pending=0"), r"policy\.ecc", DRAIN, remedy="policy|site.yml|reboot"),
    fault("F09", "power limit 500 W on one GPU", board("gpu3.power_limit=500000", "gpu3.enforced_power_limit=500000"), r"policy\.power_limit_watts", DEGRADED, remedy="policy|site.yml"),
    fault("F10", "one GPU has another VBIOS", board("gpu3.vbios_version=96.00.01.00.01"), r"gpu\.vbios", DEGRADED, about=GPU3, remedy="flash|vbios|firmware"),
    fault("F11", "one NVLink is inactive", board("gpu3.nvlink.5.state=0"), r"nvlink\.active", DRAIN, about=GPU3, remedy="reset|fabric|reseat"),
    fault("F12", "application clock 1410 MHz on one GPU", board("gpu3.application_clock.0=1410"), r"policy\.clocks\.graphics_mhz", DEGRADED, remedy="policy|site.yml"),
    fault("F13", "hardware thermal slowdown", board("gpu3.clocks_event_reasons=72"), r"gpu\.throttle", DRAIN, about=GPU3, remedy="cool|air|fan|thermal"),
    fault(
        "F14", "another driver version is loaded than declared",
        several(board("driver_version=570.86.15"), file("sys/module/nvidia/version", "570.86.15\n"), edit("proc/driver/nvidia/version", r"580\.95\.05", "570.86.15")),
        r"driver\.loaded", DRAIN, remedy="reboot|reload",
    ),
    fault("F15", "a GPU is lost (NVML 15)", board("gpu3.all=error:lost"), r"gpu\.lost", DRAIN, about=GPU3, remedy="reboot|power-cycle|reset"),
    fault("F16", "Xid 95, uncontained memory error", log(f"{XID}): 95, pid=4242, name=python3, Uncontained: FBHUB. RST: Yes, D-RST: No"), r"xid\.95", DRAIN, about=GPU3, remedy="reset", blast="gpu", outlives=False),
    fault("F17", "Xid 95 with the marks of a MIG instance", log(f"{XID} GPU-I:05): 95, pid=4242, name=python3, Uncontained: FBHUB. RST: Yes, D-RST: No"), r"xid\.95", DRAIN, about=GPU3, remedy="reset", outlives=False),
    fault(
        "F18", "fatal SXid 20034 of an NVSwitch",
        log("nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"), r"sxid\.20034", DRAIN, remedy="reset|restart|reboot|fabric", outlives=False,
    ),
    fault("F19", "73000 MiB of memory on one GPU", board(f"gpu3.memory.total={73000 << 20}"), r"gpu\.memory", DRAIN, about=GPU3, remedy="RMA|replace|reset|reboot"),
    fault("F20", "MIG was left on on one GPU", board("gpu3.mig_current=1", "gpu3.mig_pending=1"), r"policy\.mig", DRAIN, remedy="policy|site.yml"),
    fault("F21", "NVML's recovery action says: reset", board("gpu3.field.230=1"), r"gpu\.recovery_action", DRAIN, about=GPU3, remedy="reset", blast="gpu", outlives=False, boot=nothing),
    fault("F22", "one GPU is an H100 PCIe", board("gpu3.pci.device_id=233110de", "gpu3.name=NVIDIA H100 PCIe"), r"gpu\.ids", OTHER, remedy="class|replace"),
    fault(
        "F23", "the driver is not loaded (NVML 9)",
        several(board("init=error:driver_not_loaded"), file("sys/module/nvidia", None), file("sys/module/nvidia_uvm", None), file("proc/driver/nvidia", None), file("dev/nvidia*", None)),
        r"driver\.loaded", DRAIN, remedy="dmesg|load|reboot|modprobe|installed",
    ),
    fault("F24", "driver and library do not match (NVML 18)", board("init=error:library_mismatch"), r"gpu\.library", DRAIN, remedy="reboot|reload|same version|installed"),
    fault("F25", "only the line of Xid 79; the GPU is still listed", log(f"{XID}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."), r"xid\.79", DRAIN, about=GPU3, remedy="reboot|power", blast="node", outlives=False),
    fault("F26", "one volatile uncorrected ECC error", board("gpu3.ecc_errors.1.0=1", "gpu3.ecc_errors.1.1=1"), r"gpu\.ecc\.aggregate|gpu\.ecc\.uncorrected", (DRAIN, DEGRADED), about=GPU3, remedy="reset|reboot|ack", boot=board("gpu3.ecc_errors.1.1=1")),
    fault("F27", "Xid 48, double bit error", log(f"{XID}): 48, pid='<unknown>', name=<unknown>, DBE (double bit error) on FBPA. RST: Yes, D-RST: No"), r"xid\.48", DRAIN, about=GPU3, remedy="reset|drain|63|64|95", outlives=False),
)  # fmt: skip


def suppressed(expires: str) -> Step:
    """The class accepts the power limit of GPU 3, until then."""

    def change(document: dict[str, object]) -> None:
        document["suppressions"] = [
            {
                "id": "policy.power_limit_watts",
                "severity": "drain",
                "owner": "power team",
                "reason": "feed B is being repaired",
                "expires": expires,
            }
        ]

    return several(
        until(1, documented(change)),
        board("gpu3.power_limit=500000", "gpu3.enforced_power_limit=500000"),
    )


def by_design(baseline: dict[str, object]) -> Step:
    """The class says that its GPUs are so, and why."""

    def change(document: dict[str, object]) -> None:
        for place in (document, document["health"]):
            place["baseline"]["gpu"] = {**place["baseline"].get("gpu", {}), **baseline}  # type: ignore[index]

    return until(1, documented(change))


RFC3339 = "2026-11-22T09:{0}.123456+01:00 node1 kernel: [ {1}.000001] {2}\n"
LINES = "".join(
    RFC3339.format(f"0{n}:00", n + 10, text)
    for n, text in enumerate(("Linux version 6.12.94+deb13-amd64", "usb 1-1: new device"))
)
UTF8 = "名前-Prüfung"
LINK = "sys/class/net/eth0"
IB = "sys/class/infiniband/mlx5_0/ports/1"
FULL = board("gpu*.utilization.gpu=98", "gpu*.performance_state=0")

MORE = (
    # -- PCIe
    fault("P01", "a storm of corrected PCIe errors at one GPU", board("gpu3.aer.correctable={100000}"), r"pcie\.aer", DEGRADED, about=GPU3, remedy="reseat|slot|riser|cable"),
    fault("P02", "a fatal PCIe error at the port above a GPU", board("gpu3.aer.port.fatal=1"), r"pcie\.aer", DRAIN, remedy="reseat|slot|riser|cable"),
    fault("P03", "a switch above a GPU is held to generation 4, the GPU itself could 5", several(FULL, board("gpu3.pcie.port_generation=4", "gpu3.pcie.generation=4")), r"pcie\.gen", DRAIN, remedy="bios|firmware|slot|switch|reseat"),
    fault("P04", "the link between switch and root port came up at x8", board("gpu2.pcie.root_now_width=8", "gpu2.pcie.switch_now_width=8"), r"pcie\.width", DRAIN, remedy="reseat|slot|switch|riser|bios"),
    fault("P05", "generation 3 in P0 under load", several(FULL, board("gpu3.pcie.generation=3")), r"pcie\.gen", DRAIN, about=GPU3, remedy="reseat|slot|bios|signal"),
    fault("P06", "replays of the PCIe link mount up", board("gpu3.pcie.replays={50000}"), r"pcie\.replay", DEGRADED, about=GPU3, remedy="reseat|slot|riser|signal"),
    fault("P07", "configuration space reads all ones, the library has lost the GPU", board("gpu3.pci.gone=1", "gpu3.all=error:lost"), r"gpu\.lost", DRAIN, about=GPU3, remedy="power-cycle|reboot|reseat"),
    fault("P08", "a GPU below the other socket than the class says", board("gpu0.numa_node=1"), r"gpu\.numa", DEGRADED, about="0000:10:00.0", remedy="bios|slot|class"),
    fault("P09", "small BAR1: above-4G decoding is off", board("gpu3.bar1.total=268435456", "gpu3.pci.bar1=268435456"), r"gpu\.bar1", DRAIN, about=GPU3, remedy="bios|above"),
    fault("P10", "vfio-pci holds a GPU", board("gpu3.pci.driver=vfio-pci", "gpu3.absent=0"), r"gpu\.bound", DRAIN, about="bound to vfio-pci: it is reserved for a virtual machine", remedy="driverctl list-overrides"),
    fault("P11", "a network adapter came up at x8", bus(nic1__pcie__width="8"), r"pcie\.link", DEGRADED, remedy="reseat|slot|bios|riser"),
    # -- GPU
    fault("G01", "the SRAM threshold is exceeded", board("gpu3.sram.threshold_exceeded=1"), r"gpu\.sram", DRAIN, about=GPU3, remedy="RMA|replace|field diagnostic", blast="hardware"),
    fault("G24", "memory of a process that is gone", board("gpu3.processes=4194400:60000000000", "gpu3.memory.used=61000000000"), r"gpu\.held", DRAIN, about=GPU3, remedy="fuser.*reboot", blast="node", outlives=False, boots=False),
    fault("G02", "power brake: the supply asks for less", board("gpu3.clocks_event_reasons=136"), r"gpu\.throttle\.brake", DRAIN, about=GPU3, remedy="power|PSU|supply"),
    fault("G03", "thermal throttling between the checks, none at the moment", board("gpu3.violation.1={60000000000}"), r"gpu\.throttle", DRAIN, about=GPU3, remedy="cool|air|fan|thermal"),
    fault("G04", "no margin to the slowdown temperature", board("gpu3.temperature_margin=-3"), r"gpu\.temperature", DEGRADED, about=GPU3, remedy="cool|air|fan"),
    fault("G05", "two GPUs with one UUID", board("gpu3.uuid=@gpu2.uuid"), r"gpu\.uuid", DRAIN, remedy=""),
    fault("G06", "a bank has no rows left to remap to", board("gpu3.remapped.none=1"), r"gpu\.remap\.spare", DEGRADED, about=GPU3, remedy="RMA|replace|diagnostic|watch"),
    fault("G07", "the recovery action is: reboot the node", board("gpu3.field.230=2"), r"gpu\.recovery_action", DRAIN, about=GPU3, remedy="reboot", blast="node", outlives=False, boot=nothing),
    fault("G08", "the recovery action is: drain and reset", board("gpu3.field.230=4"), r"gpu\.recovery_action", DRAIN, about=GPU3, remedy="drain|reset", outlives=False, boot=nothing),
    fault("G09", "the InfoROM is corrupt", board("gpu3.inforom.checksum=error:corrupted_inforom", "gpu3.inforom.valid=error:corrupted_inforom"), r"gpu\.inforom", DEGRADED, about=GPU3, remedy="RMA|replace|support|flash|nvflash"),
    fault("G10", "memory that cannot be repaired", board("gpu3.unrepairable_memory=1"), r"gpu\.repair", DRAIN, about=GPU3, remedy="RMA|replace", blast="hardware"),
    fault("G11", "a channel repair is pending", board("gpu3.repair.channel=1", "gpu3.repair.tpc=0"), r"gpu\.repair", DRAIN, about=GPU3, remedy="reset|reboot"),
    fault("G12", "NVLink errors mount up", board("gpu3.nvlink.2.errors.0={100000}", "gpu3.nvlink.2.errors.1={100000}"), r"nvlink\.errors", DEGRADED, about=GPU3, remedy="reset|reseat|cable|RMA|board"),
    fault("G13", "the fabric did not come up", board("gpu*.fabric.state=2"), r"fabric\.state", DRAIN, remedy="fabric"),
    fault("G14", "the driver enforces less than the power limit", board("gpu3.enforced_power_limit=400000"), r"gpu\.power\.enforced", DEGRADED, about=GPU3, remedy="power|cap|BMC|supply"),
    fault("G15", "a declared value that the driver does not expose", board("gpu3.power_limit=error:not_supported"), r"policy\.power_limit_watts", UNKNOWN),
    fault("G16", "a declared value of which the driver has no function", board("gpu*.ecc_current=error:function_not_found", "gpu*.ecc_pending=error:function_not_found"), r"gpu\.ecc\.uncorrected|policy\.ecc", UNKNOWN),
    fault("G17", "remapped rows that may not be read", board("gpu3.remapped.pending=error:no_permission"), r"gpu\.remap\.failure|gpu\.remap\.pending|gpu\.remap\.spare", UNKNOWN, about=GPU3),
    fault("G18", "uncorrected errors that came with a boot and are only in the aggregate", until(1, board("gpu3.ecc_errors.1.1=3")), r"gpu\.ecc\.aggregate", DEGRADED, about=GPU3, remedy="reset|reboot|diagnostic|watch|retire|RMA", boots=False),
    fault("G19", "a GPU was swapped for another of the same model", board("gpu3.uuid=GPU-11111111-2222-3333-4444-555555555555", "gpu3.serial=OTHER"), r"changed\.gpu", DEGRADED, about=GPU3, boots=False, note=True),
    fault("G20", "GPUs of one model with two VBIOS that the class does not declare", board("gpu3.vbios_version=92.00.45.00.03"), r"gpu\.vbios", DEGRADED, remedy="flash|vbios|firmware|one", node="board_a100"),
    fault("G21", "retired pages wait for a boot (before Ampere)", board("gpu1.retired_pages_pending=1"), r"gpu\.retired_pages", DRAIN, remedy="reboot|reset", outlives=False, boot=nothing, node="board_v100"),
    fault("G22", "15 of 16 GPUs", board("gpu15.absent=1"), r"gpu\.count", DRAIN, remedy="reseat|power-cycle", node="board_l4x16"),
    fault("G23", "the one GPU of a node is gone", board("gpu0.absent=1", "count=0"), r"gpu\.count", DRAIN, remedy="reseat|power-cycle", node="board_l4"),
    # -- driver
    fault("D01", "the driver hangs at its start", board("init=hang"), r"gpu\.library", DRAIN, remedy="reboot|dmesg", blast="node"),
    fault("D02", "one GPU's call hangs; the others have answered", board("gpu5.temperature.0=hang"), r"gpu\.library", DRAIN, remedy="reboot|dmesg|reset"),
    fault("D03", "the program that asks dies by a signal", program("os.kill(os.getpid(), signal.SIGSEGV)"), r"gpu\.library", DRAIN),
    fault("D04", "it answers something that is no answer", program("print('{\"half\":')"), r"gpu\.library", DRAIN),
    fault("D05", "it does not stop talking", program("try:\n    while True: sys.stdout.write('x' * 65536)\nexcept BrokenPipeError: pass"), r"gpu\.library", DRAIN),
    fault("D06", "half loaded: nvidia_uvm is missing, nvidia-smi works", several(file("sys/module/nvidia_uvm", None), edit("proc/modules", r"^nvidia_uvm .*\n|\Z", ""), file("dev/nvidia-uvm", None), file("dev/nvidia-uvm-tools", None)), r"module\.loaded", DRAIN, remedy="modprobe|uvm|load"),
    fault("D07", "the library on disk is of another version", several(file("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.575.1", ""), link("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "libnvidia-ml.so.575.1")), r"driver\.library", DRAIN, remedy="site.yml"),
    fault("D08", "the fabric manager has stopped", unit("nvidia-fabricmanager.service", "failed", "exit-code"), r"service\.active", DEGRADED, about="fabricmanager", remedy="systemctl|fabric"),
    fault("D09", "persistenced has stopped", unit("nvidia-persistenced.service", "inactive"), r"service\.active", DEGRADED, about="persistenced", remedy="systemctl"),
    fault("D10", "a device node is missing", file("dev/nvidia5", None), r"gpu\.visible", DRAIN),
    fault("D11", "another kernel runs", file("proc/sys/kernel/osrelease", "6.12.90+deb13-amd64\n"), r"kernel\.running", DRAIN, remedy="boot"),
    fault("D13", "nouveau holds a GPU", board("gpu3.pci.driver=nouveau"), r"gpu\.bound", DRAIN, about="bound to nouveau", remedy="site.yml.*reboot"),
    fault("D14", "no driver holds a GPU, and its package is half-configured", several(file(f"sys/bus/pci/devices/{GPU3}/driver", None), edit("var/lib/dpkg/status", r"(Package: nvidia-kernel-open-dkms\nStatus: hold ok )(?:installed|half-configured)", r"\1half-configured")), r"gpu\.bound", DRAIN, about="nvidia-kernel-open-dkms is half-configured", remedy="site.yml.*completes the packages"),
    fault("D15", "no driver holds a GPU, and the running kernel has no module of it", several(file(f"sys/bus/pci/devices/{GPU3}/driver", None), edit("lib/modules/*/modules.dep", r"^\S*nvidia\.ko.*\n|\Z", "")), r"gpu\.bound", DRAIN, about="has no module nvidia", remedy="site.yml.*module"),
    fault("D16", "a file of another program keeps the driver out of the next boot", file("etc/modprobe.d/blacklist-nvidia.conf", "# prime-select\nblacklist nvidia\n"), r"driver\.modprobe", DRAIN, about="/etc/modprobe.d/blacklist-nvidia.conf:2", remedy="Remove line 2"),
    fault("D17", "a package's file puts another command in the driver's place", file("usr/lib/modprobe.d/nvidia-off.conf", "install nvidia /bin/false\n"), r"driver\.modprobe", DRAIN, about="nvidia-off.conf:1", remedy="Hide /usr/lib/modprobe.d/nvidia-off.conf"),
    trap("D18", "a blacklist file that one of its name in /etc hides", several(file("usr/lib/modprobe.d/nvidia-off.conf", "blacklist nvidia\n"), file("etc/modprobe.d/nvidia-off.conf", "# not on this node\n"))),
    fault("D12", "nouveau is loaded", file("sys/module/nouveau/initstate", "live\n"), r"blacklist\.nouveau", DRAIN, remedy="reboot|site.yml"),
    # -- log
    fault("X01", "Xid 79 in a ring with names in other alphabets", log(f"nvidia: {UTF8} meldet", f"{XID}): 79, pid=77, name={UTF8}, GPU has fallen off the bus."), r"xid\.79", DRAIN, about=GPU3, remedy="reboot|power", outlives=False),
    fault("X02", "Xid 79 in a file of syslog with RFC 3339 stamps; there is no ring", syslog("var/log/kern.log", LINES + RFC3339.format("30:00", 1800, f"{XID}): 79, pid=77, name=python3, GPU has fallen off the bus.")), r"xid\.79", DRAIN, about=GPU3, remedy="reboot|power", boots=False),
    fault("X03", "the GPU fell off the bus, in the line without an Xid", log("NVRM: GPU 0000:28:00.0: GPU has fallen off the bus."), r"gpu\.bus_lost", DRAIN, about=GPU3, remedy="reboot|power", outlives=False),
    fault("X04", "the same in two lines, the address in the first", log("NVRM: The NVIDIA GPU 0000:28:00.0 (PCI ID: 10de:2330)", "NVRM: installed in this system has", "NVRM: fallen off the bus and is not responding to commands."), r"gpu\.bus_lost", DRAIN, about=GPU3, remedy="reboot|power", outlives=False),
    fault("X05", "an Xid that no catalogue has", log(f"{XID}): 9999, pid=77, name=python3, something new"), r"xid\.9999", UNKNOWN, about=GPU3, outlives=False),
    fault("X06", "Xid 74 of NVLink", log(f"{XID}): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 2(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"), r"xid\.74", DRAIN, about=GPU3, outlives=False),
    fault("X07", "Xid 64: remapping has failed", log(f"{XID}): 64, pid='<unknown>', name=<unknown>, Row Remapper Error: (0x0000000000000000) - All reserved rows for bank are remapped"), r"xid\.64", DRAIN, about=GPU3, remedy="reset", outlives=False),
    fault("X08", "Xid 119: the GSP does not answer", log(f"{XID}): 119, pid=77, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU3 GSP! Expected function 76 (GSP_RM_CONTROL)"), r"xid\.119", DRAIN, about=GPU3, remedy="reset", outlives=False),
    fault("X09", "Xid 54: auxiliary power is not connected", log(f"{XID}): 54, pid='<unknown>', name=<unknown>, AUX power is not connected"), r"xid\.54", DRAIN, about=GPU3, remedy="power|cable", blast="hardware", outlives=False),
    fault("X10", "an SXid that is always fatal", log("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 22003, Fatal, Link 01 ROUTE error"), r"sxid\.22003", DRAIN, outlives=False),
    fault("X12", "RmInitAdapter has failed", log("NVRM: GPU 0000:28:00.0: RmInitAdapter failed! (0x62:0x40:1860)", "NVRM: GPU 0000:28:00.0: rm_init_adapter failed, device minor number 3"), r"driver\.init_failed", DEGRADED, about=GPU3, outlives=False),
    fault("X13", "control characters and a terminal's commands in a line", log(f"{XID}): 79, pid=7, name=\x1b[2J\x1b]0;owned\x07$(reboot)`id`, GPU has fallen off the bus."), r"xid\.79", DRAIN, about=GPU3, outlives=False),
    fault("X14", "a machine check", log("mce: [Hardware Error]: CPU 4: Machine Check Exception: 5 Bank 7: be00000000800400"), r"machine\.mce", DRAIN, outlives=False),
    fault("X15", "errors of a disk", log("nvme nvme1: I/O 12 QID 3 timeout, aborting", "blk_update_request: critical medium error, dev nvme1n1, sector 1234", "I/O error, dev nvme1n1, sector 5678 op 0x0:(READ) flags 0x80700 phys_seg 4 prio class 2"), r"storage\.io_error", DEGRADED, about="nvme1", outlives=False),
    fault("X16", "the ring of the kernel log has wrapped since it was read, and there is no journal", ring(first=50000), r"events\.log", UNKNOWN, remedy="journal|log_buf_len|ack", boots=False),
    fault("X30", "an oops in the driver of the GPUs", log("BUG: kernel NULL pointer dereference, address: 0000000000000030", "Oops: Oops: 0000 [#1] SMP NOPTI", "RIP: 0010:nvidia_vma_access+0x1b/0x350 [nvidia]"), r"kernel\.oops", DRAIN, about="module nvidia", remedy="Restart", outlives=False),
    fault("X31", "a processor was locked up", log("watchdog: BUG: soft lockup - CPU#7 stuck for 23s! [pytest:25222]"), r"kernel\.lockup", DEGRADED, remedy="Restart|ack", outlives=False),
    fault("X32", "an oops of which only the taint is left", file("proc/sys/kernel/tainted", "12416\n"), r"kernel\.oops", DEGRADED, about="taint D", remedy="Restart", boots=False),
    fault("X33", "the kernel has killed slurmd for lack of memory", log("Out of memory: Killed process 4242 (slurmd) total-vm:2048000kB, anon-rss:1536000kB"), r"memory\.oom", DEGRADED, about="slurmd", remedy="Restart slurmd", outlives=False),
    trap("X34", "the kernel has killed a job at the limit of its cgroup", log("Memory cgroup out of memory: Killed process 4182 (python3) total-vm:812044kB")),
    fault("X35", "the firmware of a network adapter does not answer", log("mlx5_core 0000:ab:00.0: poll_health:887:(pid 0): device's health compromised - reached miss count"), r"net\.driver_fault", DRAIN, about="0000:ab:00.0", remedy="off and on", outlives=False),
    fault("X36", "a disk did not come back from a reset", log("nvme nvme1: Device not ready; aborting reset, CSTS=0x1", "nvme nvme1: Disabling device after reset failure: -19"), r"storage\.driver_fault", DRAIN, about="nvme1", remedy="smart-log", outlives=False),
    fault("X37", "the kernel has made a filesystem read-only", log("EXT4-fs (nvme1n1): Remounting filesystem read-only"), r"storage\.filesystem", DRAIN, about="nvme1n1", remedy="fsck", outlives=False),
    fault("X38", "a record of an error that ended the previous boot", log("BERT: Error records from previous boot:", "[Hardware Error]: event severity: fatal", "[Hardware Error]:   section_type: IA32/X64 processor error"), r"machine\.previous_boot", DEGRADED, about="processor error", remedy="BMC", outlives=False),
    trap("X39", "a record without content, which some firmware has at every boot", log("BERT: Error records from previous boot:", "[Hardware Error]: event severity: fatal", "[Hardware Error]:   section_type: Firmware Error Record Reference")),
    # -- host
    fault("N01", "MTU 1500 instead of 9000", file(f"{LINK}/mtu", "1500\n"), r"net\.mtu", DEGRADED, about="eth0", remedy="mtu|link"),
    fault("N02", "speed 100 of 400 Gb/s", file(f"{LINK}/speed", "100000\n"), r"net\.speed", DRAIN, about="eth0", remedy="cable|switch|port|transceiver"),
    fault("N03", "the interface is down", several(file(f"{LINK}/operstate", "down\n"), file(f"{LINK}/carrier", "0\n"), file(f"{LINK}/speed", "-1\n")), r"net\.state", DRAIN, about="eth0", remedy="cable|port|link|switch"),
    fault("N04", "the interface is not there", file("sys/class/net/eth0", None), r"net\.state", DRAIN, about="eth0"),
    fault("N05", "drops: one in ten packets", several(file(f"{LINK}/statistics/rx_dropped", "{1000000}\n"), file(f"{LINK}/statistics/rx_packets", "{10000000}\n")), r"net\.drops", DEGRADED, about="eth0", remedy="ring|buffer|queue|cable|switch|driver|ethtool"),
    fault("N06", "the link goes up and down", several(file(f"{LINK}/carrier_changes", "{50}\n")), r"net\.flaps", DEGRADED, about="eth0", remedy="cable|transceiver|port|optic", boots=False),
    fault("N07", "an InfiniBand port at 200 of 400 Gb/s", file(f"{IB}/rate", "200 Gb/sec (4X HDR)\n"), r"ib\.port", DRAIN, about="mlx5_0", remedy="cable|switch|port"),
    fault("N08", "an InfiniBand port is down", several(file(f"{IB}/state", "1: DOWN\n"), file(f"{IB}/phys_state", "3: Disabled\n")), r"ib\.port", DRAIN, about="mlx5_0", remedy="cable|switch|port|subnet"),
    fault("N09", "an InfiniBand link fell again and again", file(f"{IB}/counters/link_downed", "{20}\n"), r"net\.flaps", DEGRADED, about="mlx5_0", remedy="cable|transceiver|optic|port"),
    fault("N10", "symbol errors of InfiniBand mount up", file(f"{IB}/counters/symbol_error", "{60000}\n"), r"net\.flaps", DEGRADED, about="mlx5_0", remedy="cable|transceiver|optic|clean|port"),
    fault("S01", "the root is remounted read-only", until(1, several(edit("proc/mounts", r"^(/dev/nvme0n1p2 / ext4) rw", r"\1 ro"), edit("proc/self/mounts", r"^(/dev/nvme0n1p2 / ext4) rw", r"\1 ro"), edit("proc/1/mounts", r"^(/dev/nvme0n1p2 / ext4) rw", r"\1 ro"), edit("proc/self/mountinfo", r"( / / )rw(,relatime .*)rw,relatime$", r"\1ro\2ro,relatime"), edit("proc/1/mountinfo", r"( / / )rw(,relatime .*)rw,relatime$", r"\1ro\2ro,relatime"))), r"storage\.mount", DRAIN, remedy="fsck|dmesg|disk|remount", boots=False),
    fault("S02", "a declared filesystem is not mounted", until(1, several(edit("proc/mounts", r"^/dev/nvme1n1 .*\n", ""), edit("proc/self/mounts", r"^/dev/nvme1n1 .*\n", ""), edit("proc/1/mounts", r"^/dev/nvme1n1 .*\n", ""), edit("proc/self/mountinfo", r"^.* /scratch .*\n", ""), edit("proc/1/mountinfo", r"^.* /scratch .*\n", ""))), r"storage\.mount", DRAIN, about="/scratch", remedy="mount", boots=False),
    fault("S03", "one of two disks is gone", several(file("sys/class/block/nvme1n1", None), file("sys/block/nvme1n1", None), file("sys/class/nvme/nvme1", None)), r"storage\.devices", DRAIN, remedy="disk|reseat|nvme|slot", boots=False),
    fault("S04", "tasks wait for storage", several(file("proc/pressure/io", "some avg10=80.00 avg60=80.00 avg300=80.00 total={280000000}\nfull avg10=75.00 avg60=75.00 avg300=75.00 total={260000000}\n"), blocked(900, "python3", "nfs_wait_bit_killable")), r"host\.pressure", DEGRADED, remedy="storage|disk|nfs|mount|diagnose"),
    fault("M01", "a quarter of the memory is gone", edit("proc/meminfo", r"^MemTotal: .*", "MemTotal:      1585446912 kB"), r"memory\.total", DRAIN, remedy="DIMM|memory|reseat"),
    fault("M02", "uncorrected errors of a DIMM", file("sys/devices/system/edac/mc/mc0/ue_count", "{2}\n"), r"memory\.edac", DRAIN, about="mc0", remedy="DIMM|memory"),
    fault("M03", "corrected errors of a DIMM mount up", file("sys/devices/system/edac/mc/mc0/ce_count", "{100000}\n"), r"memory\.edac", DEGRADED, about="mc0", remedy="DIMM|memory"),
    fault("M04", "one of two sockets", file("sys/devices/system/cpu/cpu0/topology/package_cpus_list", "0-15\n"), r"cpu\.layout", DRAIN, boots=False),
    fault("C01", "the CDI spec names a path that is not there", edit("etc/cdi/nvidia.json", r"libcuda\.so\.[0-9.]+", "libcuda.so.1.2.3"), r"runtime\.cdi_paths", DEGRADED, about="libcuda.so.1.2.3", remedy="nvidia-ctk|site.yml|spec"),
    fault("C02", "the clock jumps by a day", until(1, clock(86400.0)), r"time\.sync", DEGRADED, remedy="chrony|timesync|clock|NTP", boots=False, once=True),
    # -- of the checker's own
    fault("K01", "the kept counters are torn", until(1, memory('{"schema": "goldnode.memory/1", "boot')), r"memory\.state", DEGRADED, about="sanity.json", boots=False),
    fault("K02", "the kept counters are of the wrong types", until(1, memory('{"schema": "goldnode.memory/1", "gpus": 7, "events": "x", "counters": [1, {"a": null}], "boot_id": {}, "uptime": "late", "time": []}')), r"memory\.state", DEGRADED, boots=False),
    fault("K03", "the kept counters are nested a hundred thousand deep", until(1, memory("[" * 100000)), r"memory\.state", DEGRADED, boots=False),
    fault("K04", "the class document is torn", file("etc/goldnode/class.json", '{"schema": "goldnode.class/1", "class":'), r"check", UNKNOWN, remedy="site.yml"),
    fault("K05", "the class document is of the wrong types", file("etc/goldnode/class.json", '{"schema": "goldnode.class/1", "class": {}, "gpu": 8, "packages": "many", "digest": 1}'), r"check", UNKNOWN, remedy="site.yml"),
    fault("K06", "an expired suppression", suppressed("2026-01-31"), r"policy\.power_limit_watts", DEGRADED, remedy="policy|site.yml"),
    # -- AMD
    fault("A01", "an MI300X of eight is gone", board("gpu7.absent=1"), r"gpu\.count", DRAIN, remedy="reseat|power-cycle", node="board_mi300x"),
    fault("A02", "power cap 500 W on one MI300X", board("gpu3.power_limit=500000"), r"policy\.power_limit_watts", DEGRADED, remedy="policy|site.yml", node="board_mi300x"),
    fault("A03", "the slot above an MI300X came up at x8", board("gpu3.pcie.port_now_width=8"), r"pcie\.width", DRAIN, remedy="reseat|slot|riser|bios", node="board_mi300x"),
    fault("A04", "uncorrected RAS errors of an MI300X's memory", file("sys/bus/pci/devices/0000:28:00.0/ras/umc_err_count", "ue: {2}\nce: 0\n"), r"gpu\.ecc\.uncorrected|gpu\.ras", DRAIN, about=GPU3, remedy="reset|reboot|RMA|replace", node="board_mi300x"),
    fault("A05", "two kinds of VBIOS among eight MI300X", board("gpu3.vbios_version=113-OTHER"), r"gpu\.vbios", DEGRADED, remedy="flash|vbios|firmware|one", node="board_mi300x"),
)  # fmt: skip

TRAPS = (
    trap("T01", "a node without a GPU", nothing, node="board_cpu"),
    trap("T02", "eight MI300X, whose links end in their package", nothing, node="board_mi300x"),
    trap("T03", "sixteen GPUs", nothing, node="board_l4x16"),
    trap("T04", "MIG in use as declared, which hides the remapped rows", board(*(f"gpu*.remapped.{name}=error:not_supported" for name in ("correctable", "uncorrectable", "pending", "failure"))), node="board_a100mig"),
    trap("T05", "a busy GPU at its power cap (SW power cap)", several(FULL, board("gpu*.clocks_event_reasons=4", "gpu*.power_usage=699000"))),
    trap("T06", "a million dropped frames in the life of the interface", several(file(f"{LINK}/statistics/rx_dropped", "1000000\n"), file(f"{LINK}/statistics/rx_packets", "9000000000\n"))),
    trap("T07", "a few frames of unknown protocols (LLDP) in each interval", file(f"{LINK}/statistics/rx_dropped", "{20}\n")),
    trap("T08", "a single corrected PCIe error in each interval", board("gpu3.aer.correctable={1}")),
    trap("T09", "counters that wrap: 32 bits of an InfiniBand port, and of an interface", several(turning(f"{IB}/counters/port_rcv_data", "4294967290\n", "17\n"), turning(f"{LINK}/statistics/rx_dropped", "4294967290\n", "5\n"))),
    trap("T10", "Xid 43, 63 and 94 of which NVIDIA says: nothing to do, or restart the application", log(f"{XID}): 43, pid=77, name=python3, Ch 00000008", f"{XID}): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate.", f"{XID}): 13, pid=77, name=python3, Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Out Of Range Address")),
    trap("T11", "a non-fatal SXid", log("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20001, Non-fatal, Link 04 TX Replay Error")),
    trap("T12", "a program imitates the kernel: a service logs the text of an Xid", ring(f"14,900,900000000,-;myapp[77]: {XID}): 79, pid=77, name=x, GPU has fallen off the bus.")),
    trap("T13", "x8 by design, as the class says with a reason", several(by_design({"pcie": {"gen": 5, "width": 8}, "reason": "the riser of this server has eight lanes"}), board("gpu*.pcie.width=8", "gpu*.pcie.width_max=8", "gpu*.pcie.port_width=8"))),
    trap("T14", "12 of 18 NVLinks by design", several(by_design({"nvlinks": 12, "reason": "a bridge over two GPUs has twelve links"}), board(*(f"gpu*.nvlink.{link}.state=0" for link in range(12, 18))))),
    trap("T15", "variables of the caller: GPUs hidden, Python turned elsewhere", environment(NVIDIA_VISIBLE_DEVICES="none", CUDA_VISIBLE_DEVICES="", PYTHONPATH="/nonexistent", PYTHONSTARTUP="/nonexistent", LANG="de_DE.UTF-8", LC_ALL="tr_TR.UTF-8")),
    trap("T16", "a virtual machine: no link files, no NUMA node", board("gpu0.pci.links=0", "gpu0.numa_node=-1"), node="board_l4"),
    trap("T17", "a GPU in use: processes, memory, clocks and heat of a job", several(FULL, board("gpu*.memory.used=70000000000", "gpu*.processes=1:70000000000", "gpu*.clock.0=1980", "gpu*.temperature.0=68", "gpu*.pcie.replays=3")), boots=False),
    trap("T18", "a suppressed power limit, with owner, reason and a date to come", suppressed("2099-12-31")),
    trap("T19", "the aggregate of a card with a long life", board("gpu3.ecc_errors.0.1=100000", "gpu3.remapped.correctable=7", "gpu3.remapped.low=1")),
    trap("T20", "an Xid of an earlier boot in a file of syslog", syslog("var/log/kern.log", RFC3339.format("00:00", 70000, f"{XID}): 79, pid=77, name=python3, GPU has fallen off the bus.") + LINES), boots=False),
    trap("T21", "the ring of the kernel log has wrapped, and every line was seen before", ring(first=5), boots=False),
    trap("T23", "a container brought a library of another version; the node's own fits its driver", log("NVRM: API mismatch: the client has the version 575.57.08, but", "NVRM: this kernel module has the version 580.95.05.  Please", "NVRM: make sure that this kernel module and all NVIDIA driver", "NVRM: components have the same version.")),
    trap("T22", "a healthy pre-Ampere node: no row remapping, page retirement with nothing retired", nothing, node="board_v100"),
)  # fmt: skip


ROWS = (*MEASURED, *MORE, *TRAPS)
