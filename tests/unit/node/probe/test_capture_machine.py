"""What a capture says of the machine, from small directories that play one."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.roots import context, make

from goldnode.node.ground.host import Host
from goldnode.node.probe import Context, machine, reader_process
from goldnode.node.probe.values import is_fault
from goldnode.node.state.model import Observed


def sysfs_of(
    cpus: int,
    sockets: int = 2,
    threads: int = 2,
    governor: str = "performance",
    microcode: str = "0xa1",
) -> dict[str, str]:
    """CPUs numbered as x86 servers do: first all cores, then their second threads."""
    cores = cpus // threads
    files = {
        "/sys/devices/system/cpu/online": f"0-{cpus - 1}\n",
        "/sys/devices/system/cpu/smt/active": f"{int(threads > 1)}\n",
    }
    for number in range(cpus):
        core = number % cores
        package = core // (cores // sockets)
        own = [core + thread * cores for thread in range(threads)]
        low, high = package * cores // sockets, (package + 1) * cores // sockets - 1
        packages = ",".join(
            f"{low + thread * cores}-{high + thread * cores}" for thread in range(threads)
        )
        here = f"/sys/devices/system/cpu/cpu{number}"
        files[f"{here}/topology/core_cpus_list"] = ",".join(map(str, own)) + "\n"
        files[f"{here}/topology/package_cpus_list"] = packages + "\n"
        files[f"{here}/microcode/version"] = microcode + "\n"
        files[f"/sys/devices/system/cpu/cpufreq/policy{number}/scaling_governor"] = governor + "\n"
    return files


def test_hundreds_of_cpus_are_reported_in_a_few_words(tmp_path: Path) -> None:
    files = sysfs_of(256)
    files["/sys/devices/system/cpu/cpufreq/policy7/scaling_governor"] = "powersave\n"
    files["/sys/devices/system/cpu/cpu9/microcode/version"] = "0xa0\n"
    files["/proc/cpuinfo"] = (
        "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu sse\n\nprocessor\t: 1\n"
    )
    got = machine.cpu(context(make(tmp_path, files)))
    assert got == {
        "architecture": os.uname().machine,
        "model": "Some CPU",
        "flags": ["fpu", "sse"],
        "sockets": 2,
        "cores": 128,
        "threads": 256,
        "online": "0-255",
        "smt": True,
        "governors": {"performance": "0-6,8-255", "powersave": "7"},
        "microcode": ["0xa1", "0xa0"],
    }


def test_reading_cpus_takes_a_read_per_core_and_not_per_thread_or_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = context(make(tmp_path, sysfs_of(256)))
    names: list[str] = []
    real = here.files.text

    def text(name: str, most: int = 65536) -> Any:
        names.append(name)
        return real(name, most)

    monkeypatch.setattr(here.files, "text", text)
    machine.cpu(here)
    topology = [name for name in names if "/topology/" in name]
    assert len(topology) == 2 + 128
    assert sum("/microcode/" in name for name in names) == 128
    assert len(names) < 530


def test_policies_that_hold_several_cpus(tmp_path: Path) -> None:
    files = sysfs_of(4, sockets=1)
    files = {name: text for name, text in files.items() if "/cpufreq/" not in name}
    files["/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"] = "schedutil\n"
    files["/sys/devices/system/cpu/cpufreq/policy0/affected_cpus"] = "0 1 2 3\n"
    assert machine.cpu(context(make(tmp_path, files)))["governors"] == {"schedutil": "0-3"}


def test_governors_that_the_engine_has_read_are_not_read_again(tmp_path: Path) -> None:
    seen = Observed(tuning={"governor": {"cpu0": "performance", "cpu1": "powersave"}})
    here = context(make(tmp_path, sysfs_of(2, sockets=1)), seen=seen)
    assert machine.cpu(here)["governors"] == {"performance": "0", "powersave": "1"}


def test_missing_file_gives_a_fault_instead_of_a_number(tmp_path: Path) -> None:
    got = machine.read(context(tmp_path))
    for section in ("cpu", "identity", "os"):
        assert isinstance(got[section], dict)
    assert is_fault(got["cpu"]["sockets"])
    assert is_fault(got["cpu"]["governors"])
    assert is_fault(got["memory"])
    assert all(is_fault(got["pressure"][name]) for name in ("io", "memory", "cpu"))
    assert is_fault(got["os"]["kernel"]["running"])
    assert is_fault(got["os"]["kernel"]["taint"])
    assert got["blocked"] == []
    assert got["uptime"] is None


def test_an_image_has_no_running_kernel(tmp_path: Path) -> None:
    make(tmp_path, {"/proc/sys/kernel/osrelease": "6.1.0\n", "/etc/hostname": "golden\n"})
    got = machine.read(context(tmp_path, live=False))
    assert got["identity"]["hostname"] == "golden"
    for value in (
        got["os"]["kernel"]["running"],
        got["identity"]["boot_id"],
        got["time_sync"],
        got["cpu"],
    ):
        assert value["fault"] == "not_exposed"


@pytest.mark.parametrize(
    ("mask", "letters"),
    [
        (0, ""),
        (1, "P"),
        (1 << 12, "O"),
        (1 << 12 | 1 << 13 | 1, "POE"),
        (1 << 9, "W"),
        (1 << 18, "N"),
        (1 << 15, "K"),
        (1 << 25, "(25)"),
    ],
)
def test_taint_mask_gives_its_letters(mask: int, letters: str) -> None:
    assert machine.letters(mask) == letters


@pytest.mark.parametrize(
    ("product", "flags", "want"),
    [
        ({"sys_vendor": "Dell Inc.", "product_name": "PowerEdge XE9680"}, "fpu", "none"),
        ({"sys_vendor": "QEMU", "product_name": "Standard PC"}, "fpu hypervisor", "qemu"),
        ({"sys_vendor": "Amazon EC2", "product_name": "p5.48xlarge"}, "fpu hypervisor", "amazon"),
        ({"sys_vendor": "Amazon EC2", "product_name": "m5.metal"}, "fpu", "none"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "hypervisor", "google"),
        (
            {"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"},
            "hypervisor",
            "microsoft",
        ),
        ({"sys_vendor": "Microsoft Corporation", "product_name": "C2080"}, "fpu", "none"),
        ({"sys_vendor": "Amazon EC2", "product_name": "m7g.metal"}, None, "none"),
        ({"sys_vendor": "Amazon EC2", "product_name": "c7g.xlarge"}, None, "amazon"),
        ({}, "fpu hypervisor", "other"),
        ({}, "fpu", "none"),
    ],
)
def test_virtual_platform_follows_from_dmi_and_cpu_flags(
    tmp_path: Path, product: dict[str, str], flags: str | None, want: str
) -> None:
    make(tmp_path, {f"/sys/class/dmi/id/{name}": text + "\n" for name, text in product.items()})
    make(
        tmp_path,
        {
            "/proc/cpuinfo": f"processor\t: 0\nflags\t\t: {flags}\n\n"
            if flags
            else "processor\t: 0\nFeatures\t: fp\n\n"
        },
    )
    assert machine.identity(context(tmp_path))["virtual"] == want


def test_a_machine_that_reports_nothing_is_not_called_hardware(tmp_path: Path) -> None:
    assert machine.identity(context(tmp_path))["virtual"]["fault"] == "not_exposed"


@pytest.mark.parametrize(
    ("files", "want"),
    [
        ({"/etc/goldnode/image.json": '{"image_id": "golden-7"}'}, "golden-7"),
        ({"/etc/os-release": 'ID=debian\nIMAGE_ID="gn"\nIMAGE_VERSION=12\n'}, "gn 12"),
        ({"/etc/os-release": "ID=debian\n"}, None),
        ({}, None),
    ],
)
def test_image_id_is_read_from_its_file_or_os_release(
    tmp_path: Path, files: dict[str, str], want: str | None
) -> None:
    assert machine.identity(context(make(tmp_path, files)))["image_id"] == want


@pytest.mark.parametrize("text", ["{", "[]", '"x', "\x00"])
def test_a_torn_image_record_is_reported_or_passed_over(tmp_path: Path, text: str) -> None:
    got = machine.identity(context(make(tmp_path, {"/etc/goldnode/image.json": text})))["image_id"]
    assert got is None or is_fault(got)


def test_engine_observations_fill_os_and_identity(tmp_path: Path) -> None:
    seen = Observed(
        kernels=["6.1.0-1-amd64", "6.1.0-2-amd64"],
        boot={"release": "6.1.0-2-amd64", "loader": "grub"},
        secure_boot=True,
        modules={
            "6.1.0-2-amd64": {
                "version": "535.1",
                "license": "NVIDIA",
                "vermagic": "x",
                "signer": "us",
            }
        },
        other_modules={"peer": None},
    )
    document = {
        "kernel": {"release": "6.1.0-2-amd64"},
        "driver": {"module": "nvidia"},
        "class": "c",
        "digest": "d",
        "lock": {"digest": "l"},
    }
    make(
        tmp_path,
        {
            "/proc/modules": "nvidia 1 2 - Live 0x0 (OE)\next4 1 0 - Live 0x0\n",
            "/proc/sys/kernel/tainted": "12289\n",
        },
    )
    got = machine.read(context(tmp_path, document, seen))
    assert got["os"]["kernel"]["next_boot"] == "6.1.0-2-amd64"
    assert got["os"]["kernel"]["taint_flags"] == "POE"
    assert got["os"]["modules"] == ["ext4", "nvidia"]
    assert got["os"]["secure_boot"] is True
    files = got["os"]["module_files"]["6.1.0-2-amd64"]
    assert files["nvidia"] == {"version": "535.1", "license": "NVIDIA", "signer": "us"}
    assert files["peer"]["fault"] == "not_exposed"
    assert (
        got["identity"]["class"],
        got["identity"]["class_digest"],
        got["identity"]["lock_digest"],
    ) == (
        "c",
        "d",
        "l",
    )


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("0", [0]),
        ("", []),
        ("x-3", []),
        ("3-1", []),
    ],
)
def test_cpu_list_is_expanded_and_a_malformed_one_is_empty(text: str, want: list[int]) -> None:
    assert machine.numbers_of(text) == want


def test_a_list_of_cpus_that_never_ends_is_cut() -> None:
    assert len(machine.numbers_of("0-99999999999999")) <= 65536


def test_memory_and_pressure_are_read_or_a_fault(tmp_path: Path) -> None:
    make(
        tmp_path,
        {
            "/proc/meminfo": "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\nSwapTotal: 1024 kB\nSwapFree: 0 kB\n",
            "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "16\n",
            "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "4\n",
            "/sys/devices/system/edac/mc/mc0/ce_count": "3\n",
            "/sys/devices/system/edac/mc/mc0/ue_count": "0\n",
            "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "/proc/sys/kernel/numa_balancing": "1\n",
            "/proc/pressure/io": "some avg10=1.50 avg60=0.00 avg300=0.00 total=77\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
            "/proc/pressure/cpu": "nonsense\n",
            "/proc/uptime": "12.5 1\n",
        },
    )
    got = machine.read(context(tmp_path))
    memory = got["memory"]
    assert (
        memory["total_mib"],
        memory["available_mib"],
        memory["swap_total_mib"],
        memory["swap_used_mib"],
    ) == (2048, 1024, 1, 1)
    assert memory["hugepages"] == {"2048": {"total": 16, "free": 4}}
    assert memory["edac"] == {"mc0": {"ce": 3, "ue": 0}}
    assert memory["transparent_hugepages"] == "madvise"
    assert memory["numa_balancing"] == 1
    assert got["pressure"]["io"] == {
        "some_us": 77,
        "some_avg10": 1.5,
        "full_us": 7,
        "full_avg10": 0.0,
    }
    assert got["pressure"]["cpu"]["fault"] == "unread"
    assert got["pressure"]["memory"]["fault"] == "not_exposed"
    assert got["uptime"] == 12.5


def task(pid: int, name: str, state: str) -> dict[str, str]:
    """/proc of one task."""
    return {
        f"/proc/{pid}/stat": f"{pid} ({name}) {state} 1 1 1 0\n",
        f"/proc/{pid}/wchan": "nfs_wait_bit_killable",
    }


def test_blocked_tasks_have_names_that_are_safe_to_print(tmp_path: Path) -> None:
    make(
        tmp_path,
        {
            **task(7, "evil) D\x1b[31m\n", "D"),
            **task(8, "fine", "S"),
            **task(9, ") R (", "D"),
            "/proc/loadavg": "3.0 1 1 1/9 9\n",
        },
    )
    (tmp_path / "proc/10").mkdir()  # vanished meanwhile
    got = machine.read(context(tmp_path))["blocked"]
    assert [row["pid"] for row in got] == [9, 7]
    assert got[1]["command"] == "evil) D?[31m?"
    assert got[0]["command"] == ") R ("
    assert {row["wait"] for row in got} == {"nfs_wait_bit_killable"}


@pytest.mark.parametrize(
    ("load", "waiting", "looked"),
    [
        ("0.10", "0", False),
        ("0.39", "0", True),
        ("0.0", "2", True),
        (None, "0", True),
        ("x", "0", True),
    ],
)
def test_tasks_are_looked_at_where_there_is_load(
    tmp_path: Path, load: str | None, waiting: str, looked: bool
) -> None:
    make(
        tmp_path,
        {
            **task(7, "stuck", "D"),
            "/proc/stat": f"cpu 1 2\nprocs_running 1\nprocs_blocked {waiting}\n",
        },
    )
    if load is not None:
        make(tmp_path, {"/proc/loadavg": f"{load} 0.0 0.0 1/9 9\n"})
    assert bool(machine.read(context(tmp_path))["blocked"]) is looked


def test_tasks_not_examined_in_time_are_counted(tmp_path: Path) -> None:
    make(
        tmp_path,
        {name: text for pid in range(20) for name, text in task(pid, "stuck", "D").items()},
    )
    assert machine.blocked(context(tmp_path).files, limit=-1.0) == ([], 20)


def test_the_most_blocked_tasks_are_bounded(tmp_path: Path) -> None:
    make(
        tmp_path,
        {name: text for pid in range(100) for name, text in task(pid, "stuck", "D").items()},
    )
    found, unseen = machine.blocked(context(tmp_path).files, limit=60.0)
    assert (len(found), unseen) == (machine.MOST_BLOCKED, 100 - machine.MOST_BLOCKED)


def test_limits_are_read_from_proc(tmp_path: Path) -> None:
    text = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\n"
    make(
        tmp_path,
        {
            "/proc/self/limits": text
            + "Max locked memory         unlimited            unlimited            bytes\n"
        },
    )
    assert machine.limits(context(tmp_path).files) == {
        "open_files": 1024,
        "memlock_kib": "unlimited",
    }


def test_this_machine_is_read_without_a_crash() -> None:
    got = machine.read(Context(Host("/")))
    json.dumps(got)
    assert got["identity"]["boot_id"]
    assert got["memory"]["total_mib"] > 0
    assert got["cpu"]["threads"] == os.sysconf("SC_NPROCESSORS_ONLN")
    assert got["time_sync"]["synchronised"] in (True, False)


# -- reads in a process that can be abandoned


def die() -> Any:
    os._exit(3)


def hang() -> Any:
    import time

    time.sleep(60)


def fail() -> Any:
    raise OSError(5, "Input/output error")


def test_one_that_hangs_keeps_nothing_from_the_others() -> None:
    got = reader_process.ask(
        [
            ("a", lambda: 1),
            ("b", hang),
            ("c", lambda: {"x": [1]}),
            ("d", die),
            ("e", fail),
            ("f", lambda: "z" * 300000),
        ],
        20.0,
        0.3,
    )
    assert got["a"] == 1
    assert got["c"] == {"x": [1]}
    assert len(got["f"]) == 300000
    assert got["b"]["fault"] == "unread"
    assert got["b"]["text"].startswith(
        "no answer within "
    )  # however long that was on a busy machine
    assert "ended without an answer" in got["d"]["text"]
    assert got["e"] == {"fault": "unread", "text": "Input/output error", "rc": 5}


def test_reader_without_time_left_is_unread() -> None:
    got = reader_process.ask([("a", hang), ("b", lambda: 1)], 0.2, 5.0)
    assert got["a"]["fault"] == got["b"]["fault"] == "unread"
    assert "not asked" in got["b"]["text"]


def test_the_child_holds_nothing_of_its_parents(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w"):
        got = reader_process.ask([("fds", open_files)])["fds"]
    assert [got[name] for name in ("0", "1", "2")] == ["/dev/null"] * 3
    assert got["3"].startswith("pipe:")
    assert not [target for target in got.values() if str(tmp_path) in target]


def open_files() -> dict[str, str]:
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own
            found[link.name] = str(link.readlink())
    return found


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"modules.dep": "kernel/net/gtp.ko.xz: a.ko\n", "modules.builtin": ""}, ["algif_aead"]),
        ({"modules.dep": "", "modules.builtin": "kernel/crypto/algif_aead.ko\n"}, ["gtp"]),
        ({"modules.dep": ""}, None),
        ({}, None),
    ],
)
def test_module_that_the_kernel_does_not_have_is_neither_a_file_nor_built_in(
    tmp_path: Path, files: dict[str, str], expected: list[str] | None
) -> None:
    place = {f"/lib/modules/6.1.0-9/{name}": text for name, text in files.items()}
    root = make(tmp_path, {"/proc/sys/kernel/osrelease": "6.1.0-9\n", **place})
    found = context(root, {"mitigations": [{"deny": ["algif-aead", "gtp"]}]})
    assert machine.system(found).get("absent") == expected
    assert "absent" not in machine.system(context(root))


def test_denied_modules_are_those_that_modprobe_does_not_load_by_name(tmp_path: Path) -> None:
    release = "6.1.0-56-amd64"
    files = {
        "/proc/sys/kernel/osrelease": release,
        "/proc/cmdline": "quiet module_blacklist=dccp,sctp",
        "/etc/modprobe.d/site.conf": "install algif_aead /bin/false\nblacklist af_alg\n"
        "install rds /sbin/modprobe --ignore-install rds\ninstall tipc /bin/true\n",
        # modprobe ignores `install` for a module whose softdep names a module that exists.
        f"/lib/modules/{release}/modules.softdep": "softdep tipc pre: udp_tunnel\n",
        f"/lib/modules/{release}/modules.dep": "kernel/net/udp_tunnel.ko:\n",
    }
    assert machine.system(context(make(tmp_path, files)))["denied"] == [
        "algif_aead",
        "dccp",
        "sctp",
    ]
    (tmp_path / "etc/modprobe.d/site.conf").unlink()
    (tmp_path / "proc/cmdline").write_text("quiet\n")
    assert machine.system(context(tmp_path))["denied"] == []
