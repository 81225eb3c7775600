"""The example over hosts of their own: network namespaces with the firewalls that `flower new` writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from hostile import kill

SCRIPT = Path(__file__).parents[2] / "examples" / "flower" / "hosts.sh"
UNSHARE = ["unshare", "--map-root-user", "--net", "--mount"]


@pytest.fixture
def alone() -> Iterator[None]:
    """One federation at a time on a machine."""
    with kill.alone():
        yield


@pytest.mark.flower
def test_four_hosts_and_a_stranger(tmp_path: Path, alone: None) -> None:
    """A run, and what the firewalls and the server refuse."""
    missing = [name for name in ("unshare", "nsenter", "ip", "nft") if not which(name)]
    if missing:
        pytest.skip(f"hosts of one machine take {' and '.join(missing)}, which is not there")
    bridge = subprocess.run([*UNSHARE, "ip", "link", "add", "switch", "type", "bridge"], capture_output=True, text=True)
    if bridge.returncode:
        pytest.skip(f"this machine allows no network of its own: {bridge.stderr.strip()}")
    line = [*UNSHARE, "sh", str(SCRIPT), str(tmp_path / "hosts"), sys.executable]
    done = subprocess.run(line, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    lines = done.stdout.splitlines()
    assert lines[-1] == "all as documented"
    assert "a run over four hosts is complete" in lines
    assert sum(one.startswith("not let through: ") for one in lines) == 5
    assert "a site that submits a run is refused" in lines
    assert not [one for one in lines if one.startswith("FAILED")]
