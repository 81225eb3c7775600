"""A partition written down: figure, table of clients and summary."""

from __future__ import annotations

from pathlib import Path

from fedconcord.basis import files
from fedconcord.federation.describe import PLURAL, Description, summary
from fedconcord.report.figures import partition, to_files
from fedconcord.report.figures.style import styled

MEANING = (
    "Entropy: of a client's shares p_i. Distance: sum over {} of |p_i - p|, p the shares of all clients together, the "
    "earth mover's distance of Zhao et al. (2018); half of it is the total variation."
)


def write_description(folder: Path, description: Description, title: str) -> Path:
    """Write partition.md, partition.png|svg|pdf and clients.csv into a folder; the path of the first.

    clients.csv has a line a client: its number, samples, entropy (bits), distance (0 to 2) and the samples of each
    column.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        forms = to_files(
            partition(
                description.counts.astype(float), description.names, description.sizes.astype(float), description.what
            )
        )
    for suffix, content in forms.items():
        files.write_bytes(folder / f"partition.{suffix}", content)
    header = ["client", "samples", "entropy", "distance", *(f"{description.what} {name}" for name in description.names)]
    rows = zip(description.sizes, description.entropy, description.distance, description.counts, strict=True)
    files.write_csv(
        folder / "clients.csv",
        header,
        [[i, int(n), float(bits), float(far), *map(int, row)] for i, (n, bits, far, row) in enumerate(rows)],
    )
    lines = [f"# {title}", "", "| quantity | value |", "|:--|:--|"]
    lines += [f"| {quantity} | {value} |" for quantity, value in summary(description)]
    lines += ["", "![Clients by what they hold](partition.png)", "", MEANING.format(PLURAL[description.what])]
    lines += ["Each client: `clients.csv`.", ""]
    files.write_text(folder / "partition.md", "\n".join(lines))
    return folder / "partition.md"
