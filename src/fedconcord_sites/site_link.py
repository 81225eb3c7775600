"""The server's way to its sites: what each was asked, answered, refused, and when one is left out.

An answer is refused that is too long, no frame, of another round, run or form, or holds a number that is not finite;
the last two by `RemoteServer` in a round, and here beside the rounds. Nothing that came is ever unpickled. Three
refusals in a row, and the site is asked no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor

from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.execution.messages.server import NOT_FINITE
from fedconcord.execution.messages.way import Hooks, Send
from fedconcord.study.runs.events import Event
from fedconcord.support.errors import UserError
from fedconcord_sites.differences import DifferError
from fedconcord_sites.exchange import Exchange, Flow

IN_A_ROW = 3  # refused answers, until a site is left out
ROUNDS = "rounds"  # what a `RemoteServer` asks
REASONS = 20  # that are counted apart, as a site words some itself
SLACK = 2**20  # bytes of an answer beside its tensors


@dataclass
class Record:
    """What became of one site's answers."""

    asked: int = 0
    missed: int = 0  # no answer came
    refused: dict[str, int] = field(default_factory=dict)  # reason -> answers
    in_a_row: dict[str, int] = field(default_factory=dict)  # refused since the last that was taken, by what was asked
    there: bool = True  # it answered when it was last asked
    stale: int = 0  # replies that came too late for an update
    joined: bool = True  # it took part in the handshake
    left_out: str | None = None  # why
    far: int = 0  # messages that were far longer than the other sites'
    farthest: float = 0.0  # how many times as long as their median, at most
    bytes_in: int = 0
    bytes_out: int = 0


class Joining(Protocol):
    """The handshake of sites that come after round 0 (`late`)."""

    def question(self, site: int) -> bytes: ...

    def heard(self, site: int, data: bytes) -> bool: ...


