"""The package's command as a function: `fedconcord.diagnose`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from fedconcord.execution.run.folder import trust as trust_folder
from fedconcord.interface.api import listed, sources_of
from fedconcord.study.options.table import RunOptions

if TYPE_CHECKING:
    from fedconcord_diagnosis.diagnosis_page import Diagnosed


@listed(RunOptions)
def diagnose(
    method: str | None = None,
    *,
    folder: str | Path | None = None,
    trust: bool = False,
    at: Sequence[int] | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[RunOptions],
) -> Diagnosed:
    """Look at chosen rounds of a run, or of settings that are trained for it, and write what makes them hard.

    Args:
        folder: of a run, which is trained again to the same bits; `out` alone may then be given besides.
        trust: import the modules that the folder names, which runs code of who made it.
        at: rounds to look at; the start, a quarter, half and the end if none.
        config: a TOML file of settings.
        settings: any other key, dotted.
        options: settings with a short name, described in `RunOptions`.

    Raises:
        UserError: the folder holds no run, a setting is wrong, or a round lies beyond the last.
    """
    from fedconcord_diagnosis import subject
    from fedconcord_diagnosis.diagnosis_page import diagnosed  # matplotlib

    if trust:
        trust_folder(folder)
    sources = sources_of(diagnose, config, {"method": method, **options}, settings)
    examined_job = subject.of_settings(sources, at) if folder is None else subject.of_run(Path(folder), at, *sources)
    out = options.get("out")
    return diagnosed(examined_job, subject.folder_of(examined_job, None if out is None else str(out)))
