"""Import this before a peer that imports torchvision.

A torchvision that was built for another torch (a CUDA one beside torch's CPU build) does not find its own compiled
operators, which no job needs, and refuses to be imported for want of them: they are declared here, without a body.
"""

from __future__ import annotations

import re
import sys

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # lives as long as this module

for _ in range(20):
    try:
        import torchvision  # noqa: F401

        break
    except RuntimeError as error:
        missing = re.fullmatch(r"operator torchvision::(\w+) does not exist", str(error))
        if missing is None:
            raise
        LIBRARY.define(f"{missing[1]}(Tensor x) -> Tensor")
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
