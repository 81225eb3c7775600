"""flower keys, card, sign, verify: what people do around the runs of a deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedconcord.interface.cli.base import importing, say
from fedconcord.interface.cli.options import option
from fedconcord.support.errors import UserError

app = typer.Typer(rich_markup_mode=None)
JOB = "job.toml"  # in a folder of results, the settings that server and sites compared
Keys = Annotated[str, option("Folder with certificates and keys. [keys]", "DIR")]
Thing = Annotated[str, typer.Argument(help="A folder of results, or one file.", metavar="PATH")]
JobFile = Annotated[str, option("File of the job's settings. [job.toml in the folder]", "FILE")]

app_keys = typer.Typer(
    name="keys", help="Make the certificate of a server and the keys of sites.", rich_markup_mode=None
)
app.add_typer(app_keys)


@app_keys.command("server")
def keys_server(
    host: Annotated[list[str], option("Name or address by which sites reach the server; may be repeated.", "HOST")],
    out: Keys = "keys",
    days: Annotated[int, option("Days that the certificates are valid. [365]", "DAYS")] = 365,
) -> None:
    """Make the certificate of a server. Sites know it by ca.crt, which is made too."""
    from fedconcord_flower import keys

    files = keys.write_server(Path(out), host, days)
    say(f"for every site: {files.authority}")
    say(f"stays on the server: {files.certificate}, {files.key} (nobody else may have it)")


@app_keys.command("site")
def keys_site(
    name: Annotated[str, typer.Argument(help="The site's name.", metavar="NAME")], out: Keys = "keys"
) -> None:
    """Make the key of a site."""
    from fedconcord_flower import keys

    keys.check_names([name])
    path = keys.write_site(Path(out), name)
    say(f"for the server and the other sites: {path.with_suffix('.pub')}, {keys.fingerprints(Path(out))[name]}")
    say(f"stays at the site: {path} (nobody else may have it)")


@app_keys.command("show")
def keys_show(out: Keys = "keys") -> None:
    """Show the fingerprints of the sites' keys in a folder. Sites compare them by another way than the server."""
    from fedconcord_flower import keys

    for name, mark in keys.fingerprints(Path(out)).items():
        say(f"{name} {mark}")


@app_keys.command("rotate")
def keys_rotate(
    name: Annotated[str | None, typer.Argument(help="The site; none for the server.", metavar="[NAME]")] = None,
    out: Keys = "keys",
) -> None:
    """Make the next key of a site or of the server. The present one stays until it is pinned."""
    from fedconcord_flower import rotation

    if name is not None:
        file = rotation.rotate_site(Path(out), name)
        say(f"for the other sites, then for the server: {file}; each runs `fedconcord flower keys accept`")
        say(f"{name} takes its next key when `fedconcord flower site` starts and the server knows it")
        return
    files = rotation.rotate_server(Path(out))
    say(f"for every site, in place of the one that it has: {files.authority}, which has both authorities")
    say("when all have it: `fedconcord flower keys switch`, and start the server again")


@app_keys.command("accept")
def keys_accept(
    file: Annotated[str, typer.Argument(help="A site's NAME.pub.next.", metavar="FILE")], out: Keys = "keys"
) -> None:
    """Pin the next key of a site. The one that is pinned must have signed it."""
    from fedconcord_flower import keys, rotation

    site = rotation.accept(Path(out), Path(file))
    say(f"pinned: {site} {keys.fingerprints(Path(out))[site]}; a server lets in the key before until this one came")


@app_keys.command("switch")
def keys_switch(out: Keys = "keys") -> None:
    """Put the next certificate of the server in place. Sites must have the new ca.crt."""
    from fedconcord_flower import rotation

    files = rotation.switch_server(Path(out))
    say(f"in place: {files.certificate}; start the server again; {files.authority} has its authority alone")


