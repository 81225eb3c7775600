"""A Flower app in a folder: what `flwr run` submits. Settings, two modules of two lines, and a README for the team."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import fedconcord
from fedconcord.support.errors import UserError
from fedconcord.support.files import write_text

PACKAGE = "fedconcord_job"
README = Path(__file__).with_name("app_readme.md")  # its text, with places for the sites
OPERATE = Path(__file__).with_name("operate")


class Order(NamedTuple):
    """What the server's app is told beside the settings."""

    sites: Sequence[str]  # names under which the sites' keys are registered
    folder: str  # of the results, at the server
    wait: float  # seconds for an answer
    resume: bool  # continue the results in the folder
    events: str  # a file at the server that gets a line a round, or ''
    later: Mapping[str, int] = MappingProxyType({})  # of the sites those that may come after round 0, and their rows
    edges: Mapping[str, Sequence[str]] = MappingProxyType({})  # edge server -> the sites and edges right below it
    edge: str = ""  # of an edge server, the folder that it shares with its SuperNode; '' at the root


def write_app(folder: Path, settings: str, order: Order) -> None:
    """Write the app.

    Raises:
        UserError: the folder is there already and is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already; name a new folder for the app")
    (folder / PACKAGE).mkdir(parents=True, exist_ok=True)
    write_text(folder / "pyproject.toml", _project(order))
    write_text(folder / PACKAGE / "job.toml", settings)
    write_text(folder / PACKAGE / "__init__.py", '"""A job of fedconcord as a Flower app."""\n')
    for half, about in (("server", "The server's half"), ("client", "A site's half")):
        text = (
            f'"""{about} of the job in job.toml."""\n\nfrom pathlib import Path\n\n'
            f"from fedconcord_flower.grid import {half}\n\n"
            f'app = {half}(Path(__file__).with_name("job.toml").read_text(encoding="utf-8"))\n'
        )
        write_text(folder / PACKAGE / f"{half}_app.py", text)
    write_text(
        folder / "README.md",
        README.read_text(encoding="utf-8").format(sites=", ".join(order.sites), first=order.sites[0]),
    )


def write_operation(folder: Path, sites: Sequence[str]) -> None:
    """Write what administrators of the server and of sites start from: services, health checks, and the like."""
    folder.mkdir()
    for path in sorted(OPERATE.iterdir()):
        text = path.read_text(encoding="utf-8").replace("__VERSION__", fedconcord.__version__)
        write_text(folder / path.name, text.replace("__SITES__", ", ".join(sites)).replace("__FIRST__", sites[0]))


def later_of(text: str, sites: Sequence[str]) -> dict[str, int]:
    """Sites that may come after round 0, and the rows of their files, of 'NAME=ROWS,...'.

    Raises:
        UserError: it is of another form, or names no site.
    """
    values = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, rows = (word.strip() for word in part.partition("="))
        if not rows.isdecimal() or not int(rows):
            raise UserError(f"a site that comes later is given as NAME=ROWS, as in chur=120, given {part!r}")
        if name not in sites:
            raise UserError(f"{name!r} is to come later and is none of the sites {', '.join(sites)}; name it there too")
        values[name] = int(rows)
    return values


def edges_of(text: str) -> dict[str, list[str]]:
    """Edge servers and the sites and edge servers right below each, of 'NAME=SITE+SITE,...'.

    Raises:
        UserError: it is of another form.
    """
    edges: dict[str, list[str]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, sites = (word.strip() for word in part.partition("="))
        edges[name] = [*edges.get(name, ()), *(site.strip() for site in sites.split("+"))]
        if not name or not all(edges[name]):
            raise UserError(f"an edge server is given as NAME=SITE+SITE, as in north=basel+bern, given {part!r}")
    return edges


def _project(order: Order) -> str:
    return f"""[project]
name = "fedconcord-job"
version = "1.0.0"
description = "A job of fedconcord on a team's own sites"
dependencies = ["fedconcord[flower]=={fedconcord.__version__}"]

[tool.flwr.app]
publisher = "fedconcord"

[tool.flwr.app.components]
serverapp = "{PACKAGE}.server_app:app"
clientapp = "{PACKAGE}.client_app:app"

[tool.flwr.app.config]
sites = {json.dumps(",".join(order.sites))}
folder = {json.dumps(order.folder)}
wait = {float(order.wait)}
resume = {json.dumps(order.resume)}
check = false
events = {json.dumps(order.events)}
later = {json.dumps(",".join(f"{name}={rows}" for name, rows in order.later.items()))}
edges = {json.dumps(",".join(f"{name}={'+'.join(sites)}" for name, sites in order.edges.items()))}
edge = {json.dumps(order.edge)}
"""
