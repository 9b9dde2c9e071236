"""Typed access to `facts/symptoms.yml`: what people report of GPU nodes, its causes, and what decides.

:func:`of_line` recognizes a message in one line. :func:`near` compares a description without a message
with every symptom, by its words.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from goldnode.facts.host import Origin, load, origins

FILE = "symptoms.yml"
# Words of a question that have no meaning of their own.
_EMPTY = frozenset(
    re.findall(
        r"\w+",
        """a about after again all also am an and any are as at be been but by can cannot could do does
        for from get gets had has have how i if in into is it its just me my no not now of on one only or
        our out over own says see seems since so some than that the their them then there they this to too
        up us very was we were what when where which while who why will with would you your""",
    )
)
# Two words for one thing.
_SAME = {
    "card": "gpu", "gpus": "gpu", "cards": "gpu", "accelerator": "gpu", "vram": "memory", "ram": "memory",
    "oom": "memory", "restart": "reboot", "restarted": "reboot", "rebooted": "reboot", "upgraded": "upgrade",
    "update": "upgrade", "updated": "upgrade", "machine": "node", "host": "node", "hosts": "node",
    "server": "node", "throttled": "throttle", "throttling": "throttle", "allreduce": "all-reduce",
    "utilization": "utilisation", "pods": "pod", "infiniband": "ib", "k8s": "kubernetes",
}  # fmt: skip
# A pattern's parts: an escape, a class of characters, a repetition, or one character.
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|\{[\d,]+\}|.", re.DOTALL)
_SPECIAL = frozenset("^$.|?*+()")
# A description that shares less with a symptom is about something else (cosine, 0 to 1).
_NEAR = 0.16
# The output of a program is compared with descriptions by people, where chance makes more words equal.
_NEAR_OF_A_PROGRAM = 0.3
# Signs of a line that are searched at once, and how far apart these windows begin: a message is shorter than their overlap.
_WINDOW, _STEP = 2_000, 1_000
_SHARED = 2  # words that a description and any symptom must have in common


@dataclass(frozen=True)
class Symptom:
    """One symptom. `causes` are in the order of their likelihood; `check` decides between them.

    `here` are patterns of finding ids that answer on the node; `run` is the command of goldnode-node that
    reports them, or None. `effect` is "none" where
    the message is no fault of a node, and a severity where it decides that by itself. `fallback` is a component:
    an error of a program without a row of its own. A later line that fits `settled_by` withdraws the symptom.
    `finding` is a finding of the health check whose causes, check and remedy these are.
    """

    id: str
    title: str
    layer: str
    causes: tuple[str, ...]
    check: str
    run: str | None
    here: tuple[str, ...]
    fix: str
    sources: tuple[Origin, ...]
    effect: str | None = None
    fallback: bool = False
    settled_by: str | None = None
    finding: str | None = None


@cache
def symptoms() -> dict[str, Symptom]:
    """Return every symptom by id."""
    return {
        row["id"]: Symptom(
            id=row["id"],
            title=row["title"],
            layer=row["layer"],
            causes=tuple(row["causes"]),
            check=row["check"],
            run=(row.get("here") or {}).get("run"),
            here=tuple((row.get("here") or {}).get("rows", ())),
            fix=row["fix"],
            sources=origins(FILE, row["source"]),
            effect=row.get("effect"),
            fallback=row.get("fallback", False),
            settled_by=row.get("settled_by"),
            finding=row.get("finding"),
        )
        for row in load(FILE)["symptoms"]
    }


def of_finding(name: str) -> Symptom | None:
    """Return the row that has causes, check and remedy of a finding of the health check. None if no row has."""
    return next((row for row in symptoms().values() if row.finding == name), None)


@dataclass(frozen=True)
class _Message:
    symptom: str
    pattern: re.Pattern[str]
    # Parts of a line, in small letters, of which it has one where the pattern fits. Empty: no such parts.
    parts: tuple[str, ...]


@cache
def message_rows(fallback: bool) -> tuple[_Message, ...]:
    """Return the messages of the fallback rows, or those of the others, in the order of the table."""
    messages = []
    for row in load(FILE)["symptoms"]:
        if not row["messages"] or row.get("fallback", False) != fallback:
            continue
        # In one pattern a name of a group may occur once only.
        texts = [message.replace("(?P<subject>", "(?:") for message in row["messages"]]
        parts = [_fixed_part(text) for text in texts]
        pattern = re.compile("|".join(f"(?:{text})" for text in texts), re.IGNORECASE)
        messages.append(_Message(row["id"], pattern, tuple(parts) if all(parts) else ()))
    return tuple(messages)


def _fixed_part(pattern: str) -> str:
    """Return the longest text that a line must have for `pattern` to fit, in small letters. Empty if unknown.

    Text inside groups is left out: a group may be optional or one of several.
    """
    runs, depth, run = [], 0, ""
    for piece in _TOKEN.findall(pattern):
        if depth == 0 and piece == "|":
            return ""
        fixed = (
            piece[-1] if len(piece) == 1 or (piece[0] == "\\" and not piece[1].isalnum()) else None
        )
        if depth == 0 and fixed is not None and piece not in _SPECIAL:
            run += fixed
            continue
        runs.append(run[:-1] if piece[0] in "?*{" else run)
        run = ""
        depth += {"(": 1, ")": -1}.get(piece[0], 0)
    return max([*runs, run], key=len).lower()


def search(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    """Search `line`. A long one is searched in windows, as the time of some patterns grows with the square of its length.

    A `^` still fits at the beginning of the line only.
    """
    if len(line) <= _WINDOW:
        return pattern.search(line)
    hits = (pattern.search(line, at, at + _WINDOW) for at in range(0, len(line), _STEP))
    return next((hit for hit in hits if hit), None)


def fitting(line: str, *, fallback: bool) -> list[str]:
    """Return the symptoms whose messages fit `line`. Searches for fixed text first, which is much faster."""
    lower = line.lower()
    return [
        message.symptom
        for message in message_rows(fallback)
        if (not message.parts or any(part in lower for part in message.parts))
        and search(message.pattern, line)
    ]


@cache
def _subjects() -> dict[str, tuple[re.Pattern[str], ...]]:
    """Return the messages of each symptom that name its subject, such as a kernel."""
    return {
        row["id"]: tuple(
            re.compile(text, re.IGNORECASE) for text in row["messages"] if "(?P<subject>" in text
        )
        for row in load(FILE)["symptoms"]
    }


# Signs of a program's output, which a description by a person mostly lacks.
_OF_A_PROGRAM = re.compile(r"[:=\[<]|[A-Z]_[A-Z]|^\s*(?:Job for|Warning {2,}\w)", re.MULTILINE)
_ERROR = re.compile(r"error|fail|fatal|unable|cannot|invalid", re.IGNORECASE)
# A number is an error of CUDA beside the name of its library or of one of its functions, and a word for a fault.
_CUDA_NUMBER = re.compile(
    r"\b(?:cuda\w*|cudart|cu[A-Z]\w+|nvcuda)\b.{0,60}?"
    r"(?:\b(?:err|error|errno|failure|failed|returned)\b(?: (?:with )?(?:error )?code)?[^\w-]{0,4}|\bcode *[=:] *)"
    r"(?P<code>\d{1,3})\b",
)
_CUDA_NAME = re.compile(r"\b(?:CUDA_ERROR_(?P<driver>[A-Z_]+)|cudaError(?P<runtime>[A-Z]\w+))\b")
# Texts that other programs use too are CUDA's only beside its name.
_CUDA_NEAR = re.compile(r"cuda|\bcu[A-Z]\w+\(|NCCL WARN|\(error code ", re.IGNORECASE)


@cache
def _cuda_errors() -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """Return the symptoms of CUDA's errors by number and names, and by text."""
    names: dict[str, str] = {}
    texts = []
    for row in load(FILE)["cuda_errors"]:
        for key in (str(row["code"]), row.get("driver"), row["runtime"]):
            if key:
                names[key] = row["symptom"]
        texts.append((row["text"].lower(), row["symptom"]))
    return names, tuple(texts)


