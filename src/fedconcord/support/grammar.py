"""Things named in text: `dirichlet(0.1)`, `fedadmm(rho=0.3, start=warm)`; how such a text is read and written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedconcord.support.errors import UserError

Value = Any
"""None, a bool, an int, a float, a str, a `Spec` (a call inside a call) or a list of these."""

NAME = re.compile(r"[A-Za-z0-9_][\w.:/+-]*")
KEY = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
WORD = re.compile(r"[^\s,()\[\]=\"']+")
INTEGER = re.compile(r"[+-]?\d[\d_]*")
COMMA = re.compile(r"[+-]?\d+,\d+")  # 0,1 for 0.1
RANGE = re.compile(r"(\d+)(?:-|\.\.|:)(\d+)")  # 0-4 for 0,1,2,3,4
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Spec:
    """A name with parameters; its text reads back as an equal Spec."""

    name: str
    args: tuple[Value, ...] = ()
    kwargs: Mapping[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [text(value) for value in self.args] + [f"{key}={text(value)}" for key, value in self.kwargs.items()]
        return f"{self.name}({','.join(parts)})" if parts else self.name


def scalar(word: str) -> Value:
    """A bare word as a bool, an int, a float or else a string."""
    if word in ("true", "True"):
        return True
    if word in ("false", "False"):
        return False
    if INTEGER.fullmatch(word):
        return int(word)
    return float(word) if NUMBER.fullmatch(word) else word


def decimal(word: str) -> str:
    """' (did you mean 0.1?)' for 0,1, a number with a decimal comma, or ''."""
    return f" (did you mean {word.replace(',', '.')}?)" if COMMA.fullmatch(word) else ""


def spread(entries: Sequence[Value]) -> str:
    """' (did you mean 0,1,2?)' for a list with the range 0-2 in it, or ''; of ranges that are too long to write too."""
    numbers: list[str] = []
    for entry in entries:
        ends = RANGE.fullmatch(str(entry))
        numbers += map(str, range(int(ends[1]), int(ends[2]) + 1)) if ends else [str(entry)]
    usual = len(entries) < len(numbers) <= 30 and all(map(str.isdecimal, numbers))
    return f" (did you mean {','.join(numbers)}?)" if usual else ""


def text(value: Value) -> str:
    """A value as it is written in a call."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, list | tuple):
        return f"[{','.join(text(v) for v in value)}]"
    if isinstance(value, str) and not (WORD.fullmatch(value) and scalar(value) == value):
        return json.dumps(value, ensure_ascii=False)
    return "none" if value is None else str(value)


class _Reader:
    """Recursive descent over one text."""

    def __init__(self, source: str, what: str) -> None:
        self.source, self.what, self.at = source, what, 0

    def fail(self, why: str) -> UserError:
        return UserError(
            f"cannot read the {self.what} {self.source!r}{decimal(self.source)}: {why}; write it as name, name(0.1) or "
            "name(alpha=0.1, n=2)"
        )

    def skip(self) -> None:
        while self.at < len(self.source) and self.source[self.at].isspace():
            self.at += 1

    def take(self, mark: str) -> bool:
        self.skip()
        is_here = self.source.startswith(mark, self.at)
        self.at += len(mark) * is_here
        return is_here

    def match(self, pattern: re.Pattern[str]) -> str | None:
        self.skip()
        match = pattern.match(self.source, self.at)
        if not match:
            return None
        self.at = match.end()
        return match.group()

    def here(self) -> str:
        """What stands at the place of a mistake."""
        self.skip()
        return f"{self.source[self.at]!r} at character {self.at + 1}" if self.at < len(self.source) else "the end"

    def call(self) -> Spec:
        name = self.match(NAME)
        if name is None:
            raise self.fail(f"a name is missing at {self.here()}")
        return self.arguments(name) if self.take("(") else Spec(name)

    def arguments(self, name: str) -> Spec:
        args: list[Value] = []
        kwargs: dict[str, Value] = {}
        while not self.take(")"):
            before = self.at
            key = self.match(KEY)
            if key is not None and self.take("="):
                if key in kwargs:
                    raise self.fail(f"{key} is given twice")
                kwargs[key] = self.value()
            else:
                self.at = before
                value = self.value()
                if kwargs:
                    raise self.fail(f"{text(value)} without a name comes after a named parameter")
                args.append(value)
            if not self.take(","):
                if not self.take(")"):
                    raise self.fail(f"',' or ')' is missing at {self.here()}")
                break
        return Spec(name, tuple(args), kwargs)

    def value(self) -> Value:
        if self.take("["):
            items: list[Value] = []
            while not self.take("]"):
                items.append(self.value())
                if not self.take(","):
                    if not self.take("]"):
                        raise self.fail(f"',' or ']' is missing at {self.here()}")
                    break
            return items
        self.skip()
        if self.source[self.at : self.at + 1] in ('"', "'"):
            return self.quoted()
        word = self.match(WORD)
        if word is None:
            raise self.fail(f"a value is missing at {self.here()}")
        return self.arguments(word) if NAME.fullmatch(word) and self.take("(") else scalar(word)

    def quoted(self) -> str:
        quote, characters = self.source[self.at], list[str]()
        self.at += 1
        while self.at < len(self.source):
            character = self.source[self.at]
            self.at += 1
            if character == quote:
                return "".join(characters)
            if character == "\\" and self.at < len(self.source):
                character = self.source[self.at]
                self.at += 1
            characters.append(character)
        raise self.fail(f"the quote {quote} is not closed")


def parse(source: str, what: str = "text") -> Spec:
    """Read `name` or `name(0.1, classes=2, message=paper, rho="x", xs=[0, 1])`; `what` names it in the error."""
    reader = _Reader(source, what)
    spec = reader.call()
    reader.skip()
    if reader.at < len(source):
        raise reader.fail(f"unexpected {reader.here()}")
    return spec


def split_list(source: str) -> list[str]:
    """'a,b(c=1,d=2),e' -> ['a', 'b(c=1,d=2)', 'e']: split at commas outside brackets and quotes."""
    parts, depth, quote, skip = [""], 0, "", False
    for character in source:
        if skip:
            skip = False
        elif quote:
            skip = character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "," and depth == 0:
            parts.append("")
            continue
        else:
            depth += (character in "([") - (character in ")]")
        parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def shown(value: Value) -> str:
    """A given value as an error shows it: strings in quotes, so that '1' is not taken for 1."""
    return repr(value) if isinstance(value, str | float) else text(value)


def plain(value: Value) -> Value:
    """A value with calls turned back into text: what a schema sees."""
    if isinstance(value, Spec):
        return str(value)
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of nested tables: 'a.b' -> value. An empty table is a leaf."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def count(name: str, value: object) -> int:
    """A number of things, at least one, which may be written as text.

    Raises:
        UserError: it is none.
    """
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise UserError(f"{name} must be an integer >= 1, given {value!r}")
    return number
