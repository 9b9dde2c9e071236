"""Forms of kernel messages that report a fault, and those that are known to be harmless. The table is generated from facts/log_lines.yml."""

from __future__ import annotations

import json

from .typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence


class Form(NamedTuple):
    """One form of a message. `drivers`: who writes it, words separated by spaces. `form` matches the message after its head.

    `severity` is none, degraded or drain. `limit` names a limit in lines per minute, below which it is a note.
    """

    id: str
    drivers: str
    mark: str
    form: str
    finding: str
    severity: str
    means: str
    remedy: Optional[str]
    settled_by: str
    limit: Optional[str]


_table: Dict[str, Any] = {}


def _load() -> Dict[str, Any]:
    if not _table:
        data = json.loads(TEXT)
        by_driver: Dict[str, List[Form]] = {}
        rows = [Form(*row) for row in data["rows"]]
        for row in rows:
            for driver in row.drivers.split(" "):
                by_driver.setdefault(driver, []).append(row)
        by_id = {row.id: row for row in rows}
        _table.update(remedies=data["remedies"], by_driver=by_driver, by_id=by_id)
    return _table


def of(name: str) -> Sequence[Form]:
    """Return the forms of a driver or first word; a number at its end may count devices (`md0`, `nvidia-nvswitch1`)."""
    if name not in WRITERS and name.rstrip("0123456789") not in WRITERS:
        return ()
    by_driver = _load()["by_driver"]
    return by_driver.get(name) or by_driver.get(name.rstrip("0123456789")) or ()


def form(name: str) -> Optional[Form]:
    """Return the form of an id; None for one of another version of the program."""
    row: Optional[Form] = _load()["by_id"].get(name)
    return row


def remedy(name: str) -> List[str]:
    """Return text, blast radius and steps of a remedy."""
    row: List[str] = _load()["remedies"][name]
    return row


