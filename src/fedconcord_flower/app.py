"""A Flower app in a folder: what `flwr run` submits. Settings, two modules of two lines, and a README for the team."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import fedconcord
from fedconcord.basis.errors import UserError
from fedconcord.basis.files import write_text

PACKAGE = "fedconcord_job"


class Order(NamedTuple):
    """What the server's app is told beside the settings."""

    sites: Sequence[str]  # names under which the sites' keys are registered
    folder: str  # of the results, at the server
    wait: float  # seconds for an answer
    resume: bool  # continue the results in the folder
    events: str  # a file at the server that gets a line a round, or ''
    later: Mapping[str, int] = MappingProxyType({})  # of the sites those that may come after round 0, and their rows


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
    write_text(folder / "README.md", README.format(sites=", ".join(order.sites), first=order.sites[0]))


def later_of(text: str, sites: Sequence[str]) -> dict[str, int]:
    """Sites that may come after round 0, and the rows of their files, of 'NAME=ROWS,...'.

    Raises:
        UserError: it is of another form, or names no site.
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, rows = (word.strip() for word in part.partition("="))
        if not rows.isdecimal() or not int(rows):
            raise UserError(f"a site that comes later is given as NAME=ROWS, as in chur=120, given {part!r}")
        if name not in sites:
            raise UserError(f"{name!r} is to come later and is none of the sites {', '.join(sites)}; name it there too")
        found[name] = int(rows)
    return found


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
"""


README = """# This job on your own sites

Sites: {sites}. The job is `fedconcord_job/job.toml`; server and sites read the same file, and compare what they
make of it before round 0. Change it, and submit again.

## Once
Everybody installs `pip install 'fedconcord[flower]'`, the same version on the server and at the sites.

The server's operator makes the server's certificate, for the name or address by which sites reach it:

    fedconcord flower keys server --host server.example.org --out keys

and gives `keys/ca.crt` to every site. `keys/server.key` stays on the server.

Each site makes its own key and gives `{first}.pub` to the server's operator, who puts it into `keys`. `{first}.key`
never leaves the site:

    fedconcord flower keys site {first} --out keys

## Every time
On the server; one port (8443 here) is open to the sites, for HTTPS:

    fedconcord flower server --keys keys --port 8443

At each site, which opens no port to the outside; it calls the server:

    fedconcord flower site {first} --server server.example.org:8443 --keys keys --data {first}.csv

Submit from anywhere that reaches the server's port; Flower's own settings (`flwr config list` says where) need
`[superlink.team]` with `address = "server.example.org:8443"` and `root-certificates = "/where/it/is/ca.crt"`:

    flwr run . team --stream --run-config check=true   # compares server and sites, trains nothing
    flwr run . team --stream

Results are written at the server, to `folder` of `[tool.flwr.app.config]` in `pyproject.toml`. After the server
went down, start it again, set `resume = true` there and submit again. `later = "{first}=120"` there would begin
without that site and take it in when it comes; 120 is how many rows its file has.

`fedconcord flower site` starts Flower's SuperNode. A team that runs `flower-supernode` itself gives it
`--node-config site.toml` with a file of three lines: `name = "{first}"`, `data = "/data/{first}.csv"`, `folder =
"/data/fedconcord"`, the last for what the site remembers between rounds; and registers the key under the same name
(`flwr supernode register {first}.pub team --name {first}`).

## Who sees what
* The samples and a site's own rows (control variates, dual variables) stay at the site, in `--data` and `--folder`.
* The server sees each site's messages: models or moves, counts, sums of an evaluation. From these, samples can
  sometimes be reconstructed (`fedconcord audit` tries). With `secure.clip` in the job it sees the sum of a round's
  messages alone. It sees which sites are there.
* A site sees the model and what the method broadcasts, nothing of other sites' messages.
* On the way TLS hides everything but amounts and times. A site is let in by its key; the server is known by
  `ca.crt`.
* Whoever reaches the server's port can submit and stop runs: Flower's SuperLink asks no password of operators. Let
  only sites' and operators' addresses reach the port.
* An app is code: a site runs what the operator submits. Flower's `--trusted-entities` lets in signed apps alone.
"""