class SiteLink:
    """Asks sites by their number; the way of a `messages.store.RemoteStore` to them.

    One that has not joined is asked what its handshake needs instead.

    Args:
        wait: seconds for the answers of one exchange.
        most: bytes of an answer's tensors.
    """

    name = "sites"
    elsewhere = "the checkpoint is of a run without sites; resume it with the command that began it"
    tries = 1
    is_simulated = False
    counts: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self,
        sites: Sequence[str],
        run: str,
        exchange: Exchange,
        wait: float,
        see: Callable[[Event], None] | None,
        most: int = 2**26,
    ) -> None:
        self.sites, self.run, self.exchange, self.wait, self.most = tuple(sites), run, exchange, wait, most
        self.method: str | None = run
        self.lasted = self.waited = 0.0  # seconds, of the last exchange and of all
        self.see = see or (lambda event: None)
        self.records = [Record() for _ in sites]
        self.joining: Joining | None = None
        self.number = 0  # of exchanges, which answers beside the rounds are known by
        self.why: dict[int, str] = {}  # refusals of the last exchange
        self.busy: Collection[int] = ()  # sites that work on orders meanwhile, and are asked nothing else
        self.voids = 0  # rounds whose secure sum could not be opened

    def ask(self, messages: Mapping[int, bytes], what: str) -> dict[int, bytes]:
        """One exchange: the answers that came and are frames.

        Args:
            what: is asked; what a site has refused answers in a row of.

        Raises:
            UserError: all sites are left out.
        """
        self.number, self.why = self.number + 1, {}
        active = [name for name, record in zip(self.sites, self.records, strict=True) if record.left_out is None]
        if not active:
            raise UserError(f"no site is left: {'; '.join(r.left_out for r in self.records if r.left_out)}")
        messages = {i: self._question(i, data) for i, data in messages.items()}
        by_name = {self.sites[i]: data for i, data in messages.items() if self.records[i].left_out is None}
        began = time.monotonic()
        answers = self.exchange(by_name, self.wait) if by_name else {}
        self.lasted = time.monotonic() - began
        self.waited += self.lasted
        usable = dict[int, bytes]()
        for i, data in messages.items():
            name = self.sites[i]
            if name in by_name:
                self._sent(i, data)
                answer = self._usable(i, answers.get(name), what)
                usable |= {} if answer is None else {i: answer}
        return usable

    def relay(self, flow: Flow, messages: Mapping[int, bytes], wait: float) -> list[tuple[int, bytes | None]]:
        """Send orders, and return what has ended of these and earlier ones: the answer, or None where no usable one
        came.

        Args:
            wait: seconds that each may take.
        """
        self.number, self.lasted = self.number + 1, wait
        messages = {i: self._question(i, data) for i, data in messages.items()}
        for i, data in messages.items():
            self._sent(i, data)
        ends = flow({self.sites[i]: data for i, data in messages.items()}, wait)
        return [(i, self._usable(i, data, ROUNDS)) for i, data in ((self.sites.index(n), d) for n, d in ends.items())]

    def _sent(self, site: int, data: bytes) -> None:
        record = self.records[site]
        record.asked, record.bytes_out = record.asked + 1, record.bytes_out + len(data)

    def _usable(self, site: int, data: bytes | None, what: str) -> bytes | None:
        """An answer that is a frame, of a site that has joined."""
        record = self.records[site]
        self._presence(site, data is not None)
        if data is None:
            return None
        record.bytes_in += len(data)
        try:
            _check(data, self.most + SLACK)
            if record.joined:
                return data
            self._welcome(site, data)
        except FrameError as wrong:
            self.refuse(site, str(wrong), what)
        return None

    def await_(self, sites: Sequence[str], joining: Joining) -> None:
        """Take these sites for ones that have not joined yet."""
        self.joining = joining
        for record, name in zip(self.records, self.sites, strict=True):
            record.joined = record.there = name not in sites

    def _question(self, site: int, data: bytes) -> bytes:
        return data if self.joining is None or self.records[site].joined else self.joining.question(site)

    def _welcome(self, site: int, data: bytes) -> None:
        """The answer of one that has not joined."""
        assert self.joining is not None
        record, name = self.records[site], self.sites[site]
        try:
            record.joined = self.joining.heard(site, data)
        except DifferError as differ:
            self._leave_out(site, f"{'; '.join(differ.sentences)}; site {name} is left out")
        if record.joined:
            self.see(Event("joined", f"site {name} joins", name))

    def frames(
        self, kind: str, answer_kind: str, fields: Mapping[int, Mapping[str, Any]], tensors: Mapping[str, Tensor]
    ) -> dict[int, Frame]:
        """One exchange beside the rounds: answers of the kind that is answer_kind.

        Args:
            fields: of each site's message.
            tensors: of all messages.
        """
        number = self.number
        answers = {}
        messages = {i: codec.write(Frame(kind, self.run, number, i, one, tensors)) for i, one in fields.items()}
        for i, data in self.ask(messages, kind).items():
            frame = codec.read(data)
            if (frame.kind, frame.method, frame.round, frame.client) != (answer_kind, self.run, number, i):
                self.refuse(i, "an answer to another question", kind)
            elif not all(bool(t.isfinite().all()) for t in frame.tensors.values() if t.is_floating_point()):
                self.refuse(i, NOT_FINITE, kind)
            else:
                answers[i] = frame
        return answers

    def later(self) -> int:
        """A number above those of all exchanges before, also of a server that was killed since its last checkpoint."""
        self.number = max(self.number + 1, time.time_ns() // 10**6)
        return self.number

    def accept(self, site: int, what: str = ROUNDS) -> None:
        """Its answer was what was asked for."""
        self.records[site].in_a_row.pop(what, None)

    def refuse(self, site: int, why: str, what: str = ROUNDS) -> None:
        """Its answer was not; after three in a row it is left out."""
        record, name = self.records[site], self.sites[site]
        reason = why if why in record.refused or len(record.refused) < REASONS else "other reasons"
        record.refused[reason] = record.refused.get(reason, 0) + 1
        record.in_a_row[what] = record.in_a_row.get(what, 0) + 1
        self.why[site] = why
        self.see(Event("refused", f"site {name}: its answer was refused: {why}", name))
        if record.in_a_row[what] >= IN_A_ROW:
            self._leave_out(site, f"site {name} is left out after {IN_A_ROW} refused answers in a row, the last: {why}")

    def _leave_out(self, site: int, why: str) -> None:
        self.records[site].left_out = why
        self.see(Event("left out", why, self.sites[site]))

    def far(self, site: int, times: float) -> None:
        """Its message counts, and is far longer than the others'; said once a site."""
        record, name = self.records[site], self.sites[site]
        if not record.far:
            text = (
                f"site {name}: its message is {times:.3g} times as long as the median of the other sites', and a mean "
                "follows it: look at the site's data and units, or bound what one site can do with aggregate=median or "
                "another rule of `fedconcord list aggregate`"
            )
            self.see(Event("far", text, name))
        record.far, record.farthest = record.far + 1, max(record.farthest, times)

    def void(self, why: str) -> None:
        """A round changed nothing."""
        self.voids += 1
        self.see(Event("void", why))

    def apart(self, why: str) -> None:
        """Some of a round's sites count as absent."""
        self.see(Event("void", why))

    def _presence(self, site: int, there: bool) -> None:
        record, name = self.records[site], self.sites[site]
        record.missed += not there
        if there != record.there:
            record.there = there
            text = f"site {name} answers again" if there else f"site {name} did not answer; waited {self.lasted:.0f} s"
            self.see(Event("back" if there else "missing", text, name))

    # -- as `messages.way.Way` -----------------------------------------------------------------------------------------

    def begin(self) -> Send:
        """As `Way` says; a server that is lost here is lost with its process."""
        return lambda messages, silent: list(self.ask(dict(messages), ROUNDS).items())

    @property
    def hooks(self) -> Hooks:
        """How a `RemoteServer` speaks of sites, and to whom."""
        remedy = "go on with the run (resume) when the site is there again, or use"
        return Hooks(
            lambda i: f"site {self.sites[i]}", remedy, self.accept, self.refuse, self.far, self.void, self.apart
        )

    def write(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """As `Way` says: all that is counted."""
        records = [asdict(record) for record in self.records]
        return {"post": {"number": self.number, "voids": self.voids, "records": records}}, {}

    def restore(self, frame: Frame) -> None:
        """As `Way` says.

        Raises:
            UserError: the checkpoint is of another deployment.
        """
        if frame.method != self.run:
            raise UserError("the checkpoint and deployment.json are of two runs; restore the folder as it was")
        counts = frame.fields["post"]
        self.number, self.voids = int(counts["number"]), int(counts["voids"])
        self.records = [Record(**record) for record in counts["records"]]


def _check(data: bytes, limit: int) -> None:
    """Refuse what is no answer.

    Raises:
        FrameError: why.
    """
    frame = codec.read(data, limit)
    if frame.kind == "refused":
        raise FrameError(
            f"the site refused what it was sent: {str(frame.fields.get('why', 'it does not say why'))[:300]}"
        )
