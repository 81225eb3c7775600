"""A stand-in until the core is there."""

from pathlib import Path


class Site:
    def __init__(self, settings: str, data: Path, folder: Path, name: str) -> None:
        self.name, self.data = name, data

    def answer(self, data: bytes) -> bytes:
        return self.name.encode() + b":" + data
