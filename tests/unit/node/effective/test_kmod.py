# ruff: noqa: E501
"""The reader of modprobe.d against modprobe itself: kmod in a root of its own, with modules that only have names."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from goldnode.node.effective import kmod
from goldnode.node.ground.host import Host

RELEASE = "6.1.0-test"
NVIDIA = "pci:v000010DEd000020B0sv000010DEsd00001450bc03sc02i00"
# File of a module -> its fields. Debian's driver has two names. The open driver brings a softdep.
MODULES = {
    "nvidia-current": ["name=nvidia", "alias=pci:v000010DEd*sv*sd*bc03sc02i*"],
    "nvidia-current-uvm": ["name=nvidia_uvm"],
    "nvidia": ["name=nvidia"],
    "nouveau": ["name=nouveau"],
    "vfio-pci": ["name=vfio_pci"],
    "nvidia-soft": ["name=nvidia_soft", "softdep=pre: vfio-pci"],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with kmod, its libraries and four modules. Skips where no namespace or tool is to be had."""
    program = shutil.which("modprobe")
    if not (program and shutil.which("depmod") and shutil.which("cc") and shutil.which("unshare")):
        pytest.skip("needs kmod, cc and unshare")
    made = tmp_path_factory.mktemp("kmod")
    (made / "sbin").mkdir()
    shutil.copy(os.path.realpath(program), made / "sbin/modprobe")
    for library in re.findall(r"(/\S+) \(0x", subprocess.check_output(["ldd", program], text=True)):
        (made / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, made / library[1:])
    (made / "proc").mkdir()
    (made / "dev").mkdir()
    (made / "dev/null").touch()  # an empty file is as good
    folder = made / "lib/modules" / RELEASE
    folder.mkdir(parents=True)
    for file, fields in MODULES.items():
        rows = ["license=GPL", *fields]
        source = "".join(
            f'__attribute__((section(".modinfo"))) const char m{number}[] = "{row}";\n'
            for number, row in enumerate(rows)
        )
        subprocess.run(
            ["cc", "-x", "c", "-c", "-o", folder / f"{file}.ko", "-"],
            input=source,
            text=True,
            check=True,
        )
    subprocess.run(["depmod", "-b", made, RELEASE], check=True, capture_output=True)
    probe = subprocess.run(
        ["unshare", "--map-root-user", f"--root={made}", "/sbin/modprobe", "--version"],
        capture_output=True,
        check=False,
    )
    if probe.returncode:
        pytest.skip(f"no user namespace: {probe.stderr.decode().strip()}")
    return made


def modprobe(root: Path, *words: str) -> str:
    command = [
        "unshare",
        "--map-root-user",
        f"--root={root}",
        "/sbin/modprobe",
        "-S",
        RELEASE,
        *words,
    ]
    return subprocess.run(command, capture_output=True, check=False).stdout.decode()


def configured(root: Path, files: dict[str, str], command_line: str) -> Host:
    for directory in kmod.DIRECTORIES:
        shutil.rmtree(root / directory[1:], ignore_errors=True)
    for name, text in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            place.symlink_to(text[3:])
        else:
            place.write_text(text, newline="")
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cmdline").write_text(command_line + "\n")
    return Host(str(root))


def dumped(root: Path) -> list[str]:
    """The lines of `modprobe -c` that the product reads, without those of the built-in modules of this machine."""
    return of_files(modprobe(root, "-c"))


def of_files(dump: str) -> list[str]:
    """The lines of files in modprobe's dump. The last one is the softdep of a module."""
    lines = dump.partition("# End of configuration files.")[0].split("\n")
    rows = shown([re.sub(r"[ \t]+", " ", line).strip(" ") for line in lines])
    assert rows.pop() == "softdep nvidia_soft"
    return rows


def shown(lines: list[str]) -> list[str]:
    """Lines by kind, each kind in the order of the files, as modprobe prints them. Of a softdep the module alone:
    modprobe prints the rest in another form, and its effect is compared."""
    kinds = ("alias ", "blacklist ", "install ", "options ", "remove ", "softdep ")
    rows = [
        " ".join(line.split()[:2]) if line.startswith("softdep ") else line
        for line in lines
        if line.startswith(kinds)
    ]
    return sorted(rows, key=lambda row: row.split()[0])


