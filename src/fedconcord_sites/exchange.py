"""What a transport does for the server: one message to each of some sites, and the answers that came."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Exchange = Callable[[Mapping[str, bytes], float], Mapping[str, bytes]]
"""(message a site, seconds to wait) -> answers that came, by site. One request and one answer a site and call; a site
that did not answer is missing."""

Flow = Callable[[Mapping[str, bytes], float], Mapping[str, bytes | None]]
"""(message a site, seconds that each of them may take) -> what has ended since the last call, of these messages and
earlier ones, in the order that it came: the answer, or None where none came in time. Returns as soon as one has ended.
No site has two messages at a time."""
