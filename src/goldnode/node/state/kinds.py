"""Table of all findings that the program can report.

A row gives the id of a finding, its fault domain, the severity of a mismatch, the blast radius of
the remedy, what is judged, and the remedy unless it is computed from the readings.
:class:`.finding.Finding` takes these from here and refuses an id without a row.
docs/reference/sanity.md and `schemas/verdict.json` are generated from it. A finding may override
severity, blast radius and remedy: few retired pages degrade a node, many drain it.
"""

from __future__ import annotations

from ..ground.host import like
from ..ground.typed import NamedTuple
from .remedy import ACKNOWLEDGE, COMMAND, GPU_RESET, PERSON, REBOOT, REPAIR, Remedy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

# Fault domain: what has to change so that the finding disappears.
# SOFTWARE is the installed stack: kernel, driver, engine, units and goldnode's own files. Going back to the
# previous image or lock fixes it. DRIVER is software that only answers if a GPU does: while a GPU is missing
# it says nothing about the stack. HARDWARE is the machine, its network and storage, what is set on its GPUs,
# and what was changed on the node by hand: another image would meet the same.
SOFTWARE, DRIVER, HARDWARE = "software", "driver", "hardware"

DEGRADED, DRAIN = "degraded", "drain"

# Blast radius of a remedy: nothing, one process, one GPU with its jobs, the node, or a visit to the machine.
NOTHING, PROCESS, GPU, NODE, VISIT = "nothing", "process", "gpu", "node", "hardware"


class Kind(NamedTuple):
    """One row of the table.

    `id` may contain `*` for a family. `about` completes the sentence "It is judged whether …".
    `blast` and `remedy` are None if they are computed from the readings.
    """

    id: str
    domain: str
    severity: str
    blast: Optional[str]
    about: str
    remedy: Optional[Remedy] = None


RESET = Remedy(
    "Drain the node, then reset the GPU: `nvidia-smi --gpu-reset -i SUBJECT` (all GPUs of an NVSwitch board together, "
    "with the fabric manager stopped).",
    GPU_RESET,
)
RMA = Remedy(
    "Drain the node, save the output of `nvidia-bug-report.sh` for the ticket, run NVIDIA's field diagnostic, and have "
    "the GPU replaced.",
    REPAIR,
)
SILENT_LIBRARY = Remedy(
    "Read the driver's last lines in dmesg and run `goldnode-node diagnose`; reboot the node if the driver hangs.",
    PERSON,
    REBOOT,
)
CABLE = Remedy(
    "Check `ip -s link show SUBJECT`, `ethtool SUBJECT` and dmesg, then the cable, the transceiver and the switch port.",
    PERSON,
)
RESEAT = Remedy(
    "Power the node off and reseat SUBJECT and its riser; then check the slot's settings in the firmware "
    "(`lspci -vv -s SUBJECT`, LnkCap and LnkSta).",
    REPAIR,
)

