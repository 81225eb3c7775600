"""Fashion-MNIST (Xiao, Rasul, Vollgraf 2017) from its published IDX files, which are MNIST's but for the pictures."""

from __future__ import annotations

from pathlib import Path

from fedconcord.data.dataset import Dataset
from fedconcord.data.folder import usual_folder
from fedconcord.data.mnist import images

PAGE = "https://github.com/zalandoresearch/fashion-mnist"
MEAN, STD = 0.2860, 0.3530
CONTENTS = {  # as MNIST's
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
SYSTEM = Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist
NAMES = [
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
]


def fmnist(folder: Path, seed: int, /) -> Dataset:
    """Fashion-MNIST clothes, 28x28 grey, 10 classes, 60,000 + 10,000 samples; four files in fmnist/.

    Samples are [1, 28, 28], pixels divided by 255, then (x - 0.2860) / 0.3530. The files are read from folder/fmnist,
    gzipped (name ending in .gz, as published) or not; where no data folder is named and the user's own has none of
    them, from Debian's package dataset-fashion-mnist. `seed` is not used.

    Raises:
        UserError: a file is missing, truncated or not in the IDX format.
    """
    places = [folder / "fmnist", *([SYSTEM] if folder == usual_folder() else [])]
    return images("fmnist", places, PAGE, CONTENTS, MEAN, STD, NAMES)
