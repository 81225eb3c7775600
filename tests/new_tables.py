"""A new table as a trained model meets it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedconcord.federation.data.preprocess import features


def read_features(path: Path, preprocessing: Mapping[str, Any]) -> np.ndarray:
    """Its inputs [n, width]."""
    return np.concatenate([part.x for part in features(path, preprocessing)])
