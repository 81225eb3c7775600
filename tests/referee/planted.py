"""Errors of `tests/mutations.py` that touch a method's equations: how the referee names them.

`python tests/referee/planted.py` plants each and prints what the referee says of it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mutations
from fedconcord_referee import spec, trajectory, verdict

SOURCE = Path(__file__).parents[2] / "src"
RUN = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from fedconcord.execution.engines import Serial
from fedconcord_referee import reference, spec
for file, engine in zip(sys.argv[2::2], sys.argv[3::2]):
    setting = reference.setting_of(spec.read(Path(file)))
    path = reference.walk(setting, Serial() if engine == "serial" else None)
    print(json.dumps({"x": [after.x.tolist() for after in path]}))
"""


class Planted(NamedTuple):
    method: str  # as `fedconcord referee` takes it
    names: tuple[str, ...]  # what the referee may call it
    engine: str = "stacked"
    momentum: float = 0.0


PLANTED = {
    "scaffold: sign flipped": Planted("scaffold", ("sign of the correction",)),
    "scaffold: control variates never stored": Planted("scaffold", ("fedavg", "no correction")),
    "scaffold: c_i starts at the model's weights": Planted("scaffold", ("client's c starts at x^0",)),
    "scaffold: 1/N forgotten": Planted("scaffold", ("1/N left out",)),
    "scaffold: mean over the cohort, not over all": Planted("scaffold", ("memory averaged over the cohort",)),
    "scaffold: full c_i sent, not its change": Planted("scaffold", ("c in full",)),
    "scaffold: K of client 0 for all": Planted("scaffold", ("most steps of the cohort",)),
    "scaffold: divided by the next step size": Planted("scaffold", ("the next step size",)),
    "last client's change only": Planted("scaffold", ("the last client alone",), "serial"),
    "feddyn: sign flipped": Planted("feddyn", ("sign of the correction",)),
    "feddyn: half of the penalty missing": Planted("feddyn", ("no pull",)),
    "feddyn: offset from participants only": Planted("feddyn", ("memory averaged over the cohort",)),
    "fednova: tau_eff cancelled": Planted("fednova", ("harmonic tau_eff",)),
    "fednova: tau_eff left out": Planted("fednova", ("tau_eff left out",)),
    "fednova: models averaged, not moves": Planted("fednova", ("normalised models",)),
    "fednova: no momentum in a_i": Planted("fednova", ("momentum not in the normaliser",), momentum=0.9),
    "fedadmm: one dual for all clients": Planted("fedadmm", ("one y for all clients",)),
    "fedadmm: server's model taken for the client's": Planted("fedadmm", ("the server's model for the client's w",)),
    "fedadmm: duals of the last rho taken for the new one's": Planted(
        "fedadmm(rho=[[0,0.2],[4,0.6]])", ("the last rho for the new one",)
    ),
    "fedprox: pushes away": Planted("fedprox", ("pushed away",)),
    "extrapolation: shorter steps too": Planted("fedexp", ("shorter steps too",)),
    "extrapolation: the factor 2 forgotten": Planted("fedexp", ("the factor 2 forgotten",)),
    "extrapolation: lengths without weights": Planted("fedexp", ("lengths over all clients",)),
    "extrapolation: the answer is the last model": Planted("fedexp", ("answers with server",)),
    "extrapolation: the length of the model": Planted("fedexp", ("lengths of models",)),
    "auto: absent clients' duals stay": Planted("auto", ("absent duals stay",)),
    "auto: own duals measured from the server's model": Planted("auto", ("clients do not hear the step",)),
    "auto: duals in units of models": Planted("auto", ("duals in units of models",)),
    "robust: contributions with their weights": Planted("median", ("divided by S again",)),
    "robust: the centre never moves": Planted("centred_clip(radius=0.3)", ("server's centre not updated",)),
    "losac: phi scaled by N/S": Planted("losac", ("server's phi times N/S",)),
}

ELSEWHERE = {  # errors in methods' folders that the referee has no name for or does not see, and why
    "auto: rows of round 0 stay moves": "of one round: it is another method to the referee, without a name",
    "auto: steps that overshoot grow": "of a factor on step sizes: it is another method to the referee, without a name",
    "auto: no step is too long": "of the local rule of step sizes, which no step here is long enough for",
    "fednova: the sum of unbiased weights counts twice": "of unbiased weights, which no problem here has",
    "fedvra: everybody's a is the first client's": "of a list of a by client, which no problem here has",
    "fedprox as fedvra: N over S, rounded": "of a table of parameters, not of a method",
    "saga: the table's mean against the method's own constant": "of an oracle on blocks, which are drawn at random",
    "lesam: descends in place of climbing": "of an oracle, which is a setting of every method",
    "lesam: the first model stays the last one": "of an oracle, which is a setting of every method",
    "fedex: weights taken to sum to 1": "of low-rank factors, which no problem here has",
    "flora: clients taken to begin with all ranks": "of low-rank factors, which no problem here has",
    **{
        name: why
        for name in mutations.MUTATIONS
        for start, why in {
            "privacy:": "of noise",
            "adaptive clip:": "of noise",
            "own step:": "of training in code of one's own",
            "asynchronous:": "of replies without rounds",
            "proto:": "of features by class, which no problem here has",
            "fedasync:": "of replies without rounds",
            "ca2fl:": "of a method that the referee does not know",
            "shared moments:": "of moments that travel, and the referee judges optimisers without them",
            "FedMuon:": "of moments that travel, and the referee judges optimisers without them",
        }.items()
        if name.startswith(start)
    },
}


def answers_of(names: Sequence[str], folder: Path) -> dict[str, tuple[spec.Spec, trajectory.Trajectory]]:
    """The trajectories of our own methods with these errors in one copy of the package, from a process of its own."""
    target = folder / "src"
    shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns("__pycache__"))
    all_specs, words = [], []
    for k, name in enumerate(names):
        planted, file = PLANTED[name], folder / f"spec-{k}.json"
        all_specs.append(spec.make(planted.method, momentum=planted.momentum))
        spec.write(all_specs[-1], file)
        words += [str(file), planted.engine]
        for path, old, new in mutations.MUTATIONS[name].edits:
            text = (target / "fedconcord" / path).read_text()
            assert text.count(old) == 1, name
            (target / "fedconcord" / path).write_text(text.replace(old, new))
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", RUN, str(target), *words]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    answers = map(json.loads, run.stdout.splitlines())
    return {
        name: (one, trajectory.checked(answer, one, name))
        for name, one, answer in zip(names, all_specs, answers, strict=True)
    }


def main() -> None:
    for name, planted in PLANTED.items():
        with tempfile.TemporaryDirectory() as folder:
            one, got = answers_of([name], Path(folder))[name]
        judged = verdict.judge(one, got)
        ok = "ok" if judged.name in planted.names else "also" if set(judged.also) & set(planted.names) else "WRONG"
        print(f"{ok:6s}{name:55s} {judged.kind:9s} {judged.name!r} {judged.largest:.1e} {judged.also}", flush=True)


if __name__ == "__main__":
    main()
