"""apt's configuration as apt reads it: nested scopes, lists, `#clear`, `#include` and comments. Reads only.

The rules are those of apt.conf(5) and of apt 2.6 to 3.3 (`ReadConfigFile` and `Configuration` in
apt-pkg/contrib/configuration.cc). tests/unit/node/effective/test_apt_conf.py compares the result with
`apt-config dump`. Each value has the line that set it, and so has each removal.
"""

from __future__ import annotations

import re

from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Mapping, Optional, Tuple

    from ..ground.host import Host

MAIN, PARTS = "/etc/apt/apt.conf", "/etc/apt/apt.conf.d"
_FILE_NAME = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9_:.-]*(?<!\.)")
_ESCAPES = re.compile(r'%([0-9A-Fa-f]{2})|"')
_ENDS = {'"': '"', "[": "]"}
_STRINGS = re.compile(r'"[^"]*"|\s+')
_MAGIC = ("clear", "include", "x-apt-configure-index")
_DEEPEST = 10  # files that include each other
# apt's own values (pkgInitConfig in apt-pkg/init.cc) that decide where it reads from.
_DEFAULTS = (
    ("Dir", "/"),
    ("Dir::Etc", "etc/apt"),
    ("Dir::Etc::main", "apt.conf"),
    ("Dir::Etc::parts", "apt.conf.d"),
    ("Dir::Etc::preferences", "preferences"),
    ("Dir::Etc::preferencesparts", "preferences.d"),
)


class AptSetting(NamedTuple):
    """A value with its full name (`APT::Periodic::Enable`), and the line of it. Members of a list end with `::`."""

    name: str
    value: str
    file: str
    line: int

    @property
    def where(self) -> str:
        """Return FILE:LINE."""
        return f"{self.file}:{self.line}"


class AptClearing(NamedTuple):
    """A setting that a `#clear` took back, and the place of the directive as FILE:LINE."""

    setting: AptSetting
    where: str


class _AptItem:
    """A node of the tree. The root and list members have no tag."""

    def __init__(self, tag: str, parent: Optional[_AptItem]) -> None:
        self.tag, self.parent = tag, parent
        self.value, self.file, self.line = "", "", 0
        self.children: List[_AptItem] = []

    def name(self) -> str:
        """Return the full name."""
        if self.parent is None or self.parent.parent is None:
            return self.tag
        return f"{self.parent.name()}::{self.tag}"

    def setting(self) -> AptSetting:
        return AptSetting(self.name(), self.value, self.file, self.line)

    def below(self) -> Iterator[_AptItem]:
        """Yield all nodes below this one in apt's order."""
        for child in self.children:
            yield child
            yield from child.below()


class AptSyntaxError(ValueError):
    """A file that apt refuses, as FILE:LINE: reason. apt does no work until it is corrected."""


class AptConfiguration:
    """The merged configuration. `error` is the first reason for which apt would refuse it, or None."""

    def __init__(self) -> None:
        """Begin with the directories that apt has built in."""
        self.root = _AptItem("", None)
        self.clearings: List[AptClearing] = []
        self.error: Optional[str] = None
        for name, value in _DEFAULTS:
            self.set(name, value, "", 0)

    def item(self, name: str, create: bool = False) -> Optional[_AptItem]:
        """Return a node by its name in any case, or None. A name that ends with `::` is a new member of a list."""
        here, start, at = self.root, 0, name.find("::")
        while at >= 0:
            step = _child(here, name[start:at], create)
            if step is None:
                return None
            # As apt does, search on after the next letter: `::::` is no empty scope.
            here, start = step, at + 2
            at = name.find("::", start + 1)
        if start == len(name) and not create:
            return None
        return _child(here, name[start:], create)

    def set(self, name: str, value: str, file: str, line: int) -> None:
        """Set a value, or append to a list."""
        item = self.item(name, create=True)
        if item is not None:
            item.value, item.file, item.line = value, file, line

    def clear(self, name: str, where: str) -> None:
        """Remove the value of a node and all nodes below it."""
        item = self.item(name)
        if item is None:
            return
        gone = [node.setting() for node in (item, *item.below()) if node.value]
        self.clearings += [AptClearing(setting, where) for setting in gone]
        item.value, item.file, item.line, item.children = "", "", 0, []

    def settings(self, name: str = "") -> List[AptSetting]:
        """Return all nodes in the order of `apt-config dump`, or those below a name."""
        start = self.root
        if name:
            start = self.item(name) or _AptItem("", None)
        return [node.setting() for node in start.below()]

    def find(self, name: str) -> Optional[AptSetting]:
        """Return a setting that has a value, or None."""
        item = self.item(name)
        if item is None or not item.value:
            return None
        return item.setting()

    def truth(self, name: str) -> bool:
        """Return whether a setting is on. Words that are no truth value count as no."""
        setting = self.find(name)
        if setting is None:
            return False
        return setting.value.lower() in ("yes", "true", "with", "on", "enable") or (
            re.fullmatch(r"\s*\+?(0[xX])?0*1", setting.value) is not None
        )

    def path(self, name: str) -> Tuple[str, Optional[AptSetting]]:
        """Return a file or directory, and the last setting of a file that has changed it, or None.

        A relative value is completed by those of the scopes around it.
        """
        item = self.item(name)
        used, value = [], ""
        if item:
            used, value = [item], item.value
        value = value or "/dev/null"
        while item and item.parent:
            if value.startswith(("/", "./", "../", "~/")):
                break
            item = item.parent
            if item.value:
                value = f"{item.value.rstrip('/')}/{value}"
                used.append(item)
        top = self.item("RootDir")
        if top and top.value:
            value = f"{top.value.rstrip('/')}/{value.lstrip('/')}"
            used.append(top)
        changed = [node.setting() for node in used if node.file]
        return value.rstrip("/"), next(iter(changed), None)


