"""Whether a server or a site is well: what a timer or a monitor asks, one line each."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from fedconcord.support.errors import LostError, UserError, sentence
from fedconcord_flower import grid, keys
from fedconcord_flower.nodes import ANSWERS

DAYS = 14  # that a certificate has to be valid
FREE = 1e9  # bytes of the disk


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    text: str


def checks(folder: Path, address: str, site: str, place: Path, days: float = DAYS) -> Iterator[Check]:
    """Look at certificates, disk, server and sites.

    Args:
        folder: of keys.
        address: the server's, host:port; '' asks nobody.
        site: which has to be there; '' for a server, whose sites may be away.
        place: whose disk needs room.
        days: that certificates have to be valid.
    """
    files, now = keys.server_files(folder), datetime.datetime.now(datetime.UTC)
    for path in (files.authority, files.certificate):
        if path == files.certificate and not path.exists():  # at a site
            continue
        try:
            end = max(one.not_valid_after_utc for one in keys.certificates(path))
            rest = (end - now) / datetime.timedelta(days=1)
            yield Check(path.name, rest >= days, f"valid for {rest:.0f} days (`fedconcord flower keys rotate`)")
        except UserError as error:
            yield Check(path.name, False, sentence(error))
    free = shutil.disk_usage(place if place.exists() else Path()).free
    yield Check("disk", free >= FREE, f"{free / 1e9:.1f} GB free at {place}")
    if not address:
        return
    try:
        keys.check_reachable(address, files.authority)
        yield Check("server", True, f"answers at {address}")
        with closing(grid.Control(address, files.authority)) as control:
            contacts = control.contacts()
    except (UserError, LostError) as error:
        yield Check("server", False, sentence(error))
        return
    for name, (state, since) in sorted(contacts.items()):
        if site in ("", name):
            yield Check(f"site {name}", not site or state == ANSWERS, f"{state} since {since or 'its key is known'}")
    if site and site not in contacts:
        yield Check(f"site {site}", False, f"is not known to the server at {address}; was its key revoked?")