@app_keys.command("revoke")
def keys_revoke(
    name: Annotated[str, typer.Argument(help="The site's name.", metavar="NAME")], out: Keys = "keys"
) -> None:
    """Withdraw the key of a site. A server that runs refuses it from then on."""
    from fedconcord_flower import rotation

    for mark in rotation.revoke(Path(out), name):
        say(f"revoked: {name} {mark}")
    say("run this at the other sites too, for secure sums; a new key of the site comes as NAME.pub, by another way")


@app_keys.command("approver")
def keys_approver(
    name: Annotated[str, typer.Argument(help="Who approves models.", metavar="NAME")], out: Keys = "keys"
) -> None:
    """Make the key with which a person signs models and reports."""
    from fedconcord_flower import keys, signing

    keys.check_names([name])
    secret, public = signing.write_approver(Path(out), name)
    say(f"for who gets models: {public}")
    say(f"stays with {name}: {secret} (nobody else may have it)")


@app.command()
def card(folder: Annotated[str, typer.Argument(help="A folder of results.", metavar="DIR")], job: JobFile = "") -> None:
    """Write MODEL_CARD.md of a run at sites. Its approver reads it and adds to it."""
    with importing():
        from fedconcord_flower.card import write_card
    say(f"card: {write_card(Path(folder), _digest(Path(folder), job))}; read it, add what it is for, then sign")


@app.command()
def sign(
    path: Thing,
    key: Annotated[str, option("The approver's key, NAME.approver.key.", "FILE")],
    approver: Annotated[str, option("Who approves.", "NAME")],
    job: JobFile = "",
) -> None:
    """Sign a model, a report or a folder of results. Statement and signature go beside it."""
    from fedconcord_flower import signing

    with importing():
        digest = _digest(Path(path), job)
    statement = signing.sign(Path(path), Path(key), approver, digest)
    beside = " and ".join(map(str, signing.places(Path(path))))
    say(f"signed: {len(statement.files)} files of job {digest[:12]}; {beside}")


@app.command()
def verify(
    path: Thing,
    key: Annotated[str, option("The approver's public key, NAME.approver.pem.", "FILE")],
    job: Annotated[str, option("File of the settings of the job that it must be of.", "FILE")] = "",
) -> None:
    """Verify who signed a model, a report or a folder. Nothing may be changed since."""
    from fedconcord_flower import signing

    with importing():
        digest = _digest(Path(path), job) if job else None
    it = signing.verify(Path(path), Path(key), digest)
    say(f"{it.approver} signed {len(it.files)} files at {it.time}, none changed since; their job is {it.job}")


@app.command()
def health(
    keys: Keys = "keys",
    server: Annotated[str, option("Address of the server.", "HOST:PORT")] = "",
    site: Annotated[str, option("The site that has to be there.", "NAME")] = "",
    folder: Annotated[str, option("Folder whose disk needs room. [.]", "DIR")] = ".",
    days: Annotated[float, option("Days that certificates have to be valid. [14]", "DAYS")] = 14.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON each.")] = False,
) -> None:
    """Look whether server, sites, certificates and disk are well. The exit code is 1 if one is not."""
    from fedconcord_flower.health import checks

    every = list(checks(Path(keys), server, site, Path(folder), days))
    for check in every:
        say(json.dumps(check._asdict()) if as_json else f"{'ok' if check.ok else 'FAILED'} {check.name}: {check.text}")
    if not all(check.ok for check in every):
        raise typer.Exit(1)


def _digest(path: Path, job: str) -> str:
    """The digest of a job in a file, or in a folder of results.

    Raises:
        UserError: there is no such folder or file, or its settings are wrong.
    """
    from fedconcord.study.settings.resolve import as_toml
    from fedconcord.study.settings.sources import from_file
    from fedconcord_sites.form import source_of
    from fedconcord_sites.policy import job_digest

    if not path.exists():
        raise UserError(f"there is no {path}; name a folder of results, or a file")
    file = Path(job) if job else path / JOB
    if not file.exists():
        raise UserError(f"there is no file {file}; --job names the settings, as job.toml of `fedconcord flower new`")
    return job_digest(source_of(as_toml(from_file(file))))