_ROWS: Tuple[Kind, ...] = (
    # The node and goldnode itself
    Kind("check", SOFTWARE, DRAIN, None, "the check can run: program, class document and node are readable"),
    Kind("class.document", SOFTWARE, DEGRADED, None, "the class document has the digest that it states"),
    Kind("node.os", SOFTWARE, DRAIN, None, "the operating system is the release of the stack"),
    Kind("node.files", SOFTWARE, DEGRADED, None, "goldnode's files have the declared content"),
    Kind("node.program", SOFTWARE, DEGRADED, None, "goldnode's program is installed and executable"),
    # An earlier image or kernel would leave an owner that was changed on the node.
    Kind("node.owner", HARDWARE, DRAIN, None, "only root can change goldnode's files and their directories"),
    Kind("node.parents", HARDWARE, DRAIN, None, "only root can change the system directories above those files"),
    Kind("memory.state", HARDWARE, DEGRADED, None, "the state that the previous check saved is readable and writable"),
    Kind("baseline.*", HARDWARE, DEGRADED, None, "this version of the program reads the declared item"),
    Kind("baseline", HARDWARE, DEGRADED, None, "the node can be compared with the baseline"),
    Kind("capture.*", HARDWARE, DEGRADED, None, "the reader of this section of the capture succeeded"),
    Kind("changed.*", HARDWARE, DEGRADED, None, "the property has not changed since the first check"),
    # The stack
    Kind("stack.lock", SOFTWARE, DRAIN, None, "the installed packages are those of the lock"),
    # Another image would have the packages that a person was installing.
    Kind("dpkg.finished", HARDWARE, DEGRADED, None, "dpkg has finished what it began; apt refuses all work until then"),
    Kind("stack.holds", SOFTWARE, DEGRADED, None, "apt holds all packages of the stack"),
    Kind("apt.sources", SOFTWARE, DEGRADED, None, "no other package source offers packages of the stack"),
    # Another image would have the line of a person as well.
    Kind("apt.fence", HARDWARE, DEGRADED, None, "no file of others makes apt or unattended upgrades ignore list, holds or pins of the stack"),
    Kind("kernel.running", SOFTWARE, DRAIN, None, "the running kernel is the locked one, with pages of the declared size"),
    Kind("kernel.oops", SOFTWARE, DEGRADED, None, "the kernel has had no oops since boot; one in a GPU's driver drains the node"),
    Kind("kernel.lockup", SOFTWARE, DEGRADED, None, "no processor was locked up since boot"),
    Kind("kernel.clocksource", SOFTWARE, DEGRADED, None, "the kernel has not given up its clock source since boot"),
    Kind("kernel.hung_task", SOFTWARE, DEGRADED, None, "the kernel's log reports no hung task"),
    Kind("boot.kernel", SOFTWARE, DRAIN, None, "image and list of modules of the locked kernel are there, and whole"),
    Kind("boot.initramfs", SOFTWARE, DRAIN, None, "the initramfs of the locked kernel exists"),
    Kind("boot.next", SOFTWARE, DRAIN, None, "the next boot starts the locked kernel"),
    Kind("boot.pending", SOFTWARE, DEGRADED, None, "no reboot is pending"),
    Kind("boot.trial", SOFTWARE, DRAIN, None, "the new kernel has been tried and found good"),
    Kind("boot.copies", SOFTWARE, DEGRADED, None, "every EFI system partition holds the same boot files"),
    # Another image would have the same labels.
    Kind("boot.disk", HARDWARE, DEGRADED, None, "root, EFI system partition and the partition that the firmware booted are on one disk"),
    # Another image would have the same firmware.
    Kind("boot.secure", HARDWARE, DEGRADED, None, "the firmware verifies what it starts (Secure Boot) where the slot that runs has a signed kernel image"),
    # The other slot cannot be changed by the image that runs.
    Kind("slot.fallback", HARDWARE, DEGRADED, None, "the newest slot is the one that booted"),
    Kind("blacklist.*", SOFTWARE, DRAIN, None, "the module is kept out of kernel and initramfs"),
    Kind("blacklist.initramfs", SOFTWARE, DRAIN, None, "the contents of the initramfs can be listed"),
    Kind("driver.module_file", SOFTWARE, DRAIN, None, "the locked kernel has a driver module of the locked version"),
    # Another image would not have the lines of a person or of another program.
    Kind(
        "driver.modprobe", HARDWARE, DRAIN, None,
        "no line of modprobe.d or of the kernel command line keeps the driver out of the next boot, or changes its options",
    ),
    Kind("driver.library", SOFTWARE, DRAIN, None, "the driver's library has the locked version"),
    Kind(
        "driver.files", SOFTWARE, DRAIN, None,
        "the driver's files are those of its packages, and the loader's cache names files that exist, of the driver's version",
    ),
    Kind("driver.loaded", DRIVER, DRAIN, None, "the loaded driver module has the locked version"),
    Kind(
        "driver.agree", domain=DRIVER, severity=DRAIN, blast=NODE,
        about="the loaded module, /proc, the library and NVML agree on one version",
        remedy=Remedy("Reboot the node: the loaded driver is not the installed one, and CUDA will not start.", REBOOT),
    ),
    Kind("driver.support", SOFTWARE, DEGRADED, NODE, "advice without a class: the driver branch has not reached its end of life"),
    Kind("driver.security", SOFTWARE, DEGRADED, NODE, "advice without a class: the driver has the fixes of the newest bulletin"),
    Kind(
        "driver.known_bad", SOFTWARE, DEGRADED, NODE,
        "advice without a class: GPU, driver and OS are no combination that is known to be bad",
    ),
    Kind("driver.api_mismatch", DRIVER, DEGRADED, None, "the kernel's log reports no library of another version"),
    Kind("driver.init_failed", DRIVER, DRAIN, None, "the kernel's log reports no failed initialisation of a GPU"),
    Kind("driver.probe_failed", DRIVER, DRAIN, None, "the kernel's log reports no failed probe of a GPU"),
    Kind("driver.refused", SOFTWARE, DRAIN, None, "no driver in the kernel's log refuses a board, and the kernel refuses no driver"),
    Kind("driver.conflict", SOFTWARE, DRAIN, None, "no other driver in the kernel's log has a GPU of the stack's driver"),
    # A module may need the driver, which loads only if a GPU answers.
    Kind("modules.*.loaded", DRIVER, DRAIN, None, "the declared module is loaded"),
    Kind("modules.*", SOFTWARE, DRAIN, None, "the declared module is installed with its options"),
    Kind("parts.*", SOFTWARE, DEGRADED, None, "a part that no lock holds has the declared version, as far as the node shows it"),
    Kind(
        "module.loaded", domain=DRIVER, severity=DRAIN, blast=NODE,
        about="the kernel modules of the baseline are loaded",
        remedy=Remedy("Load it with `modprobe SUBJECT`; dmesg shows why it is not loaded.", COMMAND),
    ),
    Kind("units.loaded", SOFTWARE, DEGRADED, None, "systemd has loaded goldnode's units as they are on disk"),
    # Another image would have the drop-ins of a person as well.
    Kind(
        "units.effective", HARDWARE, DEGRADED, None,
        "no drop-in, mask or condition of others changes what goldnode's units and those of the class run, or when",
    ),
    Kind("units.path", HARDWARE, DEGRADED, None, "no other program is called when root types `goldnode-node`"),
    Kind("watch.timer", SOFTWARE, DEGRADED, None, "the timer of the health check is active"),
    Kind("follow.timer", SOFTWARE, DEGRADED, None, "the timer by which the node follows its channel is active"),
    Kind("serve.socket", SOFTWARE, DEGRADED, None, "the metrics endpoint listens on its address"),
    Kind(
        "service.active", domain=SOFTWARE, severity=DEGRADED, blast=NODE,
        about="the units of the baseline are active",
        remedy=Remedy("Check `systemctl status SUBJECT` and `journalctl -u SUBJECT`.", PERSON),
    ),
    # The gate reports its own decision about the node, and its hook belongs to the site.
    Kind("gate", HARDWARE, DEGRADED, None, "the gate is open (information)"),
    Kind("gate.hook", HARDWARE, DEGRADED, None, "the site's hook accepted the last drain"),
    Kind("runtime.engine", SOFTWARE, DRAIN, None, "the container engine runs in the locked version"),
    Kind("runtime.config", SOFTWARE, DRAIN, None, "the engine runs with the declared configuration"),
    Kind("runtime.toolkit", SOFTWARE, DEGRADED, None, "the container toolkit has its locked version and mode"),
    # A CDI specification is made on the node, from the GPUs that it has.
    Kind("runtime.cdi", HARDWARE, DRAIN, None, "the CDI specification has the paths and devices of the node"),
    Kind(
        "runtime.cdi_paths", domain=HARDWARE, severity=DEGRADED, blast=PROCESS,
        about="a CDI specification of GPUs has the paths and devices of the node, on nodes where goldnode does not maintain it (`runtime.cdi`)",
        remedy=Remedy(
            "Regenerate it with `nvidia-ctk cdi generate --output=SUBJECT`; new containers see no GPU until then.",
            COMMAND,
        ),
    ),
    # Policy
    Kind("policy.host.*", SOFTWARE, DEGRADED, None, "the host has the declared setting"),
    # Another image would have the same disks, and the same files on them.
    Kind("scratch.mount", HARDWARE, DRAIN, None, "scratch space is mounted from goldnode's file system, with the declared options"),
    Kind("scratch.space", HARDWARE, DEGRADED, None, "scratch space has room, and free inodes"),
    Kind("policy.overrides", HARDWARE, DEGRADED, None, "every override of the policy matches a GPU"),
    Kind(
        "policy.*", HARDWARE, DEGRADED, None,
        "each GPU has the declared setting; without a class: one that its board takes, alike on all GPUs of a model",
    ),
    # Events of the kernel's log
    Kind("events.log", HARDWARE, DEGRADED, None, "the kernel's log since boot is complete and readable"),
    Kind("events.acknowledged", HARDWARE, DEGRADED, None, "events were acknowledged by a person (information)"),
    Kind("events.unknown", HARDWARE, DEGRADED, None, "every event of a GPU in the kernel's log is understood"),
    Kind("xid.programs", HARDWARE, DEGRADED, None, "errors of programs do not concentrate on one GPU"),
    Kind("xid.*", HARDWARE, DRAIN, None, "the kernel's log has no Xid that requires action"),
    Kind("sxid.*", HARDWARE, DRAIN, None, "the kernel's log has no fatal SXid of an NVSwitch"),
    Kind("gpu.driver_fault", HARDWARE, DRAIN, None, "the kernel's log has no fault of a GPU that its driver could not repair"),
    Kind("gpu.program_fault", HARDWARE, DEGRADED, None, "faults of programs on a GPU (information)"),
    Kind("nvlink.driver_fault", HARDWARE, DRAIN, None, "the kernel's log has no failed NVLink or NVSwitch"),
    Kind("pci.bus_lost", HARDWARE, DRAIN, None, "no PCI device has fallen off the bus"),
    Kind("pcie.limited", HARDWARE, DEGRADED, None, "a bandwidth limit in the kernel's log (information)"),
    Kind("pcie.slot_down", HARDWARE, DEGRADED, None, "no PCIe slot has lost its link since boot"),
    Kind("machine.mce", HARDWARE, DEGRADED, None, "the kernel's log has no machine check or hardware error"),
    Kind("machine.previous_boot", HARDWARE, DEGRADED, None, "no hardware error ended the previous boot, by the records of the firmware"),
    Kind("memory.oom", HARDWARE, DEGRADED, None, "the kernel has not killed a service of the node for lack of memory"),
    Kind("iommu.fault", HARDWARE, DEGRADED, None, "no device reads or writes memory again and again that is not its own"),
    Kind("net.driver_fault", HARDWARE, DRAIN, None, "the kernel's log has no network adapter whose driver or firmware gave up"),
    Kind("storage.driver_fault", HARDWARE, DRAIN, None, "the kernel's log has no disk or controller whose driver or firmware gave up"),
    Kind("storage.filesystem", HARDWARE, DRAIN, None, "the kernel has shut down no filesystem, and made none read-only"),
    Kind("storage.raid", HARDWARE, DEGRADED, None, "no md array has lost a member, and no multipath device a path"),
    Kind("net.link_down", HARDWARE, DEGRADED, None, "no declared interface has lost its link since boot"),
    Kind("storage.io_error", HARDWARE, DEGRADED, None, "the kernel's log has no read or write error of a disk"),
    # GPUs
    Kind("gpu.ids", HARDWARE, DRAIN, None, "all GPUs are of the declared model"),
    Kind("gpu.count", HARDWARE, DRAIN, None, "the PCI bus shows the declared number of GPUs"),
    Kind("gpu.bound", HARDWARE, DRAIN, None, "each GPU is bound to the declared driver"),
    Kind("gpu.bus_lost", HARDWARE, DRAIN, None, "no GPU has fallen off the bus since boot"),
    Kind("gpu.repeated_faults", HARDWARE, DRAIN, None, "no GPU had faults in several boots"),
    Kind("gpu.library", domain=DRIVER, severity=DRAIN, blast=NODE, about="the GPU library answers", remedy=SILENT_LIBRARY),
    Kind(
        "gpu.lost", domain=HARDWARE, severity=DRAIN, blast=NODE,
        about="no GPU is lost: NVML 15 and 16, or a PCI configuration space that reads all ones (PCI: the device is gone)",
        remedy=Remedy(
            "Search dmesg for an Xid of SUBJECT; power-cycle the node, and reseat the GPU if it does not come back.",
            PERSON, REBOOT, REPAIR,
        ),
    ),
    Kind(
        "gpu.visible", domain=HARDWARE, severity=DRAIN, blast=NODE,
        about="the PCI bus, the library and /dev show as many GPUs as declared; each of the three counts alone has been seen "
        "to be wrong",
        remedy=Remedy(
            "Compare `lspci -d 10de:`, `nvidia-smi -L` and /dev/nvidia*; dmesg shows why the driver left one out.", PERSON
        ),
    ),
    Kind(
        "gpu.uuid", domain=HARDWARE, severity=DRAIN, blast=VISIT,
        about="no two GPUs have the same UUID (seen with a wrong InfoROM, and with cloned virtual GPUs)",
        remedy=Remedy(
            "Have the GPUs with the same UUID inspected: tools and schedulers take them for one. Start with `nvidia-smi -L`.",
            PERSON,
        ),
    ),
    Kind(
        "gpu.serial", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="no two boards have the same serial number",
        remedy=Remedy(
            "Compare `nvidia-smi -q` with the labels of SUBJECT and the other board: one InfoROM is wrong, and a replacement would "
            "be of the wrong board.",
            PERSON,
        ),
    ),
    Kind(
        "gpu.uuid_known", domain=HARDWARE, severity=DRAIN, blast=NODE,
        about="each GPU has a UUID; the driver shows question marks for a GPU that it did not initialise",
        remedy=Remedy("Search dmesg for the reason why the driver did not initialise SUBJECT; reboot the node.", PERSON, REBOOT),
    ),
    Kind(
        "gpu.recovery_action", domain=HARDWARE, severity=DRAIN, blast=GPU,
        about="the driver requests no recovery action (NVML field 230, GET_GPU_RECOVERY_ACTION); evidence: the readings behind it",
        remedy=RESET,
    ),
    Kind(
        "gpu.board", domain=HARDWARE, severity=DRAIN, blast=VISIT,
        about="the PCI subsystem id, which distinguishes board variants of one device id, is one of the class",
        remedy=Remedy(
            "Compare `lspci -nnv -s SUBJECT` with the class: this is another board variant. Move the node to its class, or "
            "bless the board.",
            PERSON,
        ),
    ),
    Kind(
        "gpu.memory", domain=HARDWARE, severity=DRAIN, blast=VISIT,
        about="VRAM is exactly as in the baseline; by the facts, within what drivers reserve; and never less than on equal GPUs "
        "of the node",
        remedy=Remedy(
            "Search dmesg for Xid 168 and `nvidia-smi -q -d ROW_REMAPPER` for row remaps of SUBJECT; reset it, otherwise "
            "have it replaced.",
            PERSON, GPU_RESET, REPAIR,
        ),
    ),
    Kind(
        "gpu.vbios", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="the VBIOS is one of the class; without a declaration, all GPUs of one model have the same",
        remedy=Remedy(
            "Update the VBIOS of SUBJECT with the server vendor's tool, or add the version to `baseline.gpu.vbios` of the "
            "class.",
            REPAIR,
        ),
    ),
    Kind(
        "gpu.bar1", domain=HARDWARE, severity=DRAIN, blast=NODE,
        about="BAR1 has the declared size",
        remedy=Remedy(
            "Enable `Above 4G decoding` and resizable BAR in the firmware: GPUDirect RDMA fails with a small BAR1.", REPAIR
        ),
    ),
    Kind(
        "gpu.max_clocks", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="the maximum clocks are the declared ones",
        remedy=Remedy(
            "Compare `nvidia-smi -q -d CLOCK -i SUBJECT` with the other GPUs: the VBIOS or the board is a different one.",
            PERSON,
        ),
    ),
    Kind(
        "gpu.inforom", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="the checksum of the InfoROM is right (NVML 14, NVML_ERROR_CORRUPTED_INFOROM)",
        remedy=Remedy(
            "Reset SUBJECT; if `nvidia-smi -q` still reports a corrupted InfoROM, have it replaced.", GPU_RESET, REPAIR
        ),
    ),
    Kind(
        "gpu.ecc.uncorrected", domain=HARDWARE, severity=DRAIN, blast=GPU,
        about="there is no uncorrected ECC error since the driver was loaded (NVIDIA's memory error management: reset the GPU "
        "before further use)",
        remedy=RESET,
    ),
    Kind(
        "gpu.ecc.aggregate", domain=HARDWARE, severity=DEGRADED, blast=GPU,
        about="there is no uncorrected ECC error since the first check of this node, or since the last acknowledged one",
        remedy=Remedy(
            "Reset SUBJECT, run NVIDIA's field diagnostic, then acknowledge: `goldnode-node ack --id gpu.ecc.aggregate "
            "--subject SUBJECT`.",
            GPU_RESET, PERSON, ACKNOWLEDGE,
        ),
    ),
    Kind(
        "gpu.ecc.corrected", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="corrected ECC errors of a GPU stay below the limit of a day (maintenance, before it is a fault)",
        remedy=Remedy(
            "Run `dcgmi diag -r 3` on SUBJECT when it is free, and plan its exchange if that fails or remapped rows rise; then "
            "`goldnode-node ack --id gpu.ecc.corrected --subject SUBJECT`.",
            REPAIR, ACKNOWLEDGE,
        ),
    ),
    Kind(
        "gpu.sram", domain=HARDWARE, severity=DRAIN, blast=VISIT,
        about="uncorrected SRAM errors stay below the driver's own threshold (nvmlDeviceGetSramEccErrorStatus)",
        remedy=RMA,
    ),
    Kind(
        "gpu.remap.failure", domain=HARDWARE, severity=DRAIN, blast=VISIT,
        about="no row remap has failed (NVIDIA's memory error management: candidate for replacement)",
        remedy=RMA,
    ),
    Kind("gpu.remap.pending", domain=HARDWARE, severity=DRAIN, blast=GPU, about="no row remap is pending until the next reset of the GPU", remedy=RESET),
    Kind(
        "gpu.remap.spare", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="spare rows are left: no bank without any, and fewer remaps than DCGM's limit",
        remedy=Remedy(
            "Plan the replacement of SUBJECT: it runs out of spare rows (`nvidia-smi -q -d ROW_REMAPPER`).", REPAIR
        ),
    ),
    Kind(
        "gpu.retired_pages", domain=HARDWARE, severity=DRAIN, blast=NODE,
        about="before Ampere: no page retirement is pending, and the table has room (NVIDIA's dynamic page retirement)",
        remedy=Remedy(
            "Reboot the node: a page waits to be retired. If it happens again, have SUBJECT replaced.", REBOOT, REPAIR
        ),
    ),
    Kind(
        "gpu.repair", domain=HARDWARE, severity=DRAIN, blast=GPU,
        about="no repair of a memory channel or TPC waits for a reset (nvmlDeviceGetRepairStatus, Blackwell), and no memory is "
        "beyond repair",
        remedy=RESET,
    ),
    Kind(
        "gpu.modes", domain=HARDWARE, severity=DEGRADED, blast=NODE,
        about="where the class does not set ECC and MIG, current and pending mode agree, and all GPUs of the node are alike",
        remedy=Remedy(
            "Declare the right mode in the class (`policy.ecc`, `policy.mig`) and run site.yml; a change of ECC needs a "
            "reboot.",
            PERSON,
        ),
    ),
    Kind(
        "gpu.ras", domain=HARDWARE, severity=DRAIN, blast=NODE,
        about="AMD: there is no uncorrected error in any block, no pending or failed page retirement, and no xGMI error "
        "(amdgpu's RAS files)",
        remedy=Remedy("Drain and reboot the node; if errors return, have SUBJECT replaced.", REBOOT, REPAIR),
    ),
    Kind(
        "gpu.throttle", domain=HARDWARE, severity=DRAIN, blast=VISIT,
        about="the hardware does not slow the GPU down: no fault bit is set, and their time counters have not moved since the "
        "last check",
        remedy=Remedy(
            "Check fans, air inlet and neighbours of SUBJECT, and `nvidia-smi -q -d TEMPERATURE,PERFORMANCE`; drain the "
            "node until it is cool.",
            PERSON,
        ),
    ),
    Kind(
        "gpu.throttle.brake", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="there is no power brake, a signal of the power supply or chassis (nvml.h, HwPowerBrakeSlowdown)",
        remedy=Remedy(
            "Check power supplies, feeds and the chassis's power limit in the BMC: the signal comes from the facility, not "
            "from SUBJECT.",
            PERSON,
        ),
    ),
    Kind(
        "gpu.temperature", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="there is a margin to the slowdown temperature",
        remedy=Remedy("Check fans and air inlet of SUBJECT, and `nvidia-smi -q -d TEMPERATURE -i SUBJECT`.", PERSON),
    ),
    Kind(
        "gpu.clock", domain=HARDWARE, severity=DEGRADED, blast=GPU,
        about="a GPU under load that reports no throttle reason has no clock far below that of its peers (nvml.h: without a reason "
        "clocks are as high as they can be)",
        remedy=Remedy(
            "Check `nvidia-smi -q -d CLOCK,PERFORMANCE -i SUBJECT` for locked clocks (`nvidia-smi -i SUBJECT -rgc` unlocks them); "
            "otherwise drain the node, reset the GPU, and have it replaced if it stays slow.",
            PERSON, GPU_RESET, REPAIR,
        ),
    ),
    Kind(
        "gpu.power.enforced", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="the enforced power limit is the one that is set (NVML: the lowest of all limits is enforced)",
        remedy=Remedy(
            "Something else caps SUBJECT: check the chassis's power limit in the BMC, and `nvidia-smi -q -d POWER`.", PERSON
        ),
    ),
    Kind(
        "gpu.processes", domain=HARDWARE, severity=DEGRADED, blast=PROCESS,
        about="no process uses the GPUs at the first check of a boot, which runs before any scheduler starts",
        remedy=Remedy(
            "Identify it with `nvidia-smi` or `fuser -v /dev/nvidia*`, and end it before the node takes work.", PERSON
        ),
    ),
    Kind(
        "gpu.held", domain=HARDWARE, severity=DRAIN, blast=NODE,
        about="no memory or use of a GPU belongs to a process that has ended, or to none at two checks",
        remedy=Remedy(
            "Look with `fuser -v /dev/nvidia*` for what still has the GPU open, often a child of the ended process, and end it, or "
            "the parent of a zombie. If nothing has it open: drain the node and reboot it, since the driver refuses to reset a GPU "
            "that it counts as in use.",
            PERSON, REBOOT,
        ),
    ),
    Kind(
        "gpu.numa", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="each GPU is on its declared NUMA node",
        remedy=Remedy(
            "Compare `nvidia-smi topo -m` with the class: the GPU is in another slot, or the firmware's NUMA setting "
            "(NPS, SNC) differs.",
            PERSON,
        ),
    ),
    Kind(
        "fabric.manager", domain=HARDWARE, severity=DRAIN, blast=NODE,
        about="the fabric manager runs on boards with NVSwitch (NVIDIA Fabric Manager User Guide)",
        remedy=Remedy(
            "Install it in exactly the driver's version if it is missing; check `systemctl status nvidia-fabricmanager` and "
            "/var/log/fabricmanager.log. CUDA fails with error 802 without it.",
            PERSON,
        ),
    ),
    Kind(
        "fabric.state", domain=HARDWARE, severity=DRAIN, blast=NODE,
        about="on boards with NVSwitch each GPU is registered with the fabric: state completed, status Success, nothing degraded "
        "(nvmlGpuFabricInfo)",
        remedy=Remedy(
            "Check `systemctl status nvidia-fabricmanager` and /var/log/fabricmanager.log; CUDA fails with error 802 until "
            "the fabric is complete.",
            PERSON,
        ),
    ),
    Kind(
        "nvlink.active", domain=HARDWARE, severity=DRAIN, blast=GPU,
        about="the declared number of NVLinks is active",
        remedy=Remedy(
            "Check `nvidia-smi nvlink -s -i SUBJECT` and dmesg for Xid 74 or SXid; stop the fabric manager, reset all GPUs "
            "of the board, and start it again.",
            PERSON, GPU_RESET,
        ),
    ),
    Kind(
        "nvlink.errors", domain=HARDWARE, severity=DEGRADED, blast=GPU,
        about="NVLink replays, recoveries and CRC errors since the last check are within DCGM's limits",
        remedy=Remedy(
            "Check `nvidia-smi nvlink -e -i SUBJECT`; drain the node and reset the board's GPUs, and have the board "
            "inspected if the errors return.",
            PERSON, GPU_RESET, REPAIR,
        ),
    ),
    Kind(
        "pcie.width", domain=HARDWARE, severity=DRAIN, blast=VISIT,
        about="the link has the declared number of lanes at all times: no idle state removes lanes, and NVML's maximum is the "
        "lesser of device and slot",
        remedy=RESEAT,
    ),
    Kind(
        "pcie.gen", domain=HARDWARE, severity=DRAIN, blast=VISIT,
        about="the link has the declared generation; an idle GPU slows its link down, which is no fault while both ends can do "
        "what is declared",
        remedy=RESEAT,
    ),
    Kind(
        "pcie.link", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="links of NICs, InfiniBand devices and NVMe disks use all the lanes that both ends have",
        remedy=RESEAT,
    ),
    Kind(
        "pcie.replay", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="replays per lane and minute since the last check are within DCGM's limit for the generation",
        remedy=RESEAT,
    ),
    Kind(
        "pcie.aer", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="both ends of each link report no series of corrected PCIe errors, and no uncorrected one",
        remedy=RESEAT,
    ),
    # The host
    Kind(
        "cpu.layout", domain=HARDWARE, severity=DRAIN, blast=VISIT,
        about="sockets, cores and threads per core are as declared",
        remedy=Remedy(
            "Compare `lscpu` with the class: a socket is missing, or the firmware's setting of cores or threads differs.",
            REPAIR,
        ),
    ),
    Kind(
        "cpu.microcode", domain=HARDWARE, severity=DEGRADED, blast=NODE,
        about="all cores run one version of the microcode",
        remedy=Remedy(
            "Reboot the node, so that firmware and kernel load the microcode on all cores; if it differs then too, update the "
            "firmware, and compare the processors' steppings.",
            REBOOT, REPAIR,
        ),
    ),
    Kind(
        "memory.total", domain=HARDWARE, severity=DRAIN, blast=VISIT,
        about="RAM is as declared, within the tolerance of the class or the facts; /proc/meminfo lacks what firmware and kernel "
        "reserve",
        remedy=Remedy("Check `dmidecode -t memory` and the BMC's event log for a missing or disabled DIMM.", REPAIR),
    ),
    Kind(
        "memory.edac", domain=HARDWARE, severity=DRAIN, blast=VISIT,
        about="there is no uncorrected memory error since boot, and no series of corrected ones (EDAC)",
        remedy=Remedy(
            "Find the DIMM with `dmesg | grep -i edac`; drain the node and replace it, then acknowledge: "
            "`goldnode-node ack --id memory.edac`.",
            REPAIR, ACKNOWLEDGE,
        ),
    ),
    Kind("net.state", domain=HARDWARE, severity=DRAIN, blast=VISIT, about="each declared interface exists and is up", remedy=CABLE),
    Kind("net.speed", domain=HARDWARE, severity=DRAIN, blast=VISIT, about="each interface that is up has its declared speed", remedy=CABLE),
    Kind(
        "net.mtu", domain=HARDWARE, severity=DEGRADED, blast=NODE,
        about="each interface has its declared MTU",
        remedy=Remedy(
            "Set `policy.host.network` in the class and run site.yml, or `ip link set SUBJECT mtu …`; all ends of a network "
            "need the same MTU.",
            PERSON,
        ),
    ),
    Kind(
        "net.numa", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="each interface is on its declared NUMA node",
        remedy=Remedy(
            "Compare `cat /sys/class/net/SUBJECT/device/numa_node` with the class: the card is in another slot.", PERSON
        ),
    ),
    Kind(
        "net.irq", domain=HARDWARE, severity=DEGRADED, blast=NOTHING,
        about="interrupts of a fast adapter are not all kept away from the processors of its own socket",
        remedy=Remedy(
            "`for irq in /sys/bus/pci/devices/SUBJECT/msi_irqs/*; do cat /sys/bus/pci/devices/SUBJECT/local_cpulist > "
            "/proc/irq/${irq##*/}/smp_affinity_list; done` moves them back, each with its next interrupt. Then correct what moved "
            "them: banned processors in /etc/default/irqbalance, a profile of tuned, or a script.",
            COMMAND,
            PERSON,
        ),
    ),
    Kind(
        "net.firmware", domain=HARDWARE, severity=DEGRADED, blast=NODE,
        about="interfaces and InfiniBand devices have their declared firmware",
        remedy=Remedy(
            "Drain the node and update the firmware of SUBJECT with its vendor's tool, or add the version to the baseline "
            "of the class.",
            REPAIR,
        ),
    ),
    Kind(
        "net.drops", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="few packets since the last check were dropped or damaged",
        remedy=Remedy(
            "Check `ethtool -S SUBJECT` for the kind of drops, the ring sizes (`ethtool -g`) and the cable; then the switch "
            "port.",
            PERSON,
        ),
    ),
    Kind(
        "net.flaps", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="no interface or InfiniBand port has lost and regained its link since the last check",
        remedy=Remedy(
            "Search dmesg for SUBJECT, check the cable and transceiver (`ethtool -m SUBJECT`), then the switch port.", PERSON
        ),
    ),
    Kind(
        "ib.port", domain=HARDWARE, severity=DRAIN, blast=VISIT,
        about="each declared InfiniBand or RoCE device exists, with its ports active at their rate",
        remedy=Remedy(
            "Check `ibstat SUBJECT` and dmesg, the cable and transceiver, then the switch port and the subnet manager.",
            PERSON,
        ),
    ),
    Kind(
        "storage.mount", domain=HARDWARE, severity=DRAIN, blast=NODE,
        about="each declared mount exists with its type, is writable and has room; the root filesystem is writable and has some",
        remedy=Remedy(
            "Check `findmnt SUBJECT`, `df -h SUBJECT`, `df -i SUBJECT` and dmesg; mount it, make room, or repair it before "
            "anything is written to it again.",
            PERSON,
        ),
    ),
    Kind(
        "storage.devices", domain=HARDWARE, severity=DRAIN, blast=VISIT,
        about="the declared number of disks exists, of the declared models",
        remedy=Remedy(
            "Check `lsblk`, `nvme list` and dmesg for the missing or different disk; reseat or replace it.", REPAIR
        ),
    ),
    Kind(
        "storage.health", domain=HARDWARE, severity=DEGRADED, blast=VISIT,
        about="disks report no warning: NVMe's critical warning is 0, endurance is left, no media error is new, arrays are "
        "complete",
        remedy=Remedy(
            "Check `nvme smart-log /dev/SUBJECT` or `smartctl -a /dev/SUBJECT`; save the data and replace the disk.", REPAIR
        ),
    ),
    Kind(
        "storage.path", domain=HARDWARE, severity=DEGRADED, blast=PROCESS,
        about="the declared paths can be read within their time limit",
        remedy=Remedy("Run `goldnode-node diagnose`; then check the server, or the disks, behind SUBJECT.", PERSON),
    ),
    Kind(
        "host.pressure", domain=HARDWARE, severity=DEGRADED, blast=PROCESS,
        about="all tasks together did not wait for disks or memory for a large share of the time since the last check "
        "(PSI, `full`)",
        remedy=Remedy("Run `goldnode-node diagnose`: it names the waiting tasks and what they wait for.", PERSON),
    ),
    Kind(
        "host.blocked", domain=HARDWARE, severity=DRAIN, blast=NODE,
        about="no task is in uninterruptible sleep in the GPU driver at two checks in a row",
        remedy=Remedy(
            "Save the output of `nvidia-bug-report.sh`, drain the node and reboot it: a task that waits in the GPU driver "
            "for ever cannot be ended.",
            REBOOT,
        ),
    ),
    Kind(
        "time.sync", domain=HARDWARE, severity=DEGRADED, blast=NODE,
        about="the clock is synchronised some time after boot, and has not jumped against the uptime since the last check",
        remedy=Remedy(
            "Check `timedatectl` and `chronyc tracking` or `systemctl status systemd-timesyncd`: logs and certificates "
            "depend on the clock. A jump is reported for a day.",
            PERSON,
        ),
    ),
)  # fmt: skip

KINDS: Dict[str, Kind] = {row.id: row for row in _ROWS}


def kind(name: str) -> Optional[Kind]:
    """Return the row of a finding: its own, or the longest family that it belongs to; None without a row."""
    own = KINDS.get(name)
    if own is not None and "*" not in name:
        return own
    families: List[Kind] = [row for row in KINDS.values() if "*" in row.id and like(name, row.id)]
    return max(families, key=lambda row: len(row.id)) if families else None