def _of_cuda(line: str) -> Iterator[str]:
    """Yield the symptoms of the errors of CUDA that `line` has by number, name or text."""
    lower = line.lower()
    if "cu" not in lower and "error code" not in lower and "NCCL WARN" not in line:
        return
    names, texts = _cuda_errors()
    for pattern in (_CUDA_NAME, _CUDA_NUMBER):
        for match in pattern.finditer(line):
            error = next(value for value in match.groupdict().values() if value)
            if error in names:
                yield names[error]
    if _CUDA_NEAR.search(line):
        yield from (symptom for text, symptom in texts if text in lower)


# A number is an error of DCGM's health checks only beside its name.
_DCGM_NUMBER = re.compile(
    r"\bDCGM(?:\w*?Health ?Code|\b.{0,60}?\bhealth\b.{0,60}?\bcode)[ :=#]*(?P<code>\d{1,3})\b",
    re.IGNORECASE,
)


def dcgm_error(line: str) -> str | None:
    """Return the name of the error of DCGM's health checks that `line` has by its number. None if it has none."""
    match = _DCGM_NUMBER.search(line)
    name = load(FILE)["dcgm_errors"]["names"].get(match["code"]) if match else None
    return f"DCGM_FR_{name}" if name else None


def of_line(line: str) -> list[Symptom]:
    """Return the symptoms of which `line` has a message, in the order of the table, then those of CUDA's errors."""
    return [symptoms()[name] for name in _names_of_line(line)]


