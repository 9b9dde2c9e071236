"""Strict reader of the YAML that nvidia-ctk, the CDI libraries and people write specs in.

It reads block and flow collections, plain and quoted scalars on one or more lines, comments, anchors,
aliases and merge keys, and returns the first document of a file, as the CDI libraries do
(sigs.k8s.io/yaml). Anything else (tags, block scalars, complex keys, tabs) raises YamlError: a form that
this module does not know must never look like an empty file.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, NoReturn, Optional, Tuple


class YamlError(ValueError):
    """A form that cannot be read. `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


_KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s"'#\[\]{},&*!|>%@`?:-][^:]*?(?::\S[^:]*?)*?)\s*:(?:\s+(.*))?$"""
)
_INTEGER = re.compile(r"[-+]?(?:0o?[0-7]+|0x[0-9a-fA-F]+|0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?|[0-9]+[eE][-+]?[0-9]+)\Z")
_LONGEST_NUMBER = 100  # characters
_DEEPEST = 120  # a spec has 30 columns at most, and Python limits the recursion
_WORDS: Dict[str, Any] = {"~": None, "null": None}
_WORDS.update(dict.fromkeys(("true", "yes", "on"), True))
_WORDS.update(dict.fromkeys(("false", "no", "off"), False))
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b"}


def read(text: str) -> Any:
    """Return the first document of a YAML text. Raises YamlError."""
    return _Reader(text).document()


def _scalar(text: str) -> Any:
    """Return the value of a plain scalar (YAML 1.1, as the CDI libraries read it)."""
    if text[:1] in "+-.0123456789":
        # Python refuses to convert 4,300 digits (sys.set_int_max_str_digits); no number of a spec is as long.
        if len(text) < _LONGEST_NUMBER and _INTEGER.match(text):
            sign, digits = (-1 if text[0] == "-" else 1), text.lstrip("+-")
            if digits[:2] == "0x":
                return sign * int(digits, 16)
            return sign * int(digits.replace("0o", ""), 8 if digits[0] == "0" else 10)
        if _FLOAT.match(text):
            return float(text)
        return text
    word = text.lower()
    if word in _WORDS and text in (word, word.title(), word.upper()):
        return _WORDS[word]
    return text


class _Reader:
    def __init__(self, text: str) -> None:
        self.lines = text.lstrip("\ufeff").split("\n")
        self.at, self.end = 0, len(self.lines)
        self.line = 1  # that is being read, counted from 1
        self.anchors: Dict[str, Any] = {}
        # The flow collection or quoted scalar that is being read, and the place in it.
        self.flow, self.place = "", 0

    def fail(self, message: str, line: int = 0) -> NoReturn:
        raise YamlError(message, line or self.line)

    def document(self) -> Any:
        line = self.peek(start=True)
        value = self.block(0)
        line = self.peek()
        if line is not None:
            self.fail(f"is no part of what is before it: {line[1][:40]}")
        return value

    def peek(self, start: bool = False) -> Optional[Tuple[int, str]]:
        """Return indentation and content of the next line that has any; None at the end of the document."""
        while self.at < self.end:
            line = self.lines[self.at]
            content = line.strip()
            if content and content[0] != "#":
                self.line = self.at + 1
                indent = len(line) - len(line.lstrip(" "))
                if line[indent] == "\t":
                    self.fail("a tab indents it")
                if indent or not content.startswith(("---", "...", "%")):
                    return indent, content
                if start and content[0] == "%":
                    pass
                elif start and content.partition(" #")[0].rstrip() == "---":
                    start = False
                elif start and content[:3] == "---" and content[3:].lstrip()[:1] in ("[", "{"):
                    self.lines[self.at] = content[3:].lstrip()
                    return 0, self.lines[self.at]
                elif content[:3] in ("---", "...") and content[3:4] in ("", " "):
                    if start:
                        self.fail("a document that begins behind its mark is not read")
                    self.end = self.at
                    return None
                else:
                    return indent, content
            self.at += 1
        return None

    def block(self, least: int) -> Any:
        """Return the node of the next lines, which are indented by `least` columns or more; None if there is none."""
        line = self.peek()
        if line is None or line[0] < least:
            return None
        indent, content = line
        if indent > _DEEPEST:
            self.fail(f"more than {_DEEPEST} columns deep")
        if _is_item(content):
            return self.sequence(indent)
        if content[0] not in "[{" and self.key(content) is not None:
            return self.mapping(indent)
        self.at += 1
        return self.value(content, least - 1, False)

    @staticmethod
    def key(content: str) -> Optional[Tuple[str, str]]:
        """Return the key of a line and the text of its value; None if the line has no key."""
        name, colon, rest = content.partition(": ")
        if colon and name.isalnum():
            return name, rest
        if not colon and name[:-1].isalnum() and name[-1] == ":":
            return name[:-1], ""
        match = _KEY.match(content)
        if match is None:
            return None
        name = match[1]
        if name[0] == "'":
            name = name[1:-1].replace("''", "'")
        elif name[0] == '"':
            name = _unescaped(name[1:-1])
        return name, match[2] or ""

    def mapping(self, indent: int) -> Dict[str, Any]:
        result: Dict[str, Any] = {}
        merged: List[Any] = []
        line, at = self.peek(), 0
        while line is not None and line[0] >= indent:
            pair = self.key(line[1]) if line[0] == indent else None
            if pair is None:
                self.fail(f"is no key at the column of the keys before it: {line[1][:40]}")
            name, rest = pair
            if name in result:
                self.fail(f'the key "{name}" is there twice')
            self.at += 1
            value = self.value(rest, indent, True)
            if name == "<<":
                at = self.line
                merged += value if isinstance(value, list) else [value]
            else:
                result[name] = value
            line = self.peek()
        for base in merged:
            if not isinstance(base, dict):
                self.fail("<< is followed by no mapping", at)
            result = {**base, **result}
        return result

    def sequence(self, indent: int) -> List[Any]:
        result: List[Any] = []
        line = self.peek()
        while line is not None and line[0] == indent and _is_item(line[1]):
            rest = line[1][1:].lstrip()
            if not rest or rest[0] == "#":
                self.at += 1
            else:  # what follows the hyphen is a line of its own, at its column
                self.lines[self.at] = " " * (indent + len(line[1]) - len(rest)) + rest
            result.append(self.block(indent + 1))
            line = self.peek()
        return result

    def value(self, rest: str, indent: int, in_mapping: bool) -> Any:
        """Return the value that begins with `rest`, of a key or an item at the column `indent`."""
        rest, anchor = rest.lstrip(), ""
        if rest[:1] == "&":
            anchor, _, rest = rest[1:].partition(" ")
            rest = rest.lstrip()
        first = rest[:1]
        if first in ("", "#"):
            line = self.peek()
            value = None
            if line is not None and line[0] > indent:
                value = self.block(indent + 1)
            elif line is not None and in_mapping and line[0] == indent and _is_item(line[1]):
                value = self.sequence(indent)
        elif first in "[{\"'":
            self.flow, self.place = rest, 0
            value = self.flow_value()
            self.ends()
        elif first == "*":
            value = self.alias(rest[1:].partition(" #")[0].rstrip())
        elif first in "|>!%@`,]}" or rest[:2] == "? ":
            self.fail(f"{first} is not read")
        else:
            value = _scalar(self.unquoted(rest, indent))
        if anchor:
            self.anchors[anchor] = value
        return value

    def ends(self) -> None:
        tail = self.flow[self.place :]
        if tail.strip() and not re.match(r"\s+#", tail):
            self.fail(f"unexpected: {tail.strip()[:40]}")

    def alias(self, name: str) -> Any:
        if name not in self.anchors:
            self.fail(f"no anchor {name}")
        return self.anchors[name]

    def unquoted(self, rest: str, indent: int) -> str:
        text, comment, _ = rest.partition(" #")
        text, began = text.rstrip(), self.line
        while not comment and self.at < self.end:
            line = self.lines[self.at]
            content = line.strip()
            if not content or content[0] == "#":
                after = self.peek()
                if after is not None and after[0] > indent:
                    self.fail("text over several lines with a gap is not read")
                break
            if len(line) - len(line.lstrip()) <= indent:
                break
            more, comment, _ = content.partition(" #")
            text += " " + more.rstrip()
            self.at += 1
        if ": " in text or text[-1:] == ":":
            self.fail(f"a colon in text without quotes: {text[:40]}", began)
        return text

    # -- flow collections and quoted scalars

    def skip(self) -> str:
        """Return the next character of the flow text that is no space and no comment."""
        while True:
            match = re.compile(r"(?:\s|(?<=\s)#[^\n]*)*").match(self.flow, self.place)
            if match:
                self.place = match.end()
            if self.place < len(self.flow):
                return self.flow[self.place]
            self.more()

    def more(self) -> None:
        if self.at >= self.end:
            self.fail("a bracket or a quote is not closed")
        self.flow += "\n" + self.lines[self.at]
        self.at += 1
        self.line = self.at

    def flow_value(self, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            self.fail(f"more than {_DEEPEST} brackets deep")
        first = self.skip()
        if first == "[":
            self.place += 1
            items: List[Any] = []
            while self.skip() != "]":
                items.append(self.flow_value(depth + 1))
                self.separator("]")
            self.place += 1
            return items
        if first == "{":
            self.place += 1
            pairs: Dict[str, Any] = {}
            while self.skip() != "}":
                name = str(self.flow_value())
                if name in pairs:
                    self.fail(f'the key "{name}" is there twice')
                if self.skip() != ":":
                    self.fail(f"no value of the key {name}")
                self.place += 1
                pairs[name] = None
                if self.skip() not in ",}":
                    pairs[name] = self.flow_value(depth + 1)
                self.separator("}")
            self.place += 1
            return pairs
        if first in "\"'":
            return self.quoted(first)
        if first == "&":
            anchor = self.words()[1:].partition(" ")
            if anchor[2]:
                self.fail("an anchor on a plain scalar in brackets is not read")
            self.anchors[anchor[0]] = value = self.flow_value(depth + 1)
            return value
        if first in "!|>%@`":
            self.fail(f"{first} is not read here")
        text = self.words()
        while self.skip() not in ",[]{}:#":
            text += " " + self.words()
        if first == "*":
            return self.alias(text[1:])
        return _scalar(text)

    def words(self) -> str:
        """Return the plain text at this place, up to the end of the line at most."""
        match = re.compile(r"(?:[^,\[\]{}\n:#]|:(?![\s,\[\]{}]|$)|(?<=\S)#)+").match(
            self.flow, self.place
        )
        if match is None:
            self.fail("unexpected text in brackets")
        self.place = match.end()
        return match.group().strip()

    def separator(self, end: str) -> None:
        after = self.skip()
        if after == ",":
            self.place += 1
        elif after != end:
            self.fail(f"unexpected {after} in brackets")

    def quoted(self, quote: str) -> str:
        form = re.compile(
            r'"((?:[^"\\]|\\.)*)"' if quote == '"' else r"'((?:[^']|'')*)'", re.DOTALL
        )
        match = form.match(self.flow, self.place)
        while match is None:
            self.more()
            match = form.match(self.flow, self.place)
        self.place = match.end()
        text = match[1]
        if "\n" in text:  # a line break is a space, and each further one a line break
            text = re.sub(
                r"(?<!\\)[ \t]*\n(\s*\n)?[ \t]*",
                lambda at: "\n" * at[0].count("\n", 1) or " ",
                text,
            )
        if quote == "'":
            return text.replace("''", "'")
        return _unescaped(text)


def _is_item(content: str) -> bool:
    return content[0] == "-" and content[1:2] in ("", " ")


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text

    def one(match: Any) -> str:
        code = match[1]
        if len(code) > 1 and code[0] in "xu":
            return chr(int(code[1:], 16))
        return "" if code[0] == "\n" else _ESCAPES.get(code, code)

    return re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|\n[ \t]*|.)", one, text, flags=re.DOTALL)
