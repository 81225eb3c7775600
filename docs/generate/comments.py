"""For mkdocstrings: what its class or a comment says of a field, its shape and meaning, is its documentation."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import Any

import griffe


def comment_of(lines: list[str]) -> str:
    """The last comment in the lines of a statement; '' if there is none."""
    source = "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source.lstrip()).readline))
    except (tokenize.TokenError, IndentationError):
        return ""
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return comments[-1].lstrip("# ").strip() if comments else ""


def stated(of: Any, name: str) -> str:
    """What the docstring of a class lists of an attribute; '' if nothing."""
    text = of.docstring.value if of is not None and of.docstring is not None else ""
    found = re.search(rf"^    {name}: (.+(?:\n     +.+)*)", text.partition("\nAttributes:\n")[2], re.MULTILINE)
    return "" if found is None else " ".join(found[1].split())


class Comments(griffe.Extension):
    """Gives attributes without a docstring what their class says of them, or their comment."""

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **others: Any) -> None:
        """Called by Griffe for every attribute that it finds."""
        if attr.docstring is not None or not isinstance(node, ast.stmt):
            return
        first, last = node.lineno, node.end_lineno or node.lineno
        text = stated(attr.parent, attr.name) or comment_of(attr.lines_collection[attr.filepath][first - 1 : last])
        if text:
            attr.docstring = griffe.Docstring(text, lineno=first, parent=attr)
