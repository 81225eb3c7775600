"""export, predict: what a trained model is for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from fedconcord.cli.base import app, say
from fedconcord.cli.options import Trust, check_choice, option

Force = Annotated[bool, typer.Option("--force", help="Go on even if the run diverged or its weights are not finite.")]
Client = Annotated[
    str | None,
    option("Client whose model is taken, by name or number, where a run ends with a model per client.", "NAME"),
]
Run = Annotated[str, typer.Argument(help="Folder of a run.", metavar="RUN")]


@app.command()
def export(
    run: Run,
    format: Annotated[str, option("Format of the program: torch (torch.export) or onnx. [torch]", "NAME")] = "torch",
    out: Annotated[str | None, option("File of the program. [RUN/model.pt2 or RUN/model.onnx]", "FILE")] = None,
    force: Force = False,
    client: Client = None,
    trust: Trust = False,
) -> None:
    """Write the model of a run as a program that takes raw inputs."""
    check_choice("--format", format, ("torch", "onnx"))
    from fedconcord.trained import program

    path = program.export(Path(run), cast(program.Kind, format), out, force, client=client, trust=trust)
    say(f"model: {path} (described in {path.name}.json)")


@app.command()
def predict(
    run: Run,
    input: Annotated[
        str, typer.Argument(help="Raw inputs: .npy, .npz, .csv, .parquet or a folder of images.", metavar="INPUT")
    ],
    out: Annotated[str, option("File for the predictions. [predictions.csv]", "FILE")] = "predictions.csv",
    threshold: Annotated[
        float | None,
        option(
            "Probability from which the second of two classes, or a label, is predicted. [the more probable; 0.5]", "P"
        ),
    ] = None,
    force: Force = False,
    client: Client = None,
    trust: Trust = False,
) -> None:
    """Write what the model of a run predicts for new samples."""
    from fedconcord.trained.predict import predict as made

    path = made(Path(run), Path(input), out, force, threshold=threshold, client=client, trust=trust)
    say(f"predictions: {path}")
