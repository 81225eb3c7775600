"""flower keys, card, sign, verify: what people do around the runs of a deployment."""

from __future__ import annotations

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


def _digest(path: Path, job: str) -> str:
    """The digest of a job in a file, or in a folder of results.

    Raises:
        UserError: there is no such file, or its settings are wrong.
    """
    from fedconcord.study.settings.resolve import as_toml
    from fedconcord.study.settings.sources import from_file
    from fedconcord_sites.form import source_of
    from fedconcord_sites.policy import job_digest

    file = Path(job) if job else path / JOB
    if not file.exists():
        raise UserError(f"there is no file {file}; --job names the settings, as job.toml of `fedconcord flower new`")
    return job_digest(source_of(as_toml(from_file(file))))
