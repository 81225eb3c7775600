"""A site with a policy runs nothing of an app: of what a server submits it reads the job's settings, as data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedconcord.support.errors import UserError
from fedconcord_flower.app import PACKAGE

App = Callable[..., Any]  # (message, context) -> the answer
Load = Callable[[str, str, str], App]  # (name, version, digest of an app) -> the app


def as_data(loader: Callable[..., Load], folder_of: Callable[..., Path], client: Callable[[str], App]) -> App:
    """Flower's maker of loaders, but for a site whose node configuration has a policy.

    Args:
        folder_of: (name, version, digest) -> where an app was unpacked.
        client: a site's app, made of the settings of a job.
    """

    def make(**settings: Any) -> Load:
        load = loader(**settings)

        def load_app(name: str, version: str, digest: str) -> App:
            def app(message: Any, context: Any) -> Any:
                if not context.node_config.get("policy"):
                    return load(name, version, digest)(message=message, context=context)
                path = Path(folder_of(name, version, digest)) / PACKAGE / "job.toml"
                try:
                    text = path.read_text(encoding="utf-8")
                except (OSError, ValueError):
                    raise UserError(
                        f"the app has no {PACKAGE}/job.toml, and a site with a policy runs nothing else of an app; "
                        "submit one that `fedconcord flower new` wrote"
                    ) from None
                return client(text)(message=message, context=context)

            return app

        return load_app

    return make