# The readers of several kinds of text ask for the same lines.
@lru_cache(maxsize=50_000)
def _names_of_line(line: str) -> tuple[str, ...]:
    names = [*fitting(line, fallback=False), *_of_cuda(line)]
    error = dcgm_error(line)
    if error:
        names.extend(fitting(error, fallback=False) or ["dcgm-health-number"])
    return tuple(name for name in dict.fromkeys(names) if not symptoms()[name].fallback)


def component_of_line(line: str) -> Symptom | None:
    """Return the component that reports an error in `line`, the first of the table. None if the line names none."""
    if not _OF_A_PROGRAM.search(line):
        return None
    return next((symptoms()[name] for name in fitting(line, fallback=True)), None)


def dcgm_status() -> dict[str, str]:
    """Return the names of DCGM's errors by number, without the sign."""
    return dict(load(FILE)["dcgm_status"]["names"])


def subject_of(symptom: Symptom, line: str) -> str | None:
    """Return what a message of the symptom in `line` is about: its group `subject`. None if it names nothing."""
    hits = (search(pattern, line) for pattern in _subjects()[symptom.id])
    return next((hit["subject"].rstrip(".,:") for hit in hits if hit), None)


def near(text: str, most: int = 3) -> list[tuple[Symptom, float]]:
    """Return at most `most` symptoms that `text` may describe, with their nearness (0 to 1), nearest first.

    Words are compared: those that few symptoms share count more (inverse document frequency). A symptom
    that is much farther than the nearest one is left out.
    """
    weights, vectors = _index()
    words = _words(text)
    # A word that no symptom has makes the text farther from all of them.
    strange = math.log(1 + len(vectors))
    asked = _weighted(words, {word: weights.get(word, strange) for word in words})
    if sum(word in weights for word in asked) < _SHARED:
        return []
    ranked = sorted(
        ((name, _cosine(asked, vector)) for name, vector in vectors.items()),
        key=lambda item: -item[1],
    )[:most]
    error = _OF_A_PROGRAM.search(text) and _ERROR.search(text)
    least = max(_NEAR_OF_A_PROGRAM if error else _NEAR, 0.6 * ranked[0][1])
    return [(symptoms()[name], nearness) for name, nearness in ranked if nearness >= least]


@cache
def _index() -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the weight of each word, and of each symptom its words with their share."""
    texts = {
        row["id"]: Counter(
            [*_words(row["title"]), *_words(row["words"]) * 2, *_words(" ".join(row["causes"]))]
        )
        for row in load(FILE)["symptoms"]
        if not row.get("fallback")
    }
    frequency = Counter(word for words in texts.values() for word in words)
    weights = {word: math.log(1 + len(texts) / count) for word, count in frequency.items()}
    return weights, {name: _weighted(words.elements(), weights) for name, words in texts.items()}


def _words(text: str) -> list[str]:
    words = re.findall(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*|\d+", text.lower())
    return [_stem(_SAME.get(word, word)) for word in words if word not in _EMPTY]


def _stem(word: str) -> str:
    """Return the word without its commonest endings, so that forms of one word are equal."""
    for ending in ("ing", "ies", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) > 2:
            return word[: -len(ending)]
    return word


def _weighted(words: Iterable[str], weights: Mapping[str, float]) -> dict[str, float]:
    # A word that occurs twice does not count twice: the root damps repetition.
    return {
        word: math.sqrt(count) * weights[word]
        for word, count in Counter(words).items()
        if word in weights
    }


def _cosine(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    product = sum(weight * other.get(word, 0.0) for word, weight in one.items())
    length = math.hypot(*one.values()) * math.hypot(*other.values())
    return product / length if length else 0.0
