"""Judge GPU settings that no class declares.

Nobody has said which value is right. A setting is judged by what the capture itself states: the
range of the board, the other GPUs of its model on the node, and the mode that is pending. A setting
that several GPUs of one model have differently is a finding, and so is one that no program can work
with.
"""

from __future__ import annotations

from ..probe.values import is_fault
from ..state.finding import DEFERRED, MATCH, MISMATCH, NOT_EXPOSED, Finding
from ..state.kinds import DEGRADED, NOTHING
from ..state.remedy import COMMAND, PERSON, REPAIR, Remedy
from . import links, rules
from .hardware import LAPTOPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

    from ..ground.host import Json

    Gpus = Sequence[Mapping[str, Any]]

# Return codes of NVML: NVML_ERROR_NOT_SUPPORTED and NVML_ERROR_UNKNOWN.
NOT_SUPPORTED, UNKNOWN_ERROR = 3, 999

DECLARE = Remedy(
    "Set the right value with `nvidia-smi -i SUBJECT`, or declare it in a class: `goldnode adopt` proposes one.",
    PERSON,
)
COMPUTE = Remedy("Allow programs again: `nvidia-smi -i SUBJECT -c DEFAULT`.", COMMAND)
RANGE = Remedy(
    "Set a value that the board accepts: `nvidia-smi -q -d POWER,CLOCK -i SUBJECT` shows the range.",
    COMMAND,
)
LINK = Remedy(
    "Reseat SUBJECT and its riser, and check the slot's lanes and generation in the firmware. Declare the link in "
    "the class if it is by design.",
    REPAIR,
)
HEAT = Remedy(
    "Check fans and air inlet of SUBJECT, and `nvidia-smi -q -d TEMPERATURE -i SUBJECT`.", PERSON
)
RESET = Remedy("Drain the node, then reset the GPU: `nvidia-smi --gpu-reset -i SUBJECT`.", PERSON)
# Since generation 6 a link may rest with fewer lanes (PCI Express 6.0, L0p); seen as 2 of 16 lanes at rest.
RESTS_NARROW = 6


def findings(capture: Mapping[str, Any], models: Mapping[str, Any]) -> List[Finding]:
    """Return the findings about settings of the GPUs of a capture. Pure.

    :param models: facts by PCI id, as `health.models` of the implied class document. The table of rules
        judges their values.
    """
    gpus = [
        gpu
        for gpu in rules.rows_of(capture.get("gpus"))
        if not is_fault(gpu) and gpu.get("lost") is not True
    ]
    judged: List[Finding] = []
    for rule in RULES:
        judged += _rows(gpus, rule)
    remedy = links.HOSTED if rules.is_guest(capture) else LINK
    links_ = [
        row
        for gpu in gpus
        for row in _link(capture, gpu, rules.as_map(models.get(str(gpu.get("pci_id")))), remedy)
    ]
    for name in ("pcie.width", "pcie.gen"):
        own = [row for row in links_ if row.id == name]
        wrong = [row for row in own if row.outcome != MATCH]
        judged += wrong or [row._replace(subject=None) for row in own[:1]]
    for gpu in gpus:
        judged += _heat(gpu) + _banks(gpu)
    return judged


class GpuSetting:
    """One setting: id of its findings, path in a GPU of the capture, value as text, and its own fault if any.

    `elsewhere`: a difference is a finding of the table of rules (`gpu.modes`), and only a match is
    one here. `by_board`: the vendor of the board sets the range, so that only equal boards of a
    model are compared.
    """

    def __init__(
        self,
        name: str,
        path: str,
        text: Callable[[Any], str] = str,
        fault: Optional[Callable[[Mapping[str, Any], Any], Optional[str]]] = None,
        remedy: Remedy = DECLARE,
        *,
        elsewhere: bool = False,
        by_board: bool = False,
    ) -> None:
        self.name, self.path, self.text, self.fault, self.remedy = name, path, text, fault, remedy
        self.elsewhere, self.by_board = elsewhere, by_board


def _on(value: Any) -> str:
    return "on" if value else "off"


