"""Signatures of models and reports, against who changes a byte, has another key, or shows one for something else."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from shutil import which

import numpy as np
import pytest

from fedconcord.interface.cli.main import call
from fedconcord.study.settings.resolve import as_toml
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from fedconcord_flower import signing
from fedconcord_flower.card import write_card
from fedconcord_sites.form import source_of
from fedconcord_sites.policy import job_digest
from fedconcord_sites.serve import serve
from fedconcord_sites.site import Site

WRITTEN = 'method = "fedavg"\nmodel = "logreg"\nrounds = 1\nclients = 2\nlocal.lr = 0.05\ninput.label = "ill"\n'
JOB = as_toml(from_nested(tomllib.loads(WRITTEN), "job.toml"))  # as an app has it


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run at two sites."""
    folder, draw = tmp_path_factory.mktemp("deployed"), np.random.default_rng(0)
    for name in ("basel", "bern"):
        rows = draw.normal(size=(40, 2))
        lines = [f"{a:.4f},{b:.4f},{int(a > b)}" for a, b in rows]
        (folder / f"{name}.csv").write_text("\n".join(["age,dose,ill", *lines]) + "\n")
    sites = {name: Site(JOB, folder / f"{name}.csv", folder / "sites" / name, name) for name in ("basel", "bern")}

    def exchange(messages: Mapping[str, bytes], wait: float) -> dict[str, bytes]:
        return {name: sites[name].answer(data) for name, data in messages.items()}

    serve(JOB, [*sites], exchange, folder / "run", None, 0.0, False)
    (folder / "run" / "job.toml").write_text(JOB)
    return folder / "run"


@pytest.fixture
def results(deployed: Path, tmp_path: Path) -> Path:
    """A copy that a test may change, and an approver's keys beside it."""
    signing.write_approver(tmp_path, "anna")
    return Path(shutil.copytree(deployed, tmp_path / "run"))


def key(results: Path, name: str = "anna") -> Path:
    return results.parent / f"{name}.approver.key"


def public(results: Path, name: str = "anna") -> Path:
    return key(results, name).with_suffix(".pem")


def test_the_command_writes_a_card_signs_and_verifies(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["flower", "card", str(results)]) == 0
    assert call(["flower", "sign", str(results), "--key", str(key(results)), "--approver", "Anna Moser"]) == 0
    assert (
        call(["flower", "verify", str(results), "--key", str(public(results)), "--job", str(results / "job.toml")]) == 0
    )
    said = capsys.readouterr().out
    digest = job_digest(source_of(JOB))
    assert said.splitlines()[-1].startswith("Anna Moser signed ")
    assert digest in said
    text = (results / "MODEL_CARD.md").read_text()
    for part in (
        digest,
        "| basel | 32 | 8 |",
        "64 training samples",
        "class ill",
        "age, dose",
        "Epsilon: none",
        "| test_accuracy | ",
    ):
        assert part in text
    assert "{" not in text.split("```json")[0].replace(json.dumps(described(results)["algorithm"]), "")
    assert call(["flower", "card", str(results)]) == 2  # somebody may have added to it
    (results / "model.safetensors").write_bytes(b"another")
    assert call(["flower", "verify", str(results), "--key", str(public(results))]) == 2
    assert "run: model.safetensors was changed since Anna Moser signed it at 20" in capsys.readouterr().err


def described(results: Path) -> dict[str, object]:
    config: dict[str, object] = json.loads((results / "run.json").read_text())["config"]
    return config


def test_a_card_says_what_privacy_a_run_had_and_who_was_left_out(results: Path) -> None:
    about = json.loads((results / "run.json").read_text())
    about["privacy"] = {"unit": "sample", "said": "epsilon 3.5 at delta 1e-05 after 1 rounds; clipped"}
    about["config"]["secure"] = {"clip": 4.0}
    about["sites"][1]["left_out"] = "it was refused three times"
    (results / "checksums.json").unlink()
    (results / "run.json").write_text(json.dumps(about))
    text = write_card(results, "0" * 64).read_text()
    for part in (
        "Of one sample: epsilon 3.5 at",
        "the server saw sums of all sites alone",
        "Site bern was left out: it was refused three",
    ):
        assert part in text
    assert "Epsilon: none" not in text


