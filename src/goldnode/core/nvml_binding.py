"""The part of pynvml, NVIDIA's binding for NVML, that programs of goldnode use.

pynvml makes some 200 classes when it is imported: a third of what the process that reads the GPUs costs. The
statements that are kept are NVIDIA's, letter by letter, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# A statement at the margin: its text up to the next one, without comments between them. A closing bracket at
# the margin belongs to the statement before; a decorator to the one after.
_STATEMENT = re.compile(r"^(?:@.*\n)*[^\s#@)\]}].*\n(?:(?:[ \t)\]}].*)?\n)*", re.MULTILINE)
_DEFINED = re.compile(r"(?:@.*\n)*(?:(?:def|class)\s+(\w+)|(\w+)\s*=[^=])")
_WORD = re.compile(r"\w+")
# The rest of a name that a caller may complete, as in f"nvmlDeviceGet{name}".
_GETTER = "nvmlDeviceGet"
# Looked for by the beginning of their names, by pynvml itself.
_ERRORS = "NVML_ERROR_"


def used_part(binding: str, callers: Iterable[str]) -> str:
    """Return pynvml without the functions, classes and constants that nothing uses.

    :param binding: text of pynvml. Its licence, which is all before the first statement, is kept.
    :param callers: texts of the modules that import it. A name in them counts as used, as does the end of a
        getter's name: "Serial" for nvmlDeviceGetSerial.
    """
    texts = _STATEMENT.findall(binding)
    defined: dict[str, list[int]] = {}
    used, new = set[int](), set[int]()
    for place, text in enumerate(texts):
        names = _DEFINED.match(text)
        if names is None:
            new.add(place)
        else:
            defined.setdefault(names[1] or names[2], []).append(place)
    words = {word for caller in callers for word in _WORD.findall(caller)}
    new.update(
        place
        for name, places in defined.items()
        if name in words
        or name.startswith(_ERRORS)
        or (name.startswith(_GETTER) and name[len(_GETTER) :] in words)
        for place in places
    )
    while new:
        used |= new
        words = {word for place in new for word in _WORD.findall(texts[place])}
        new = {place for word in words for place in defined.get(word, ())} - used
    return binding[: binding.index(texts[0])] + "".join(texts[place] for place in sorted(used))
