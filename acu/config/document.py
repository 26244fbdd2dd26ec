"""Strict YAML: a file's bytes to plain values, and one value laid over a document.

A subset of YAML 1.2: mappings, sequences and scalars. `true`/`false` alone are booleans (`no` and `off` are text),
numbers with a leading zero are text (a file mode stays `0660`), and what could surprise or explode is refused:
duplicate keys, anchors, aliases, merge keys, tags, documents over a megabyte.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acu.config.fields import Problem
from acu.errors import ConfigError

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1 << 20
MAX_DEPTH = 32

NULL = re.compile(r"^(~|null|Null|NULL|)$")
TRUE = re.compile(r"^(true|True|TRUE)$")
FALSE = re.compile(r"^(false|False|FALSE)$")
INT = re.compile(r"^[-+]?(0|[1-9][0-9]{0,18})$")
FLOAT = re.compile(r"^[-+]?(0|[1-9][0-9]*)?(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?$")


def read_regular(path: Path) -> tuple[bytes, int]:
    """(at most MAX_BYTES and one, st_mode) of a regular file. Never waits: nobody may ever write into a FIFO.

    Raises OSError, also for what is not a regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1), mode
    finally:
        os.close(fd)


def read_document(path: Path) -> tuple[dict[str, Any], dict[str, int], list[Problem]]:
    """(values, line of each path such as `a.b[0].c`, problems) of a file. Raises ConfigError when it is no YAML mapping."""
    try:
        content, _ = read_regular(path)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    if len(content) > MAX_BYTES:
        raise ConfigError([f"{path}: larger than {MAX_BYTES} bytes"])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 at byte {error.start}"]) from error
    builder = _Builder(str(path))
    value = builder.document(text)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise ConfigError([f"{path}: expected sections such as `network:`, found {type(value).__name__}"])
    return value, builder.lines, builder.problems


def parse_value(source: str, text: str, problems: list[Problem]) -> Any:
    """The YAML value in `text`; on bad YAML a problem of `source` is noted and None returned."""
    try:
        builder = _Builder(source)
        value = builder.document(text)
    except ConfigError as error:
        problems.append(Problem(source, str(error).removeprefix(f"{source}: ")))
        return None
    problems += [Problem(source, f"{problem.path}: {problem.message}") for problem in builder.problems]
    return value


def overlay(document: dict[str, Any], path: str, value: Any, origin: str, problems: list[Problem]) -> None:
    """Put `value` at the dotted `path`, making mappings on the way; where that cannot be, note a problem of `origin`."""
    *heads, field = path.split(".")
    for head in heads:
        inner = document.setdefault(head, {})
        if not isinstance(inner, dict):
            problems.append(Problem(origin, f"{head} is not a section"))
            return
        document = inner
    document[field] = value


class _Builder:
    """Builds plain values from YAML's node tree, and notes the line of each."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []

    def document(self, text: str) -> Any:
        import yaml  # only when there is a file or a variable: it costs a start 20 ms

        try:
            self._scan(yaml.scan(text, Loader=yaml.SafeLoader))
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            where = self._at(error.problem_mark) if error.problem_mark else self.source
            raise ConfigError([f"{where}: not YAML: {error.problem}"]) from error
        except yaml.YAMLError as error:
            raise ConfigError([f"{self.source}: not YAML: {' '.join(str(error).split())}"]) from error
        except (ValueError, OverflowError) as error:  # PyYAML's own, for "\\UFFFFFFFF" and for %YAML with 5000 digits
            raise ConfigError([f"{self.source}: not YAML: a number that cannot be"]) from error
        return None if node is None else self._value(node, "")

    def _scan(self, tokens: Iterator[yaml.Token]) -> None:
        """Refuse what is not in the subset before anything is built of it: the builder's time grows with the square."""
        depth = 0
        for token in tokens:
            kind = type(token).__name__.removesuffix("Token")
            if kind in {"Alias", "Anchor", "Tag"}:
                raise ConfigError(
                    [f"{self._at(token.start_mark)}: a YAML {kind.lower()} is not accepted; write it out"]
                )
            depth += kind.endswith("Start") - kind.endswith("End")
            if depth > MAX_DEPTH:
                raise ConfigError([f"{self._at(token.start_mark)}: nested deeper than {MAX_DEPTH} levels"])

    def _value(self, node: yaml.Node, path: str) -> Any:
        kind = type(node).__name__
        if kind == "MappingNode":
            return self._mapping(node, path)
        if kind == "SequenceNode":
            return [self._item(item, f"{path}[{index}]") for index, item in enumerate(node.value)]
        quoted = getattr(node, "style", None) is not None
        return node.value if quoted else plain_scalar(node.value)

    def _item(self, node: yaml.Node, path: str) -> Any:
        self.lines[path] = node.start_mark.line + 1
        return self._value(node, path)

    def _mapping(self, node: yaml.Node, path: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if type(key_node).__name__ != "ScalarNode" or key_node.value == "<<":
                raise ConfigError([f"{self._at(key_node.start_mark)}: a key must be a word"])
            key = key_node.value
            inner = f"{path}.{key}" if path else key
            line = key_node.start_mark.line + 1
            if key in values:
                self.problems.append(Problem(inner, f"given twice, in line {self.lines[inner]} and in line {line}"))
            self.lines[inner] = line
            values[key] = self._value(value_node, inner)
        return values

    def _at(self, mark: Any) -> str:
        return f"{self.source}:{mark.line + 1}"


def plain_scalar(text: str) -> Any:
    """The value of an unquoted scalar."""
    if NULL.match(text):
        return None
    if TRUE.match(text):
        return True
    if FALSE.match(text):
        return False
    if INT.match(text):
        return int(text)
    if FLOAT.match(text) and any(c.isdigit() for c in text):
        return float(text)
    return text