def _mhz(value: Any) -> str:
    return f"{value} MHz"


def _watts(value: Any) -> str:
    return f"{value:g} W"


def _mib(value: Any) -> str:
    return f"{value} MiB"


def _prohibited(gpu: Mapping[str, Any], value: Any) -> Optional[str]:
    return "prohibited, so no CUDA program can use it" if value == "prohibited" else None


def _power(gpu: Mapping[str, Any], value: Any) -> Optional[str]:
    low, high = rules.fetch(gpu, "power.min_w"), rules.fetch(gpu, "power.max_w")
    if rules.is_number(low) and rules.is_number(high) and not low <= value <= high:
        return f"{value:g} W, and the board takes {low:g} to {high:g} W"
    return None


def _at_most(path: str) -> Callable[[Mapping[str, Any], Any], Optional[str]]:
    def fault(gpu: Mapping[str, Any], value: Any) -> Optional[str]:
        most = rules.fetch(gpu, path)
        if rules.is_number(most) and value > most:
            return f"{value} MHz, above the maximum of {most} MHz"
        return None

    return fault


def _pending(path: str, name: str) -> Callable[[Mapping[str, Any], Any], Optional[str]]:
    def fault(gpu: Mapping[str, Any], value: Any) -> Optional[str]:
        later = rules.fetch(gpu, path)
        if isinstance(later, bool) and later != value:
            return f"{name} is {_on(value)}, and {_on(later)} after the next reset"
        return None

    return fault


RULES = (
    GpuSetting("policy.persistence_mode", "persistence_mode", _on),
    GpuSetting("policy.compute_mode", "compute_mode", str, _prohibited, COMPUTE),
    GpuSetting("policy.power_limit_watts", "power.limit_w", _watts, _power, RANGE, by_board=True),
    GpuSetting(
        "policy.clocks.graphics_mhz",
        "clocks.application.graphics_mhz",
        _mhz,
        _at_most("clocks.max.graphics_mhz"),
        RANGE,
        by_board=True,
    ),
    GpuSetting(
        "policy.clocks.memory_mhz",
        "clocks.application.memory_mhz",
        _mhz,
        _at_most("clocks.max.memory_mhz"),
        RANGE,
        by_board=True,
    ),
    GpuSetting("gpu.max_clocks", "clocks.max.sm_mhz", _mhz, by_board=True),
    GpuSetting("gpu.bar1", "memory.bar1_mib", _mib, by_board=True),
    GpuSetting("policy.ecc", "ecc.current", _on, _pending("ecc.pending", "ECC"), elsewhere=True),
    GpuSetting("policy.mig", "mig.current", _on, _pending("mig.pending", "MIG"), elsewhere=True),
)


def _rows(gpus: Gpus, rule: GpuSetting) -> List[Finding]:
    """Return the findings about one setting: one match for all GPUs, or one mismatch for each that differs."""
    values = [
        (gpu, value)
        for gpu in gpus
        for value in [rules.fetch(gpu, rule.path)]
        if isinstance(value, (bool, str)) or rules.is_number(value)
    ]
    wrong: List[Finding] = []
    for kind in dict.fromkeys(_kind(gpu, rule) for gpu, _ in values):
        own = [(gpu, value) for gpu, value in values if _kind(gpu, rule) == kind]
        alike = [value for _, value in own]
        # No class states the right value, so that of most GPUs counts; of two halves, that of the first GPU.
        usual = max(alike, key=alike.count)
        for gpu, value in own:
            fault = rule.fault(gpu, value) if rule.fault is not None else None
            if fault is not None:
                wrong.append(
                    _finding(rule.name, gpu, "a value that fits the board", fault, rule.remedy)
                )
            elif value != usual:
                expected = f"{rule.text(usual)}, as on others of this model"
                wrong.append(_finding(rule.name, gpu, expected, rule.text(value), DECLARE))
    if wrong or not values:
        return [] if rule.elsewhere else wrong
    texts = list(dict.fromkeys(rule.text(value) for _, value in values))
    about = "alike on all GPUs of one model" if len(values) > 1 else "a value that fits the board"
    return [Finding(rule.name, MATCH, about, ", ".join(texts), severity=DEGRADED)]