# fmt: off
WRITERS = frozenset(["AMD-Vi","BTRFS","CPU","DMAR","EXT4-fs","IO_PAGE_FAULT","Loading","Memory","NETDEV","NVRM","XFS","amdgpu","block","bnxt_en","clocksource","device-mapper","ena","gdrdrv","i40e","i915","iavf","ib_core","ice","igb","ixgbe","mce","md","megaraid_sas","mlx4_core","mlx5_core","mlx5_ib","mpt2sas_cm","mpt3sas_cm","nv_peer_mem","nvidia","nvidia-modeset","nvidia-nvswitch","nvidia_drm","nvidia_fs","nvidia_modeset","nvidia_peermem","nvidia_uvm","nvme","pcieport","tg3","virtio_net","xe"])
TEXT = r"""
{"remedies":{
"amd_reset":["Drain the node, then reset the GPU (`amd-smi reset --gpureset`, or restart the node).","gpu","gpu_reset"],
"restart":["Drain the node and restart it; where SUBJECT stays faulty, have it inspected.","node","reboot","repair"],
"flavour":["Install the other flavour of the kernel modules: the class's `flavour` (open or proprietary) must fit SUBJECT; then site.yml and a restart.","node","site","reboot"],
"nvidia_reset":["Stop what runs on it, then `nvidia-smi --gpu-reset -i SUBJECT`; where that fails, restart the node.","gpu","gpu_reset"],
"other_driver":["Install a driver that supports SUBJECT (`goldnode check` names the first one): the class's driver, then site.yml and a restart.","node","site","reboot"],
"firmware":["Install the GSP firmware of the same version as the kernel modules (site.yml), then restart the node.","node","site","reboot"],
"intel_firmware":["Install the firmware that the kernel asks for (Debian: firmware-intel-graphics as new as the kernel; a stack has it, and site.yml installs it), run `update-initramfs -u`, then restart the node.","node","site","reboot"],
"firmware_unread":["Start the program that uses SUBJECT again when no time limit or signal ends it (nvidia-persistenced first); where it stays, restart the node and look at memory and disk.","node","person","reboot"],
"sign":["Enrol the key that signed the module (`mokutil --list-enrolled`, `modinfo -F signer MODULE`), or install modules that the kernel trusts; then restart the node.","node","person","reboot"],
"bios":["Set *Above 4G Decoding* (large MMIO window) in the firmware of the machine, and look at the GPU's mode; then restart it.","hardware","repair"],
"unblock":["Keep the other driver out (`blacklist nouveau`, from Linux 6.15 on `nova_core` too, which site.yml writes), rebuild the initramfs and restart the node.","node","site","reboot"],
"peermem":["Build the driver's modules again after DOCA-OFED or MLNX_OFED is installed (`dkms install --force`), so that they take its ib_core; with open modules and a recent kernel GPUDirect RDMA works through DMA-BUF, without nvidia_peermem.","node","site","reboot"],
"video":["Load the kernel's own module video before it (`modprobe video`, for each start a line in /etc/modules-load.d). Where there is none, install the rest of the kernel's modules, which some distributions have in packages of their own (such as kernel-modules-extra-KERNEL). Where it has no such function, the module is for another kernel: update the kernel, or build the module for this kernel.","node","site","person","reboot"],
"beside":["Build that module again for the loaded driver (`dkms install --force`, or its package); a module under the GPL (nvidia_fs) needs the open flavour of the driver. Then load it.","node","site","person"],
"fabric":["Install nvidia-fabricmanager of exactly the driver's version and hold it (site.yml does), then restart nvidia-fabricmanager.","node","site","person"],
"module":["Build the module for the running kernel (`dkms autoinstall`, or site.yml), and load it or restart the node.","node","site","reboot"],
"power_cycle":["Drain the node and switch it off and on (a restart leaves an adapter its power); where SUBJECT stays faulty, have it replaced.","node","reboot","repair"],
"cool_adapter":["Check fans, air inlet and transceivers at SUBJECT.","hardware","repair"],
"restart_free":["Restart the node when nothing runs on it; where SUBJECT stays faulty, update its firmware or have it inspected.","node","reboot","repair"],
"iommu":["Restart the node; where faults of SUBJECT come back, update its firmware and driver, or run with `iommu=pt`.","node","reboot","person"],
"disk":["Drain the node, restart it, and read the health of SUBJECT (`nvme smart-log`, `smartctl -a`); replace it where it fails again.","hardware","reboot","repair"],
"controller":["Drain the node and restart it; where SUBJECT fails again, update its firmware or replace it.","hardware","reboot","repair"],
"filesystem":["Drain the node, unmount SUBJECT, check it (`fsck`, `xfs_repair`, `btrfs check`) and the disk below it, then restart the node. Where it is a network volume (iSCSI, as of Longhorn), its connection broke, and no disk of the node is at fault.","node","repair","reboot"],
"raid":["Find the member with `mdadm --detail`, replace the disk, and add the new one: `mdadm --add`.","hardware","repair"],
"path":["Check cable and target of the path (`multipath -ll`).","hardware","repair"],
"dimm":["Drain the node; have the memory module that `ras-mc-ctl --errors` or the BMC's event log names replaced.","hardware","repair"],
"clock":["Restart the node when nothing runs on it; where it comes back, update the firmware.","node","reboot","person"],
"seat":["Restart the node; where it comes back, have seating, riser and cable below SUBJECT inspected.","hardware","reboot","repair"],
"psp":["Drain the node and switch it off and on; where SUBJECT still does not start, have seating, power and the bridge between the GPUs inspected (one without the bridge tells).","hardware","reboot","repair"],
"amd_firmware":["Install the firmware (firmware-amd-graphics, linux-firmware or amdgpu-dkms-firmware), write the initramfs again (`update-initramfs -u`), as the driver reads that copy at boot, and restart the node.","node","person","reboot"],
"nic_driver":["Install a driver and firmware of the adapter that fit each other (`ethtool -i`, `mlxfwmanager`), and restart the node.","node","person","reboot"],
"nvme_power":["Restart the node; where SUBJECT leaves the bus again, switch its power saving off (`nvme_core.default_ps_max_latency_us=0 pcie_aspm=off` on the kernel command line), then have slot and disk inspected.","hardware","reboot","repair"]
},"rows":[
["amd.ring_timeout","amdgpu"," timeout, ","ring (?P<ring>[\\w.]+) timeout, signaled seq","gpu.driver_fault","degraded","a ring of the GPU did not end its work in time","amd_reset","amd.reset_succeeded amd.ring_reset",null],
["amd.reset_succeeded","amdgpu","succeeded!","GPU reset\\(\\d+\\) succeeded!","gpu.program_fault","none","the driver has reset the GPU, and it works again",null,"",null],
["amd.reset_failed","amdgpu",") failed","GPU reset\\(\\d+\\) failed","gpu.driver_fault","drain","the driver could not reset the GPU","restart","amd.reset_succeeded",null],
["amd.soft_recovered","amdgpu","timeout, but soft","ring [\\w.]+ timeout, but soft recovered","gpu.program_fault","none","a ring of the GPU hung, and the driver ended the program that was at fault",null,"",null],
["amd.ring_reset","amdgpu","reset","Ring [\\w.]+ reset succe|device wedged, but recovered through reset","gpu.program_fault","none","the driver has reset a ring of the GPU, and it works again",null,"",null],
["amd.reset_end","amdgpu","GPU reset end with ret = -","GPU reset end with ret = -","gpu.driver_fault","drain","the driver could not reset the GPU","restart","amd.reset_succeeded",null],
["amd.mes","amdgpu","MES failed to respon","MES failed to respon(?:d|se)","gpu.driver_fault","degraded","the GPU's scheduler firmware (MES) does not answer","amd_reset","amd.reset_succeeded",null],
["amd.queue","amdgpu","MES might be in unrecoverable state","MES might be in unrecoverable state","gpu.driver_fault","degraded","the GPU's scheduler firmware (MES) takes no queue of a program, and the driver resets the GPU","amd_reset","amd.reset_succeeded",null],
["amd.page_fault","amdgpu","page fault (src_id:","\\[(?:gfxhub|mmhub)\\d*\\] (?:(?:no-)?retry )?page fault \\(src_id:","gpu.program_fault","none","a program used memory of the GPU that it does not have",null,"",null],
["amd.smu","amdgpu","Failed to export SMU metrics","Failed to export SMU metrics","gpu.program_fault","none","the GPU's power management controller (SMU) did not answer; healthy GPUs have it too, and time-outs beside it decide",null,"",null],
["amd.ras_fatal","amdgpu","uncorrectable hardware error(","(?:\\{\\d+\\} ?)?uncorrectable hardware error\\((?P<event>\\w+)\\)","gpu.driver_fault","drain","a hardware error of the GPU that was not corrected","restart","",null],
["amd.ras_unreal","amdgpu","correctable hardware errors","(?P<multiple_of_1048560>\\d+) (?:un)?correctable hardware errors detected in umc block","gpu.program_fault","none","counters that were read while the GPU slept have all bits set",null,"",null],
["amd.ras_uncorrected","amdgpu","uncorrectable hardware errors","(?:\\{\\d+\\} ?)?(?:socket: \\d+,? ?(?:die: \\d+,? ?)?)?[1-9]\\d* (?:new )?uncorrectable hardware errors detected in (?:total in )?(?P<block>\\w+) block","gpu.driver_fault","drain","errors of the GPU's memory or of a block that were not corrected","amd_reset","",null],
["amd.ras_corrected","amdgpu","correctable hardware errors","(?:\\{\\d+\\} ?)?(?:socket: \\d+,? ?(?:die: \\d+,? ?)?)?\\d+ (?:new )?correctable hardware errors detected","gpu.program_fault","none","errors of the GPU that were corrected",null,"",null],
["amd.poison","amdgpu","kick off gpu reset flow","(?:\\{\\d+\\} ?)?poison is consumed by (?:client|source) \\d+, kick off gpu reset flow","gpu.driver_fault","degraded","a program has used damaged memory of the GPU","amd_reset","amd.reset_succeeded",null],
["amd.psp","amdgpu"," failed","PSP (?:(?:create ring|ring init|load [\\w ]+|tmr init) failed!|firmware loading failed|resume failed)","driver.refused","drain","the security processor of the GPU (PSP) does not answer, and the driver cannot start the GPU","psp","",null],
["amd.firmware","amdgpu","Failed to load","(?:[\\w ]+: )?Failed to load (?:\\w+ firmware!|firmware [\\w\"./]+)","driver.refused","drain","the driver found no firmware for a part of the GPU, and cannot start it","amd_firmware","",null],
["amd.no_firmware","amdgpu","Direct firmware load for","Direct firmware load for amdgpu/\\S+ failed with error","gpu.program_fault","none","a firmware file was not found; some are optional (`_ta.bin`, `_cap.bin`), and a line about a part that cannot start follows where one is needed",null,"",null],
["xe.wedged","xe","Xe has declared device","CRITICAL: Xe has declared device (?P<address>\\S+) as wedged","gpu.driver_fault","drain","the driver has given the GPU up","restart","",null],
["xe.reset_failed","xe","reset failed (","(?:Tile\\d: )?GT\\d+: reset failed \\(","gpu.driver_fault","drain","the driver could not reset the GPU","restart","",null],
["xe.engine_reset","xe","Engine reset: engine_class=","(?:Tile\\d: )?GT\\d+: Engine reset: engine_class=","gpu.program_fault","none","an engine was reset under the work of one program",null,"",null],
["xe.timed_out","xe","imedout job: seqno=","(?:Tile\\d: )?(?:GT\\d+: )?Timedout job: seqno=","gpu.program_fault","none","a job of one program did not end in time and was taken off the GPU",null,"",null],
["xe.guc_unsupported","xe i915","Unsupported GuC","(?:GT\\d+: )?Unsupported GuC v\\S+ ","driver.refused","drain","the GuC firmware on disk is too old for the driver","intel_firmware","",null],
["intel.guc_missing","xe i915","fetch failed","(?:Tile\\d+: )?(?:GT\\d+: )?GuC firmware \\S+: fetch failed","driver.refused","drain","the GuC firmware is not on disk, or not in the initramfs that loads the driver, and the driver does not start without it","intel_firmware","",null],
["intel.guc_load","xe i915","load failed: status = 0x","(?:Tile\\d+: )?GT\\d+: (?:GUC: )?load failed: status = 0x","driver.refused","drain","the GPU did not start its GuC firmware, and the driver gives the GPU up","restart","",null],
["intel.huc_missing","xe i915","fetch failed","(?:Tile\\d+: )?(?:GT\\d+: )?HuC firmware \\S+: fetch failed","driver.refused","degraded","the HuC firmware is not on disk, and some encodings of video are missing","intel_firmware","",null],
["i915.wedged","i915","declaring","(?:GT\\d+: )?Failed to [\\w \\[\\]-]+, declaring (?:it )?wedged","gpu.driver_fault","drain","the driver has given the GPU up","restart","",null],
["i915.hang","i915","reset due to GPU hang",".*\\[\\d+\\] context reset due to GPU hang","gpu.program_fault","none","an engine was reset under the work of one program",null,"",null],
["i915.gpu_hang","i915","GPU HANG: ecode","GPU HANG: ecode","gpu.program_fault","none","the GPU hung under the work of a program, and the driver resets it",null,"",null],
["i915.chip_reset","i915","eset","(?:GT\\d+: )?(?:GUC: Engine reset failed on|Resetting chip for )","gpu.program_fault","none","the driver resets the complete GPU",null,"",null],
["nvidia.reset_required","NVRM","NV_ERR_RESET_REQUIRED","nv(?:Assert|Check)\\w+: (?:Assertion|Check) failed: Reset required \\[NV_ERR_RESET_REQUIRED","gpu.driver_fault","drain","the driver refuses work on a GPU until it is reset","nvidia_reset","",null],
["nvidia.gsp_heartbeat","NVRM","eartbeat timed out","_kgsp\\w+: (?:GSP RM h|LibOS h|H)eartbeat timed out","gpu.driver_fault","degraded","the GPU's system processor (GSP) does not answer","nvidia_reset","",null],
["nvidia.locked","NVRM","GPU is probably locked","krcWatchdog\\w*: RC watchdog: GPU is probably locked","gpu.program_fault","none","the driver's watchdog got no answer from a channel; Xids beside it decide",null,"",null],
["nvidia.gsp_start","NVRM","initialize GSP firmware RM","RmInitAdapter: Cannot initialize GSP firmware RM","gpu.driver_fault","drain","the GPU's system processor (GSP) did not start","restart","",null],
["nvidia.gfw_boot","NVRM","to wait for GFW","\\w*(?:GfwBoot\\w*): failed to wait for GFW","gpu.driver_fault","drain","the board's own firmware (GFW) did not end its start, so no driver can start the board","power_cycle","",null],
["nvidia.gsp_firmware_unread","nvidia"," failed with error","(?:Direct firmware load for|loading) \\S*gsp_\\w+\\.bin failed with error -(?!2\\b)","driver.refused","drain","the kernel could not read the firmware of the GPU's system processor (GSP), though its file may be there (-4 is an interrupted program)","firmware_unread","",null],
["nvidia.gsp_firmware","nvidia"," failed with error","(?:Direct firmware load for|loading) \\S*gsp_\\w+\\.bin failed","driver.refused","drain","the firmware of the GPU's system processor (GSP) is not on disk, or not in the initramfs that loads the driver","firmware","",null],
["nvidia.bar_invalid","NVRM"," is 0M @ 0x0","BAR\\d is 0M @ 0x0+ \\(PCI:(?P<address>[\\da-fA-F:.]+)\\)","gpu.driver_fault","degraded","the machine's firmware gave a memory window of the GPU no address","bios","",null],
["nvidia.unsupported","NVRM","is not supported by the","installed in this system is not supported by the","driver.refused","drain","this version of the driver does not support this GPU","other_driver","",null],
["nvidia.needs_open","NVRM","installed in this system","installed in this system (?:requires use of the NVIDIA open kernel modules|is self-hosted, and requires)","driver.refused","drain","this GPU needs the open kernel modules","flavour","",null],
["nvidia.passed_through","NVRM","already bound to vfio","GPU (?P<address>\\S+) is already bound to vfio","gpu.program_fault","none","the GPU is handed to a virtual machine",null,"",null],
["nvidia.nvlink_mask","NVRM","Rx Detect Link mask","knvlinkUpdatePostRxDetectLinkMask\\w*: Failed to update Rx Detect Link mask","nvlink.driver_fault","drain","the driver cannot read the state of NVLink, and programs that ask it hang","restart","",null],
["module.signature","Loading"," is rejected","Loading of (?:unsigned module|module with (?:unavailable key|unsupported crypto)) is rejected","driver.refused","degraded","the kernel refused a module whose signature it does not trust (Secure Boot)","sign","",null],
["nvidia.open_unsupported","NVRM","is not supported by","installed in this (?:system is not supported by open|vGPU host system is not supported by)","driver.refused","drain","the open kernel modules do not support this GPU, which has no GSP","flavour","",null],
["nvidia.conflicting_driver","NVRM","already bound","GPU (?P<address>\\S+) is already bound to (?P<other>nouveau|[Nn]ova\\w*|nvidiafb|rivafb)","driver.conflict","drain","another driver has this GPU","unblock","",null],
["nvidia.nvlink_post_rx","NVRM","DetLinkMask failed","knvlinkDiscoverPostRxDetLinks\\w*: Getting peer\\d+(?:'s)? postRxDetLinkMask failed","nvlink.driver_fault","drain","an NVLink did not come up between this GPU and a peer","restart","",null],
["mlx5.recovered","mlx5_core","health recovery succeeded","(?:\\w+:\\d+:? ?(?:\\(pid \\d+\\):)? ?)?health recovery succeeded","net.driver_fault","none","the driver has restarted the adapter's firmware",null,"",null],
["mlx5.compromised","mlx5_core","health compromised","(?:\\w+:\\d+:? ?(?:\\(pid \\d+\\):)? ?)?device's health compromised - reached miss count","net.driver_fault","drain","the firmware of the adapter does not answer any more","power_cycle","mlx5.recovered",null],
["mlx5.fatal","mlx5_core","atal error ","(?:\\w+:\\d+:? ?(?:\\(pid \\d+\\):)? ?)?Fatal error \\d+ detected","net.driver_fault","drain","the adapter reports a fatal error","power_cycle","mlx5.recovered",null],
["mlx5.recovery_failed","mlx5_core","health recovery f","(?:\\w+:\\d+:? ?(?:\\(pid \\d+\\):)? ?)?health recovery (?:failed|flow aborted)","net.driver_fault","drain","the driver could not restart the adapter's firmware","power_cycle","mlx5.recovered",null],
["mlx5.internal","mlx5_core","firmware internal error","(?:\\w+:\\d+:? ?(?:\\(pid \\d+\\):)? ?)?(?:Health issue observed, |synd 0x\\w+: )firmware internal error","net.driver_fault","drain","the firmware of the adapter met an error of its own","power_cycle","mlx5.recovered",null],
["mlx5.command","mlx5_core","leak of a command resource","(?:\\w+:\\d+:? ?(?:\\(pid \\d+\\):)? ?)?.*timeout\\. Will cause a leak of a command resource","net.driver_fault","drain","the firmware did not end a command","power_cycle","mlx5.recovered",null],
["mlx5.tx_timeout","mlx5_core","TX timeout detected","(?:\\S+: )?TX timeout detected","net.driver_fault","degraded","a queue of the adapter has not sent for a while, and the driver starts it again","restart_free","",null],
["mlx5.hot","mlx5_core","igh temperature","(?:\\w+:\\d+:? ?(?:\\(pid \\d+\\):)? ?)?(?:High temperature on sensors|synd 0x10: High temperature)","net.driver_fault","degraded","the adapter is hotter than its firmware allows","cool_adapter","",null],
["mlx5.module","mlx5_core","Port module event[error]","(?:\\w+:\\d+:? ?(?:\\(pid \\d+\\):)? ?)?Port module event\\[error\\]: module \\d+, (?P<status>.*)","net.driver_fault","degraded","a transceiver or cable reports an error","cool_adapter","",null],
["mlx5.not_started","mlx5_core","_one failed with error code","(?:\\w+:\\d+:? ?(?:\\(pid \\d+\\):)? ?)?mlx5_(?:load|init)_one failed with error code","driver.refused","drain","the driver could not start the adapter","nic_driver","",null],
["mlx5.slot_power","mlx5_core","insufficient power on","(?:\\w+:\\d+:? ?(?:\\(pid \\d+\\):)? ?)?Detected insufficient power on the PCIe slot","net.driver_fault","none","the slot states less power than the adapter may use; boards that state none are the common cause, and the adapter works",null,"",null],
["mlx4.internal","mlx4_core","Internal error detected","Internal error detected","net.driver_fault","drain","the adapter met an internal error and is reset","power_cycle","",null],
["bnxt.firmware","bnxt_en","reset event",".*(?:Firmware [Ff]atal reset|Fatal firmware reset) event","net.driver_fault","degraded","the firmware of the adapter stopped and was started again","restart_free","",null],
["bnxt.not_restarted","bnxt_en","failure",".*hwrm(?: (?:stat ctx|ring) alloc|_ring_grp alloc| vnic (?:\\d+ )?(?:ctx \\d+ |cos ctx )?(?:alloc|cfg|set rss|set hds|set tpa)| query (?:capability|qportcfg)) failure","net.driver_fault","drain","the driver could not start the adapter","power_cycle","",null],
["bnxt.without","bnxt_en","failure",".*(?:hwrm (?:query (?:adv flow mgnt|error recovery)|crash dump mem)|HWRM set coalescing|crash dump mem alloc) failure","gpu.program_fault","none","the firmware of the adapter lacks something that the driver can do without",null,"",null],
["bnxt.command","bnxt_en","Error (timeout: ",".*Error \\(timeout: \\d+\\) msg","net.driver_fault","degraded","the firmware did not answer a request","restart_free","",null],
["intel.unrecoverable","ice i40e iavf","tx_timeout recovery unsuccessful","tx_timeout recovery unsuccessful","net.driver_fault","drain","the driver could not restart the adapter","power_cycle","",null],
["intel.recovery_mode","ice i40e ixgbe","irmware recovery mode","Firmware recovery mode detected","net.driver_fault","drain","the adapter's firmware is damaged and runs in its recovery mode","restart_free","",null],
["net.tx_timeout","NETDEV mlx5_core ice i40e ixgbe igb bnxt_en tg3 ena virtio_net","timed out","NETDEV WATCHDOG: (?:CPU: \\d+: |(?P<subject>\\S+) \\([\\w-]+\\): )transmit queue","net.driver_fault","none","a queue stalled and the driver reset it",null,"",null],
["iommu.dmar","DMAR"," fault addr","(?:DMAR:)?\\[DMA (?:Read|Write)[^\\]]*\\] Request device \\[(?:0x)?(?P<address>[0-9a-f]+:(?:0x)?[0-9a-f]+\\.[0-7])\\]","iommu.fault","degraded","the device reads or writes memory that is not its own, and the IOMMU refuses","iommu","","iommu_fault_minute"],
["iommu.amd","AMD-Vi IO_PAGE_FAULT nvidia amdgpu nvme mlx5_core ice i40e bnxt_en ixgbe","IO_PAGE_FAULT","(?:(?:AMD-Vi: )?Event logged \\[)?IO_PAGE_FAULT(?: device=(?P<address>[0-9a-f:.]+))?","iommu.fault","degraded","the device reads or writes memory that is not its own, and the IOMMU refuses","iommu","","iommu_fault_minute"],
["iommu.timeout","DMAR","Invalidation Time-out","VT-d detected Invalidation Time-out Error","iommu.fault","degraded","a device did not answer the IOMMU in time","iommu","",null],
["nvme.disabled","nvme","Disabling device after reset failure","nvme (?P<subject>nvme\\d+): Disabling device after reset failure","storage.driver_fault","drain","the disk did not come back from a reset and is gone","disk","",null],
["nvme.removed","nvme","emoving after probe failure","nvme (?P<subject>nvme\\d+): Removing after probe failure","storage.driver_fault","degraded","the disk could not be started and is not there","disk","",null],
["nvme.not_ready","nvme","Device not ready","nvme (?P<subject>nvme\\d+): Device not ready; aborting (?:reset|initialisation)","storage.driver_fault","degraded","the disk did not get ready","disk","",null],
["nvme.gone_after_reset","nvme","failed to set APST feature (-19)","nvme (?P<subject>nvme\\d+): failed to set APST feature \\(-19\\)","storage.driver_fault","degraded","the disk was gone (no such device) when its power saving was to be set after a reset","nvme_power","",null],
["nvme.off_the_bus","nvme","CSTS=0xffffffff","nvme (?P<subject>nvme\\d+): controller is down; will reset: CSTS=0xffffffff","storage.driver_fault","degraded","the disk had left the bus (its registers read as ones only), and was reset","nvme_power","",null],
["mpt.dead","mpt3sas_cm mpt2sas_cm","non-operational","SAS host is non-operational","storage.driver_fault","drain","the controller does not answer any more","controller","",null],
["mpt.fault","mpt3sas_cm mpt2sas_cm"," fault info from","\\w+ fault info from func","storage.driver_fault","degraded","the firmware of the controller stopped and was reset","controller","",null],
["megaraid.lost","megaraid_sas","reset adapter never cleared","Diag reset adapter never cleared","storage.driver_fault","drain","the controller did not come back from a reset","controller","",null],
["megaraid.fault","megaraid_sas","FAULT state","FW in FAULT state","storage.driver_fault","degraded","the firmware of the controller stopped","controller","",null],
["fs.readonly","EXT4-fs","filesystem read-only","EXT4-fs \\((?P<subject>(?!loop)[^)]+)\\): Remounting filesystem read-only","storage.filesystem","drain","the kernel has made the filesystem read-only after an error","filesystem","",null],
["fs.shutdown","XFS","hutting down filesystem","XFS \\((?P<subject>(?!loop)[^)]+)\\): .*(?:Error|Corruption|Block device removal).*[Ss]hutting down filesystem","storage.filesystem","drain","the kernel has shut the filesystem down after an error","filesystem","",null],
["fs.forced","BTRFS","forced readonly","BTRFS \\w+ \\(device (?P<subject>(?!loop)[^):]+)[^)]*\\): forced readonly","storage.filesystem","drain","the kernel has made the filesystem read-only after an error","filesystem","",null],
["md.array_failed","md","failing array","md/(?:raid0|linear)(?P<subject>md\\w+): Disk failure on (?P<member>\\w+)","storage.raid","drain","an array without redundancy has lost a disk: its data is gone","raid","",null],
["md.failed","md","Disk failure on","md/\\w+:(?P<subject>md\\w+): Disk failure on (?P<member>\\w+)","storage.raid","degraded","the array works without a member","raid","",null],
["md.stale","md","kicking non-fresh","kicking non-fresh (?P<subject>\\w+) from array","storage.raid","degraded","a member is older than the array and was left out","raid","",null],
["multipath.back","device-mapper","einstating path","multipath: (?:\\d+:\\d+: )?Reinstating path (?P<subject>\\d+:\\d+)","storage.raid","none","the path is back",null,"",null],
["multipath.failed","device-mapper","ailing path","multipath: (?:\\d+:\\d+: )?Failing path (?P<subject>\\d+:\\d+)","storage.raid","degraded","a path to a disk is lost","path","multipath.back",null],
["memory.consumed","mce","hardware memory error","Uncorrected hardware memory error in user-access","machine.mce","drain","a program has read memory with an error that could not be corrected","dimm","",null],
["memory.offlined","Memory","Memory failure: 0x","Memory failure: 0x[0-9a-f]+: (?:recovery action|Sending SIGBUS|Killing|forcibly killing)","machine.mce","degraded","a page of memory was taken out after an error that could not be corrected","dimm","",null],
["cpu.throttled","mce CPU"," above threshold","(?:CPU\\d+: )?(?:Core|Package) temperature (?:is )?above threshold","machine.mce","none","a processor was hot and lowered its clock for a moment",null,"",null],
["clock.unstable","clocksource","as unstable","timekeeping watchdog on CPU\\d+: Marking clocksource '(?P<subject>\\w+)' as unstable","kernel.clocksource","degraded","the kernel has given up its fast clock: each reading of the time is slow","clock","",null],
["pcie.contained","pcieport","containment event","DPC: containment event","pcie.aer","degraded","the port has cut off its device after an error that was not corrected","seat","",null],
["kmod.version","nvidia nvidia_uvm nvidia_modeset nvidia_drm nvidia_peermem amdgpu mlx5_core mlx5_ib ib_core","version magic","version magic '.*' should be '","driver.refused","drain","the kernel refused the module: it was built for another kernel","module","",null],
["kmod.peermem","nvidia_peermem","symbol ","(?:disagrees about version of|Unknown) symbol ib_\\w+","driver.refused","degraded","nvidia_peermem was built for another ib_core: GPUs work, GPUDirect RDMA through it does not","peermem","",null],
["kmod.beside","nvidia_fs gdrdrv nv_peer_mem","symbol ","(?:disagrees about version of|Unknown) symbol nvidia_p2p_\\w+","driver.refused","degraded","a module beside the driver does not fit it, so GPUDirect through it does not work; GPUs do","beside","",null],
["kmod.video","nvidia nvidia_modeset nvidia_drm amdgpu","symbol ","(?:disagrees about version of|Unknown) symbol (?:__)?acpi_video_\\w+","driver.refused","drain","the kernel refused the module: functions of the kernel's module video are not there","video","",null],
["kmod.symbol","nvidia nvidia_uvm nvidia_modeset nvidia_drm nvidia_peermem amdgpu mlx5_core mlx5_ib ib_core","symbol ","(?:disagrees about version of|Unknown) symbol ","driver.refused","drain","the kernel refused the module: it does not fit the kernel or a module below it","module","",null],
["nvme.no_path","block","failing I/O","block (?P<subject>nvme\\w+): no available path - failing I/O","storage.driver_fault","drain","no path to the disk is left","disk","",null],
["kmod.modeset","nvidia-modeset nvidia_drm","ersion mismatch: nvidia","(?:\\[nvidia-drm\\] )?Version mismatch: nvidia(?:-modeset)?\\.ko\\([\\w.]*\\) nvidia-","driver.refused","drain","two modules of the driver are of different versions","module","",null],
["nvswitch.version","nvidia-nvswitch","ersion mismatch, kernel version","Version mismatch, kernel version [\\w.]+ user version","driver.refused","drain","the fabric manager is of another version than the driver, so it does not start the NVSwitches","fabric","",null]
]}
"""