def _child(parent: _AptItem, tag: str, create: bool) -> Optional[_AptItem]:
    """Return the child with a tag. Without a tag, each is a new one."""
    if tag:
        for child in parent.children:
            if child.tag.lower() == tag.lower():
                return child
    if not create:
        return None
    parent.children.append(_AptItem(tag, parent))
    return parent.children[-1]


def parts(host: Host, directory: str, ending: str) -> List[str]:
    """Return the files of a directory that apt reads. It ignores names with another ending or character."""
    rows = []
    for path in host.glob(directory, "*"):
        name = path.rpartition("/")[2]
        fits = "." not in name or name.endswith(f".{ending}")
        if _FILE_NAME.fullmatch(name) and fits and not host.is_dir(path):
            rows.append(path)
    return rows


def read(host: Host) -> AptConfiguration:
    """Return the configuration of a root: its directory of parts, and then the main file."""
    configuration = AptConfiguration()
    for file in parts(host, configuration.path("Dir::Etc::parts")[0], "conf"):
        _attempt(host, configuration, file)
    main = configuration.path("Dir::Etc::main")[0]  # a part may name another one
    if host.exists(main) and not host.is_dir(main):
        _attempt(host, configuration, main)
    return configuration


def _attempt(host: Host, configuration: AptConfiguration, file: str) -> None:
    """Read a file. apt goes on with the next one after an error."""
    try:
        _AptFile(host, configuration, file, depth=0).run()
    except AptSyntaxError as error:
        configuration.error = configuration.error or str(error)


class _AptFile:
    """One file on its way into the configuration."""

    def __init__(self, host: Host, configuration: AptConfiguration, file: str, depth: int) -> None:
        self.host, self.configuration, self.file, self.depth = host, configuration, file, depth
        self.line = self.begun = 0
        self.scope, self.outer = "", []  # type: str, List[str]

    def run(self) -> None:
        """Read all statements. Raises AptSyntaxError."""
        try:
            text = self.host.text(self.file)
        except PermissionError:  # of another user: apt warns, and goes on
            return
        collected = ""
        for self.line, fragment in _without_comments(text or ""):
            pieces = _pieces(fragment)
            for piece, ending in pieces[:-1]:
                collected = self.join(collected, piece)
                self.statement(collected, ending)
                collected = ""
            collected = self.join(collected, pieces[-1][0])
        if collected:
            raise self.error("the last line has no ;", self.begun)

    def join(self, collected: str, piece: str) -> str:
        """Return a statement with its next piece, which may be on the next line."""
        piece = piece.strip(" \f\n\r\v")
        if not collected and piece:
            self.begun = self.line
        return " ".join(text for text in (collected, piece) if text)

    def statement(self, text: str, ending: str) -> None:
        """Carry out one statement. A name alone is a member of the list around it."""
        if not text and ending == "{":
            raise self.error("a { has no name before it")
        if text:
            tag, word = self.words(text, ending)
            name = (self.scope and f"{self.scope}::") + tag
            if ending == "{":
                self.outer.append(self.scope)
                self.scope = name
            if ending != "{" and tag[:1] == "#":
                self.directive(tag[1:], word or "")
            elif word is not None:
                if (tag, word) == ("", "#clear"):
                    raise self.error("#clear has no name after it")
                self.configuration.set(name, word, self.file, self.begun)
        if ending == "}":
            self.scope = (self.outer or [""]).pop()

    def words(self, text: str, ending: str) -> Tuple[str, Optional[str]]:
        """Return the name and the value of a statement."""
        tag, rest = _quoted_word(text)
        if tag is None:
            raise self.error("a quote or bracket in the name has no end")
        word, after = _c_string(rest)
        if word is None:
            word, after = _quoted_word(rest)
        if after:
            raise self.error(f"there is text after the value: {after}")
        if word is None and ending != "{":
            return "", tag
        return tag, word

    def directive(self, tag: str, word: str) -> None:
        if self.scope:
            raise self.error(f"#{tag} is inside of a scope")
        if tag == "clear":
            self.configuration.clear(word, f"{self.file}:{self.begun}")
        elif tag == "include":
            self.include(word)
        elif tag != "x-apt-configure-index":
            raise self.error(f"there is no directive #{tag}")

    def include(self, name: str) -> None:
        """Read the files that an #include names."""
        if self.depth > _DEEPEST:
            raise self.error("the files include each other too deep")
        path = "/" + name.lstrip("/")  # services have / as their directory
        files = [path]
        if len(name) > 2 and name.endswith("/"):
            files = parts(self.host, path, "conf")
        if self.host.is_dir(path) != name.endswith("/"):
            raise self.error(f"{name} is no file, or no directory with a / at its end")
        if not self.host.exists(path):
            raise self.error(f"{name} does not exist")
        for file in files:
            _AptFile(self.host, self.configuration, file, depth=self.depth + 1).run()

    def error(self, reason: str, line: int = 0) -> AptSyntaxError:
        return AptSyntaxError(f"{self.file}:{line or self.line}: {reason}")


