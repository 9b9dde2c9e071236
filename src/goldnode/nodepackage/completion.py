"""Completion scripts of goldnode-node for bash, zsh and fish, written from its command line.

They are static: the program would take a tenth of a second for each press of the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

SHELLS = ("bash", "zsh", "fish")


class Described(Protocol):
    """A command as the manual has it: its words, its paragraphs, and its options with their texts."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> list[str]: ...
    @property
    def options(self) -> list[tuple[str, str]]: ...


@dataclass(frozen=True)
class CompletedOption:
    """An option: its spellings, its text, whether it takes a value, and the values if they are few."""

    flags: tuple[str, ...]
    text: str
    valued: bool
    choices: tuple[str, ...]


@dataclass(frozen=True)
class CompletedCommand:
    """A command below the program: its path (`/follow/status`, the program is ``), text, and options."""

    path: str
    text: str
    options: tuple[CompletedOption, ...]


def commands(entries: Sequence[Described]) -> list[CompletedCommand]:
    """Return the commands of a program from its manual; its own entry comes first."""
    made = []
    for entry in entries:
        path = "".join(f"/{word}" for word in entry.name.split()[1:])
        options = (option for row in entry.options for option in _option(*row))
        made.append(CompletedCommand(path, _short(next(iter(entry.text), "")), tuple(options)))
    return made


def _option(flags: str, text: str) -> Iterator[CompletedOption]:
    spellings = tuple(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", flags))
    if spellings:  # otherwise an argument
        rest = flags.rpartition(spellings[-1])[2].strip()
        choices = re.fullmatch(r"\{([\w,.-]+)\}", rest)
        yield CompletedOption(
            spellings,
            _short(text),
            valued=bool(rest),
            choices=tuple(choices[1].split(",")) if choices else (),
        )


def _short(text: str) -> str:
    """Return the first sentence, without what a shell would expand or take for a quotation mark."""
    line = " ".join(text.split()).partition(". ")[0].rstrip(".")
    return re.sub(r"[`\"\\$]", "", line).replace("'", "")


def _below(all_of_them: Sequence[CompletedCommand], path: str) -> list[CompletedCommand]:
    return [row for row in all_of_them if row.path and row.path.rpartition("/")[0] == path]


def _word(command: CompletedCommand) -> str:
    return command.path.rpartition("/")[2]


def _walk(found: Sequence[CompletedCommand], words: str) -> list[str]:
    """Return the lines that find the command before the cursor, in bash and in zsh alike."""
    known = " | ".join(row.path for row in found if row.path)
    return [
        "    local place= word",
        f"    for word in {words}; do",
        '        case "$place/$word" in',
        f'        {known}) place="$place/$word" ;;',
        "        esac",
        "    done",
    ]


def _values(found: Sequence[CompletedCommand]) -> Iterator[tuple[str, CompletedOption]]:
    """Yield (patterns of `place option`, option) for each option that takes a value."""
    for row in found:
        for option in row.options:
            if option.valued:
                yield " | ".join(f'"{row.path} {flag}"' for flag in option.flags), option


def bash(program: str, found: Sequence[CompletedCommand]) -> str:
    """Return the script for bash. A value without a list is completed as a file name."""
    name = "_" + program.replace("-", "_")
    lines = [f"# Completion of {program} for bash", f"{name}() {{"]
    lines += [
        '    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words= options="-h --help"',
        *_walk(found, '"${COMP_WORDS[@]:1:COMP_CWORD-1}"'),
        "    COMPREPLY=()",
        '    case "$place $before" in',
    ]
    for pattern, option in _values(found):
        reply = ""
        if option.choices:
            reply = f"COMPREPLY=($(compgen -W '{' '.join(option.choices)}' -- \"$current\")); "
        lines.append(f"    {pattern}) {reply}return ;;")
    lines += ["    esac", '    case "$place" in']
    for row in found:
        words = " ".join(_word(below) for below in _below(found, row.path))
        flags = " ".join(flag for option in row.options for flag in option.flags)
        lines.append(f'    "{row.path}") words="{words}" options="$options {flags}" ;;')
    lines += [
        "    esac",
        "    if [[ $current == -* ]]; then words=$options; fi",
        '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        f"complete -o default -F {name} {program}",
    ]
    return "\n".join(lines) + "\n"


def zsh(program: str, found: Sequence[CompletedCommand]) -> str:
    """Return the script for zsh, a function for a directory of `fpath`."""
    name = "_" + program.replace("-", "_")
    lines = [f"#compdef {program}", f"{name}() {{", "    local -a below options"]
    lines += [
        *_walk(found, '"${(@)words[2,CURRENT-1]}"'),
        '    case "$place ${words[CURRENT-1]}" in',
    ]
    for pattern, option in _values(found):
        reply = f"compadd -- {' '.join(option.choices)}" if option.choices else "_files"
        lines.append(f"    {pattern}) {reply}; return ;;")
    lines += ["    esac", '    case "$place" in']
    for row in found:
        below = " ".join(f"'{_word(one)}:{_colons(one.text)}'" for one in _below(found, row.path))
        flags = " ".join(
            f"'{flag}:{_colons(option.text)}'" for option in row.options for flag in option.flags
        )
        lines.append(f'    "{row.path}") below=({below}) options=({flags}) ;;')
    lines += [
        "    esac",
        "    options+=('--help:Show the help of this command')",
        "    if [[ ${words[CURRENT]} == -* ]]; then _describe -o option options; return; fi",
        "    if (( $#below )); then _describe command below; else _files; fi",
        "}",
        f'{name} "$@"',
    ]
    return "\n".join(lines) + "\n"


def _colons(text: str) -> str:
    return text.replace(":", "\\:")


def fish(program: str, found: Sequence[CompletedCommand]) -> str:
    """Return the script for fish. Conditions name the last command before the cursor."""
    name = program.replace("-", "_")
    known = " ".join(row.path for row in found if row.path)
    lines = [
        f"# Completion of {program} for fish",
        f"function __{name}_at",
        '    set -l place ""',  # unset, $place/$word would be no word at all
        "    for word in (commandline -opc)[2..-1]",
        f"        contains -- $place/$word {known}; and set place $place/$word",
        "    end",
        '    test "$place" = "$argv[1]"',
        "end",
    ]
    for row in found:
        at = f"complete -c {program} -n '__{name}_at \"{row.path}\"'"
        below = _below(found, row.path)
        lines += [f"{at} -f -a {_word(one)} -d '{one.text}'" for one in below]
        for option in row.options:
            flags = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                for flag in option.flags
            )
            value = " -r" if option.valued else ""
            if option.choices:
                value = f" -x -a '{' '.join(option.choices)}'"
            lines.append(f"{at} {flags}{value} -d '{option.text}'")
    return "\n".join(lines) + "\n"


def script(shell: str, program: str, entries: Sequence[Described]) -> str:
    """Return the completion script of `program` for one of SHELLS."""
    return {"bash": bash, "zsh": zsh, "fish": fish}[shell](program, commands(entries))