def read(host: Host, command_line: str) -> list[str]:
    lines = [line for line in kmod.read(host, command_line) if line.command != "module_blacklist"]
    rows = [f"{line.command} {line.name} {line.rest}" for line in lines]
    return shown([re.sub(r"[ \t]+", " ", row).strip(" ") for row in rows])


# Files and command line of a node, and which of these modprobe loads: by name, by udev.
D = "etc/modprobe.d/"
CASES: dict[str, tuple[dict[str, str], str]] = {
    "nothing": ({}, "quiet"),
    "blacklist": ({D + "a.conf": "blacklist nvidia-current\n"}, ""),
    "blacklist of the other name": ({D + "a.conf": "blacklist nvidia\n"}, ""),
    "install false": ({D + "a.conf": "install nvidia_current /bin/false\n"}, ""),
    "install another": ({D + "a.conf": "install nvidia-current modprobe -i nvidia-current $CMDLINE_OPTS\n"}, ""),
    "the first install counts": ({D + "a.conf": "install nvidia-current /bin/true\ninstall nvidia-current modprobe -i nvidia-current\n"}, ""),
    "alias off": ({D + "a.conf": "alias nvidia-current off\n"}, ""),
    "alias off by a pattern": ({D + "a.conf": "alias nvidia* off\n"}, ""),
    "one of two aliases leads there": ({D + "a.conf": "alias nvidia-current off\nalias nvidia-current nvidia-current\n"}, ""),
    "in /run": ({"run/modprobe.d/a.conf": "blacklist nvidia-current\n"}, ""),
    "in /usr/local/lib": ({"usr/local/lib/modprobe.d/a.conf": "blacklist nvidia-current\n"}, ""),
    "in /lib": ({"lib/modprobe.d/a.conf": "blacklist nvidia-current\n"}, ""),
    "hidden by a file of its name": ({D + "a.conf": "# nothing\n", "lib/modprobe.d/a.conf": "blacklist nvidia-current\n"}, ""),
    "hidden by a link to /dev/null": ({D + "a.conf": "-> /dev/null", "lib/modprobe.d/a.conf": "blacklist nvidia-current\n"}, ""),
    "names that do not count": ({D + name: "blacklist nvidia-current\n" for name in ("a", "a.conf.bak", ".a.conf", "b.conf/a.conf")}, ""),
    "a name that counts": ({D + "a.alias": "blacklist nvidia-current\n"}, ""),
    "a continued line": ({D + "a.conf": "blacklist nvidia\\\n-current\n"}, ""),
    "a continued comment": ({D + "a.conf": "# why \\\nblacklist nvidia-current\n"}, ""),
    "a comment after the name": ({D + "a.conf": "blacklist nvidia-current # why\n"}, ""),
    "an indented line with tabs": ({D + "a.conf": "\tblacklist\t nvidia-current \n"}, ""),
    "an indented comment": ({D + "a.conf": "  # blacklist nvidia-current\n"}, ""),
    "line ends of Windows": ({D + "a.conf": "blacklist nvidia-current\r\n"}, ""),
    "lines that are none": ({D + "a.conf": "BLACKLIST nvidia-current\nblacklist\noptions nvidia\ninstall nvidia-current\nalias nvidia-current\ninclude x\n"}, ""),
    "a backslash inside": ({D + "a.conf": "blacklist nvidia-cur\\rent\n"}, ""),
    "command line": ({}, "quiet modprobe.blacklist=nouveau,nvidia_current"),
    "command line with a hyphen": ({}, "quiet modprobe.blacklist=nvidia-current"),
    "install for a pattern": ({D + "a.conf": "install nvidia* /bin/false\n"}, ""),
    "blacklist takes no pattern": ({D + "a.conf": "blacklist nvidia*\n"}, ""),
    "a softdep cancels install": ({D + "a.conf": "install nvidia-current /bin/false\nsoftdep nvidia-current pre: vfio-pci\n"}, ""),
    "a softdep of no module does not": ({D + "a.conf": "install nvidia-current /bin/false\nsoftdep nvidia-current pre: nvidiafb\n"}, ""),
    "a softdep without its word does not": ({D + "a.conf": "install nvidia-current /bin/false\nsoftdep nvidia-current vfio-pci\n"}, ""),
    "the first softdep counts": ({D + "a.conf": "install nvidia-current /bin/false\nsoftdep nvidia-curren? post: x\nsoftdep nvidia-current pre: vfio-pci\n"}, ""),
    "install after another command": ({D + "a.conf": "install nvidia-current /bin/true && modprobe -i nvidia-current\n"}, ""),
    "an alias of the device": ({D + "a.conf": "alias pci:v000010DEd*sv*sd*bc03sc*i* vfio-pci\n"}, ""),
    "an alias of another device": ({D + "a.conf": "alias pci:v000010DEd00001AEBsv*sd*bc04sc03i* vfio-pci\n"}, ""),
    "one alias of two leads there": ({D + "a.conf": "alias pci:v000010DEd*sv*sd*bc03sc*i* vfio-pci\nalias pci:v000010DEd*sv*sd*bc*sc*i* nvidia-current\n"}, ""),
    "remove": ({D + "a.conf": "remove nvidia-current modprobe -r nvidia-current-uvm; modprobe -r --ignore-remove nvidia-current\n"}, ""),
    "options in order": ({D + "b.conf": "options nvidia-current NVreg_A=1\n", D + "a.conf": "options nvidia-current NVreg_A=2 NVreg_B=\"x y\"\n"}, "nvidia-current.NVreg_A=3 nvidia.NVreg_C=\"a b\""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_lines_and_their_effect_are_those_of_modprobe(root: Path, name: str) -> None:
    files, command_line = CASES[name]
    if any(file.endswith(".alias") for file in files) and "version 30" not in modprobe(
        root, "--version"
    ):
        pytest.skip("kmod after 30 reads *.conf alone")
    host = configured(root, files, command_line)
    builtin = dumped_builtin(root)
    assert read(host, command_line) == [line for line in dumped(root) if line not in builtin]

    lines = kmod.settled(host, kmod.read(host, command_line), ["nvidia-current"], RELEASE)
    for words, by_alias in ((["nvidia-current"], False), (["-b", NVIDIA], True)):
        loads = loaded("nvidia-current", modprobe(root, "-n", "-v", *words))
        barred = bars(lines, "nvidia-current", by_alias)
        assert bool(barred) is not loads, (words, barred)


def loaded(name: str, shown: str) -> bool:
    """Whether modprobe shows that it would load a module, or would run a command that does."""
    form = re.sub("[-_]", "[-_]", name)
    return bool(re.search(rf"insmod \S*/{form}\.ko|modprobe (-i|--ignore-install) {form}\b", shown))


def bars(lines: list[kmod.ModprobeLine], name: str, by_alias: bool) -> list[kmod.ModprobeLine]:
    """What keeps a module out: by its name, or as the driver of a GPU, for which no alias of the name is asked."""
    barred = kmod.against(lines, [name], by_alias)
    if not by_alias:
        return barred
    return [x for x in barred if x.command != "alias"] + kmod.diverts(lines, [name], ["10de:20b0"])


SPELLED = [
    "nvidia-current",
    "nvidia_current",
    "nvidia",
    "nouveau",
    "nvidia-current-uvm",
    "nvidia-soft",
]
PATTERNS = ["nvidia*", "n*", "nvidia-curren?", "*current*", "nvidia[-_]current", "nouv[!e]au"]
COMMANDS = ["/bin/false", "/bin/true", ":", "exit 0", "echo no; exit 1", "/bin/false # modprobe",
            "modprobe -i {} $CMDLINE_OPTS", "/sbin/modprobe --ignore-install {}", "/bin/true && modprobe -i {}"]  # fmt: skip
OTHERS = ["softdep {} pre: vfio-pci", "softdep {} pre: nvidiafb", "softdep {} vfio-pci", "softdep {} post: x vfio_pci",
          "blacklist {}", "blacklist {}\t # why", "alias {} off", "alias {} {}", "remove {} modprobe -r {}",
          "options {} NVreg_A=1", 'options {} NVreg_B="x y" NVreg_A=2', "options\t{}  NVreg_A=1 NVreg_A=3", "#options {} NVreg_A=9",
          "alias pci:v000010DEd*sv*sd*bc03sc*i* vfio-pci", "alias pci:v000010DEd000020B0sv*sd*bc*sc*i* {}"]  # fmt: skip
WORDS = [
    "modprobe.blacklist={}",
    "nvidia-current.NVreg_A={}",
    "nvidia_current.NVreg_A=1",
    "quiet",
    "splash",
    "ro",
]


def generated(draw: random.Random) -> tuple[dict[str, str], str]:
    """Files and command line that a person may have left behind."""
    files: dict[str, str] = {}
    for _ in range(draw.randint(1, 4)):
        folder = draw.choice(["etc", "etc", "run", "usr/local/lib", "lib"])
        rows = []
        for _ in range(draw.randint(1, 4)):
            name = draw.choice(SPELLED)
            if draw.random() < 0.4:
                command = draw.choice(COMMANDS)
                if draw.random() < 0.3 and "{}" not in command:
                    name = draw.choice(PATTERNS)
                rows.append(f"install {name} {command}".replace("{}", name))
            else:
                rows.append(draw.choice(OTHERS).replace("{}", name))
            if draw.random() < 0.1:  # continued in the next line
                rows[-1] = rows[-1].replace(" ", " \\\n", 1)
        files[f"{folder}/modprobe.d/{draw.choice('abcd')}.conf"] = "\n".join(rows) + "\n"
    words = [
        draw.choice(WORDS).format(draw.choice(["nouveau", "nvidia_current", "nvidia-current"]))
        for _ in range(draw.randint(0, 3))
    ]
    return files, " ".join(words)


def test_generated_configurations_have_the_effect_that_modprobe_gives_them(
    root: Path, tmp_path: Path
) -> None:
    """80 of them in one namespace: lines, loading by name and by udev, and the option that wins."""
    draw = random.Random(34)  # noqa: S311
    made = shutil.copytree(root, tmp_path / "root", symlinks=True)
    for name in [*kmod.DIRECTORIES, "/proc"]:
        shutil.rmtree(made / name[1:], ignore_errors=True)
        (made / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        (made / name[1:]).symlink_to(f"/now{name}")
    configurations = [generated(draw) for _ in range(80)]
    for number, (files, command_line) in enumerate(configurations):
        configured(made / f"{number}", files, command_line)
    asked = {name: f"-n -v {name}" for name in MODULES if name != "vfio-pci"} | {
        "udev": f"-n -v -b {NVIDIA}",
        "c": "-c",
    }
    script = "\n".join(
        ["cd $1", f"for n in $(seq 0 {len(configurations) - 1}); do", "ln -sfn $n now"]
        + [f"chroot . /sbin/modprobe -S {RELEASE} {words} >$n/{name} 2>/dev/null" for name, words in asked.items()]
        + ["done"]
    )  # fmt: skip
    subprocess.run(["unshare", "--map-root-user", "sh", "-c", script, "sh", made], check=True)
    builtin, wrong = dumped_builtin(root), []
    for number, (files, command_line) in enumerate(configurations):
        host = Host(str(made / f"{number}"))
        out = {name: (made / f"{number}/{name}").read_text() for name in asked}
        lines = kmod.read(host, command_line)
        rows = [row for row in of_files(out["c"]) if row not in builtin]
        same = read(host, command_line) == rows
        shutil.copytree(made / "lib/modules", made / f"{number}/lib/modules")
        effect = {}
        for name in asked.keys() - {"c"}:
            module = "nvidia-current" if name == "udev" else name
            settled = kmod.settled(host, lines, [module], RELEASE)
            loads = loaded(module, out[name])
            if bool(bars(settled, module, name == "udev")) is loads:
                effect[name] = out[name]
        value = re.findall(r"insmod \S*/nvidia-current\.ko.*NVreg_A=(\S+)", out["nvidia-current"])
        clash = kmod.options(lines, ["nvidia-current"], {"NVreg_A": 1}, "/etc/modprobe.d/-")
        if value and bool(clash) is (value[0] == "1"):
            effect["options"] = str(clash)
        if effect or not same:
            wrong.append((files, command_line, effect, same))
    assert wrong == []


# Installed by Debian's package nvidia-kernel-support (535.261.03): udev's alias leads to a name that `install` redirects.
DEBIAN = (
    "install nvidia modprobe -i nvidia-current $CMDLINE_OPTS\n"
    "install nvidia-uvm modprobe nvidia ; modprobe -i nvidia-current-uvm $CMDLINE_OPTS\n"
    "alias pci:v000010DEd*sv*sd*bc03sc02i* nvidia\n"
)


@pytest.mark.parametrize(
    ("line", "loads"),
    [("", True), ("blacklist nvidia\n", False), ("install nvidia /bin/false\n", False)],
)
def test_lines_against_the_driver_under_debians_two_names(
    root: Path, line: str, loads: bool
) -> None:
    host = configured(root, {D + "a.conf": line, D + "nvidia.conf": DEBIAN}, "")
    shown = modprobe(root, "-n", "-v", "-b", NVIDIA)
    assert ("modprobe -i nvidia-current" in shown) is loads
    assert bool(kmod.against(kmod.read(host), ["nvidia-current", "nvidia"])) is not loads


def dumped_builtin(root: Path) -> set[str]:
    """The options of modules that are built into the kernel of this machine, and those of kmod's own."""
    return set(
        re.findall(
            r"^options .*$",
            subprocess.run(["modprobe", "-c"], capture_output=True, text=True, check=False).stdout,
            re.M,
        )
    )


def test_lines_have_their_file_and_their_first_line(tmp_path: Path) -> None:
    host = configured(tmp_path, {D + "a.conf": "# one\n\nblacklist \\\nnvidia\n", "run/modprobe.d/b.conf": "install nvidia-uvm /bin/false\n"}, "")  # fmt: skip
    found = kmod.read(host, "module_blacklist=nvidia")
    assert [(line.where(), line.text()) for line in found] == [
        ("/etc/modprobe.d/a.conf:3", "blacklist nvidia"),
        ("/run/modprobe.d/b.conf:1", "install nvidia_uvm /bin/false"),
        (kmod.COMMAND_LINE, "module_blacklist=nvidia"),
    ]


OPTIONS: tuple[tuple[dict[str, str], str, list[str]], ...] = (
    # (lines by file, command line, lines that win against the class's NVreg_A=1)
    ({D + "zz.conf": "options nvidia NVreg_A=2\n"}, "", ["options nvidia NVreg_A=2"]),
    ({D + "zz.conf": "options nvidia NVreg_A=1 NVreg_B=9\n"}, "", []),
    ({D + "a.conf": "options nvidia NVreg_A=2\n"}, "", []),
    (
        {D + "y.conf": "options nvidia NVreg_A=2\n", D + "z.conf": "options nvidia NVreg_A=1\n"},
        "",
        [],
    ),
    ({D + "zz.conf": "options nvidia_uvm NVreg_A=2\n"}, "", []),
    ({}, "nvidia.NVreg_A=0", ["nvidia.NVreg_A=0"]),
)


@pytest.mark.parametrize(("files", "command_line", "expected"), OPTIONS)
def test_the_last_option_wins(
    tmp_path: Path, files: dict[str, str], command_line: str, expected: list[str]
) -> None:
    host = configured(tmp_path, files, command_line)
    found = kmod.options(
        kmod.read(host, command_line),
        ["nvidia"],
        {"NVreg_A": 1},
        "/etc/modprobe.d/goldnode-options.conf",
    )
    assert [line.text() for line in found] == expected


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("options vfio-pci ids=10de:20b0", True),
        ("options vfio_pci disable_vga=1 ids=8086:1234,10DE:20B0:10de:1450", True),
        ("options vfio-pci ids=10de:20b5", False),
        ("options vfio ids=10de:20b0", False),
    ],
)
def test_gpu_is_given_away_when_vfio_pci_lists_its_id(
    tmp_path: Path, text: str, taken: bool
) -> None:
    lines = kmod.parsed("/etc/modprobe.d/vfio.conf", text)
    assert bool(kmod.given_away(lines, ["10de:20b0"])) is taken