def _without_comments(text: str) -> Iterator[Tuple[int, str]]:
    """Yield the lines that are more than a comment, with their numbers.

    A quote ends with its line. Whether a mark is inside of one is decided for each line, as apt does.
    """
    within = False
    for number, line in enumerate(text.split("\n"), 1):
        line = line.replace("\t", " " * 8).strip(" \f\r\v")
        if within:
            end = line.find("*/")
            if end < 0:
                continue
            line, within = line[end + 2 :], False
        line = _cut(_cut(line, "//"), "#")
        text_before, start = "", line.find("/*")
        while start >= 0:
            if line.count('"', 0, start) % 2:
                start = line.find("/*", start + 2)
                continue
            text_before, end = text_before + line[:start], line.find("*/", start + 2)
            if end < 0:
                line, within = "", True
                break
            line = line[end + 2 :]
            start = line.find("/*")
        if text_before + line:
            yield number, text_before + line


def _cut(line: str, mark: str) -> str:
    """Return a line up to a mark that begins a comment."""
    at = line.find(mark)
    while at >= 0:
        quoted = line.count('"', 0, at) % 2
        if not quoted and not (mark == "#" and line.startswith(_MAGIC, at + 1)):
            return line[:at]
        at = line.find(mark, at + 1)
    return line


def _pieces(fragment: str) -> List[Tuple[str, str]]:
    """Return the parts of a line with the character that ends each. The last one has no end yet."""
    rows, start, quoted = [], 0, False
    for at, char in enumerate(fragment):
        if char == '"':
            quoted = not quoted
        elif char in "{;}" and not quoted:
            rows.append((fragment[start:at], char))
            start = at + 1
    return [*rows, (fragment[start:], "")]


def _quoted_word(text: str) -> Tuple[Optional[str], str]:
    """Return the first word without its quotes, with `%41` as a character, and the rest; None if there is none."""
    at = len(text) - len(text.lstrip(" "))
    if at == len(text):
        return None, text
    while at < len(text) and not text[at].isspace():
        if text[at] in _ENDS:
            at = text.find(_ENDS[text[at]], at + 1)
            if at < 0:
                return None, text
        at += 1
    word = _ESCAPES.sub(lambda match: chr(int(match[1], 16)) if match[1] else "", text[:at])
    return word, text[at:].lstrip()


def _c_string(text: str) -> Tuple[Optional[str], str]:
    """Return the text of strings in quotes that follow each other, and the rest; None if it is another text."""
    rows = _STRINGS.findall(text.strip())
    if not rows or "".join(rows) != text.strip():
        return None, text
    # Blanks between two strings are one blank.
    return "".join(row[1:-1] if row[0] == '"' else " " for row in rows), ""


def moved(configuration: AptConfiguration, usual: Mapping[str, str]) -> List[str]:
    """Return the lines by which apt reads files of other paths than the usual ones, as FILE:LINE (name)."""
    rows = []
    for name, path in usual.items():
        now, setting = configuration.path(name)
        if now == path:
            continue
        if setting is not None:
            rows.append(f"{setting.where} ({setting.name})")
            continue
        above = (name.lower(), "dir::etc", "dir")
        rows += [
            f"{one.where} ({one.setting.name})"
            for one in configuration.clearings
            if one.setting.name.lower() in above
        ][-1:]
    return rows