def _kind(gpu: Mapping[str, Any], rule: GpuSetting) -> Tuple[str, str]:
    """Return the property that GPUs to compare have in common: the model, or the board."""
    return str(gpu.get("pci_id")), str(gpu.get("subsystem_id")) if rule.by_board else ""


def _finding(name: str, gpu: Mapping[str, Any], expected: str, got: str, remedy: Remedy) -> Finding:
    subject = rules.sanitized(gpu.get("address") or gpu.get("index"), 80)
    return Finding(
        name,
        outcome=MISMATCH,
        expected=rules.sanitized(expected),
        got=rules.sanitized(got),
        remedy=remedy.about(subject),
        subject=subject,
        severity=DEGRADED,
        blast=NOTHING,
    )


def in_laptop(gpu: Mapping[str, Any]) -> bool:
    """Return whether the GPU is soldered into a laptop, by its name."""
    return str(gpu.get("name")).endswith(LAPTOPS)


def unjudged_width(capture: Mapping[str, Any], gpu: Mapping[str, Any]) -> Optional[str]:
    """Return the width of a link as a text, if it is narrower than the GPU can have and a laptop's board or the host of
    a virtual machine decides it.
    """
    there = in_laptop(gpu) or links.hosted(capture, gpu)
    now, most = rules.fetch(gpu, "pcie.width.current"), rules.fetch(gpu, "pcie.width.max")
    narrower = rules.is_number(now) and rules.is_number(most) and now < most
    return f"x{now}, and the GPU can have x{most}" if narrower and there else None


def _link(
    capture: Mapping[str, Any], gpu: Mapping[str, Any], facts: Mapping[str, Any], remedy: Remedy
) -> Iterator[Finding]:
    """Yield findings about the link if the facts state none, by the abilities of GPU and slot."""
    stated = rules.as_map(facts.get("pcie"))
    rests, state = links.resting(gpu)
    for name, key, mark in (("pcie.width", "width", "x"), ("pcie.gen", "gen", "generation ")):
        now, most = rules.fetch(gpu, f"pcie.{key}.current"), rules.fetch(gpu, f"pcie.{key}.max")
        if stated.get(key) is not None or not rules.is_number(now) or not rules.is_number(most):
            continue
        # The number of lanes of a laptop is no fault, and is listed for a class to declare.
        if key == "width" and now < most and in_laptop(gpu):
            continue
        expected = f"{mark}{most}, which GPU and slot can do together"
        generation = rules.fetch(gpu, "pcie.gen.current")
        narrow = key == "gen" or (rules.is_number(generation) and generation >= RESTS_NARROW)
        subject = rules.sanitized(gpu.get("address") or gpu.get("index"), 80)
        if key == "width" and now < most and links.hosted(capture, gpu):
            expected = links.OF_HOST.format(now)
            yield Finding(name, MATCH, expected, expected, subject=subject, severity=DEGRADED)
        elif now >= most:
            yield Finding(name, MATCH, expected, expected, subject=subject, severity=DEGRADED)
        elif rests and narrow:
            yield Finding(
                name,
                outcome=DEFERRED,
                expected=expected,
                got=f"{mark}{now} while the GPU rests",
                remedy=links.AT_NEXT_LOAD,
                subject=subject,
                evidence=(state,),
                severity=DEGRADED,
                blast=NOTHING,
            )
        else:
            yield _finding(name, gpu, expected, f"{mark}{now}", remedy)


def _heat(gpu: Mapping[str, Any]) -> List[Finding]:
    """Compare temperatures with the highest ones for operation, which lie below the slowdown."""
    rows = []
    for name, now, most in (
        ("GPU", "temperature.gpu_c", "temperature.max_c"),
        ("memory", "temperature.memory_c", "temperature.memory_max_c"),
    ):
        have, limit = rules.fetch(gpu, now), rules.fetch(gpu, most)
        if rules.is_number(have) and rules.is_number(limit) and have > limit:
            text = f"{name} at {have} °C, above its highest temperature for operation"
            rows.append(_finding("gpu.temperature", gpu, f"at most {limit} °C", text, HEAT))
    return rows