def test_every_changed_byte_is_found(results: Path) -> None:
    signing.sign(results, key(results), "Anna", "0" * 64)
    signing.verify(results, public(results))
    ours = signing.places(results)
    for path in sorted(results.iterdir()):
        whole = path.read_bytes()
        for place in {0, len(whole) // 2, len(whole) - 1}:
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(
                UserError, match=r"statement\.json was changed" if path in ours else f"{path.name} was changed"
            ):
                signing.verify(results, public(results))
        path.write_bytes(whole)
    signing.verify(results, public(results))


def test_files_that_were_added_or_are_missing_are_named(results: Path) -> None:
    signing.sign(results, key(results), "Anna", "0" * 64)
    (results / "model.json").rename(results / "other.json")
    with pytest.raises(UserError, match=r"model\.json is missing; other\.json was added since Anna signed it"):
        signing.verify(results, public(results))


def test_a_signature_of_another_job_key_or_file_is_refused(results: Path) -> None:
    model, other = results / "model.safetensors", results / "other.safetensors"
    signing.sign(model, key(results), "Anna", "1" * 64)
    signing.verify(model, public(results), "1" * 64)
    with pytest.raises(UserError, match=r"was signed for job 111.* and not for 222"):
        signing.verify(model, public(results), "2" * 64)
    signing.write_approver(results.parent, "eve")
    with pytest.raises(UserError, match=r"not signed with the key of .*eve"):
        signing.verify(model, public(results, "eve"))
    with pytest.raises(UserError, match="no approver's public key"):
        signing.verify(model, key(results))
    with pytest.raises(UserError, match="no approver's key"):
        signing.sign(model, public(results), "Anna", "1" * 64)
    shutil.copy(model, other)  # the same bytes under another name, and other bytes
    for first, second in zip(signing.places(model), signing.places(other), strict=True):
        shutil.copy(first, second)
    with pytest.raises(UserError, match=r"model\.safetensors is missing; other\.safetensors was added"):
        signing.verify(other, public(results))
    shutil.copy(results / "model.json", model)
    with pytest.raises(UserError, match=r"model\.safetensors was changed"):
        signing.verify(model, public(results))


def test_words_that_were_signed_elsewhere_are_no_statement(results: Path) -> None:
    """A key that signs other things too: a list, other keys, another kind, the same words in another form."""
    from cryptography.hazmat.primitives import serialization

    secret = serialization.load_pem_private_key(key(results).read_bytes(), None)
    said = signing.sign(results, key(results), "Anna", "0" * 64)
    first, second = signing.places(results)
    loose = json.dumps(said._asdict(), indent=1).encode()
    for words in (b"[]", b'{"approver": "Anna"}', said._replace(kind="release").canonical(), loose, b"\xff"):
        first.write_bytes(words)
        second.write_bytes(secret.sign(words))  # type: ignore[union-attr, call-arg]
        with pytest.raises(UserError, match="is no statement"):
            signing.verify(results, public(results))
    for path in (second, first, public(results)):
        path.unlink()
        with pytest.raises(UserError, match=f"{path.name} cannot be read"):
            signing.verify(results, public(results))


def test_openssl_verifies_it_too(results: Path) -> None:
    if not which("openssl"):
        pytest.skip("openssl is not there")
    signing.sign(results, key(results), "Anna", "0" * 64)
    said, signature = map(str, signing.places(results))
    line = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public(results)), "-rawin", "-in", said]
    done = subprocess.run([*line, "-sigfile", signature], capture_output=True, text=True, check=False)
    assert "Signature Verified Successfully" in done.stdout, done.stderr
    assert key(results).stat().st_mode & 0o077 == 0


def test_what_cannot_be_signed_is_said(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results.parent / "empty").mkdir()
    with pytest.raises(UserError, match="has no file"):
        signing.sign(results.parent / "empty", key(results), "Anna", "0" * 64)
    with pytest.raises(UserError, match="is there already"):
        signing.write_approver(results.parent, "anna")
    (results / "job.toml").unlink()
    assert call(["flower", "sign", str(results), "--key", str(key(results)), "--approver", "Anna"]) == 2
    assert "--job names the settings" in capsys.readouterr().err


def test_what_is_not_there_is_named(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = str(results.parent / "absent")
    for line, why in (
        (
            ["sign", absent, "--key", "k", "--approver", "A"],
            f"there is no {absent}; name a folder of results, or a file",
        ),
        (["card", absent], f"there is no {absent}; name a folder of results, or a file"),
        (["verify", str(results), "--key", absent], f"{absent} cannot be read (No such file or directory); "),
        (
            ["keys", "accept", absent],
            f"{absent} is no NAME.pub.next, which `fedconcord flower keys rotate NAME` writes",
        ),
    ):
        assert call(["flower", *line]) == 2
        assert why in capsys.readouterr().err
