"""The federations of an arena: settings, a role and a target rule, from the package's file or the user's."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from fedconcord.study.settings.resolve import resolve_compare
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import files, grammar, imports
from fedconcord.support.errors import UserError, closest

Role = Literal["choose", "hold", "natural", "natural_hold"]  # the last two need the extra natural
ROLES: tuple[Role, ...] = get_args(Role)
OWN = ("name", "role", "target")  # keys of a federation that are no settings
REFERENCE = "fedavg"
ALWAYS = {  # one thread, so that times compare; clients are not judged one by one, and all samples train
    "engine.threads": 1,
    "validation": "none",
    "eval.clients": False,
}


class Target(NamedTuple):
    """What a method is to reach; what comes of the rule for a metric and a seed is found before others are tuned."""

    value: float  # of the metric that ranks methods; by the reference: a share of its way, in (0, 1]
    by_reference: bool  # that share of the way from the start to where tuned FedAvg ends

    def __str__(self) -> str:
        return f"{REFERENCE}({self.value:g})" if self.by_reference else f"{self.value:g}"


USUAL = Target(0.95, by_reference=True)


class Federation(NamedTuple):
    """A job without methods and seeds."""

    name: str
    role: Role  # may methods be made with it, or are they judged on it only
    target: Target
    settings: Mapping[str, Any]  # as `compare` takes them

    @property
    def folder(self) -> str:
        """Its folder in that of an arena."""
        return files.folder_name(self.name)

    @property
    def nested(self) -> dict[str, Any]:
        """The settings with what all federations share, which its own replace."""
        return {**ALWAYS, **from_nested(self.settings, self.name).values}

    def config(self, methods: Sequence[str]) -> Config:
        """The comparison of some methods.

        Raises:
            UserError: a setting is wrong.
        """
        origin = f"federation {self.name}"
        return resolve_compare(from_nested({**self.nested, "methods": list(methods)}, origin))


def chosen(entries: Sequence[str]) -> list[Federation]:
    """The federations of a list of entries: `all` that need no extra, those of a role, one by name, a TOML file.

    Raises:
        UserError: there is no such entry, a file is wrong, or two federations share a name.
    """
    packaged = read(
        resources.files("fedconcord_papers.arena").joinpath("federations.toml").read_text(encoding="utf-8"), "arena"
    )
    federations: list[Federation] = []
    for entry in entries:
        if entry.endswith(".toml"):
            federations += _file(Path(entry))
        elif entry == "all":
            federations += [federation for federation in packaged if federation.role in ROLES[:2]]
        elif entry in ROLES:
            federations += [federation for federation in packaged if federation.role == entry]
        else:
            matching = [federation for federation in packaged if federation.name == entry]
            if not matching:
                names = ["all", *ROLES, *(federation.name for federation in packaged)]
                raise UserError(
                    f"there is no federation {entry!r}{closest(entry, names)}; give a TOML file of your own or some of "
                    f"{', '.join(names)}"
                )
            federations += matching
    by_folder: dict[str, Federation] = {}
    for federation in federations:
        if by_folder.setdefault(federation.folder.casefold(), federation) != federation:
            raise UserError(f"two federations are called {federation.name!r}; every one needs a name of its own")
    imports.trust(*(federation.settings for federation in by_folder.values()))
    return list(by_folder.values())


def _file(path: Path) -> list[Federation]:
    try:
        federations = read(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UserError(f"cannot read the federations {path}: {why}") from None
    return federations


def read(text: str, origin: str) -> list[Federation]:
    """The federations of a TOML file, a table `[[federation]]` each.

    Raises:
        UserError: it is no such file; which table is wrong, and how.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{origin} is not valid TOML: {str(error).splitlines()[0]}") from None
    listed = tables.pop("federation", None)
    if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed) or tables:
        more = f", given {', '.join(tables)}" if tables else ""
        raise UserError(f"{origin} must hold tables [[federation]] with a name and settings, and nothing else{more}")
    return list(_read(listed, origin))


def _read(listed: Sequence[Mapping[str, Any]], origin: str) -> Iterator[Federation]:
    for number, table in enumerate(listed, 1):
        name = table.get("name")
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or "," in name:
            raise UserError(
                f"federation {number} of {origin} needs a name without commas, as in name = 'ours', given {name!r}"
            )
        where = f"federation {name} ({origin})"
        role = table.get("role", "hold")
        if role not in ROLES:
            raise UserError(f"{where}: role must be one of {', '.join(ROLES)}, given {role!r}")
        settings = {key: value for key, value in table.items() if key not in OWN}
        for key in from_nested(settings, where).values:
            if key in ("method", "methods", "seed", "seeds", "label", "out", "baselines", "track", "eval.target"):
                raise UserError(f"{where}: {key} is the arena's own to say; leave it out")
        yield Federation(name, role, target_of(table.get("target"), where), settings)


def target_of(written: object, where: str) -> Target:
    """A number, `fedavg(share)` or nothing, as it is written.

    Raises:
        UserError: it is something else.
    """
    if written is None:
        return USUAL
    if isinstance(written, int | float) and not isinstance(written, bool):
        return Target(float(written), by_reference=False)
    spec = grammar.parse(written, "target") if isinstance(written, str) else None
    share = spec.args[0] if spec is not None and spec.name == REFERENCE and len(spec.args) == 1 else None
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise UserError(
            f"{where}: target must be a number, or {REFERENCE}(share) with 0 < share <= 1 of the way from the start to "
            f"where tuned FedAvg ends, given {written!r}"
        )
    return Target(float(share), by_reference=True)