def _banks(gpu: Mapping[str, Any]) -> List[Finding]:
    rows = []
    if rules.fetch(gpu, "remapped_banks.pending") is True:
        text = "a bank remap is pending"
        rows.append(_finding("gpu.remap.pending", gpu, "no bank remap pending", text, RESET))
    none = rules.fetch(gpu, "remapped_banks.none")
    if rules.is_number(none) and none > 0:
        text = f"{none} groups have none"
        rows.append(_finding("gpu.remap.spare", gpu, "spare banks in each group", text, DECLARE))
    return rows


def of_record(gpu: Mapping[str, Any]) -> Json:
    """Return the settings of a GPU as the policy domain compares them (:mod:`..device.nvidia`), from the other
    values of its capture: for a record without a section `settings`, such as the output of
    nvidia-smi.
    """

    def value(path: str, right: Callable[[Any], bool]) -> Any:
        reading = rules.fetch(gpu, path)
        if right(reading):
            return reading
        # The policy domain knows NVML's return codes, and takes only "not supported" for an answer.
        if is_fault(reading):
            code = NOT_SUPPORTED if reading["fault"] == NOT_EXPOSED else UNKNOWN_ERROR
            return {"rc": code, "text": str(reading.get("text"))}
        if reading is None:
            return {"rc": NOT_SUPPORTED, "text": "not in this record"}
        return {
            "rc": UNKNOWN_ERROR,
            "text": f"not understood: {rules.sanitized(repr(reading), 60)}",
        }

    def flag(reading: Any) -> bool:
        return isinstance(reading, bool)

    def modes(name: str) -> Json:
        now, later = value(f"{name}.current", flag), value(f"{name}.pending", flag)
        for mode in (now, later):
            if not flag(mode):
                return mode  # type: ignore[no-any-return]
        return {"current": now, "pending": later}

    mig = modes("mig")
    there = rules.fetch(gpu, "mig.instances")
    if mig.get("current") and not isinstance(there, list):
        mig = {"rc": UNKNOWN_ERROR, "text": "the record names no MIG profiles"}
    elif "current" in mig:
        mig.update(instances=rules.as_list(there), profiles=[])
    return {
        **{key: gpu.get(key) for key in ("uuid", "pci_id")},
        "persistence_mode": value("persistence_mode", flag),
        "compute_mode": value("compute_mode", lambda reading: isinstance(reading, str)),
        "power": {
            name: value(f"power.{name}_w", rules.is_number)
            for name in ("limit", "default", "min", "max")
        },
        "clocks": {
            mode: {
                name: value(f"clocks.{mode}.{name}_mhz", rules.is_number)
                for name in ("graphics", "memory")
            }
            for mode in ("application", "max")
        },
        "ecc": modes("ecc"),
        "mig": mig,
    }


def unusual(capture: Mapping[str, Any]) -> Dict[str, str]:
    """Return settings that differ from the board's default, by id: ``{"policy.power_limit_watts": "default 400 W"}``."""
    differing: Dict[str, str] = {}
    rows: Tuple[Tuple[str, str, str, Callable[[Any], str]], ...] = (
        ("policy.power_limit_watts", "power.limit_w", "power.default_w", _watts),
        (
            "policy.clocks.graphics_mhz",
            "clocks.application.graphics_mhz",
            "clocks.application_default.graphics_mhz",
            _mhz,
        ),
        (
            "policy.clocks.memory_mhz",
            "clocks.application.memory_mhz",
            "clocks.application_default.memory_mhz",
            _mhz,
        ),
    )
    for name, now, default, text in rows:
        defaults = []
        for gpu in rules.as_list(capture.get("gpus")):
            # Boards of one model may have different defaults.
            have, usual = rules.fetch(gpu, now), rules.fetch(gpu, default)
            if rules.is_number(have) and rules.is_number(usual) and have != usual:
                defaults.append(text(usual))
        if defaults:
            differing[name] = f"default {', '.join(dict.fromkeys(defaults))}"
    return differing
