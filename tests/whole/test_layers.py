"""Imports go one way between wings and rooms, and no wing grows beyond its budget; a planted violation is found.

`python tests/whole/test_layers.py` prints how many lines each wing has.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedconcord import METHODS

PACKAGES = Path(__file__).parents[2] / "src"
SOURCE = PACKAGES / "fedconcord"


class Wing(NamedTuple):
    """What may be in it says docs/architecture.md."""

    budget: int  # lines at most; a commit that needs more argues for it
    aim: int  # what the budget should become
    rooms: tuple[str, ...] = ()  # from the ground up; none where the wing is a room itself


SIBLINGS = {  # they import the library, and never the reverse; of each other, only Flower's imports the sites'
    # the arena's own table, which new methods stand beside: reading it 95, who beats controls 65, pages 65
    # whether LoSAC is ahead with its rivals at their best: 4
    # points of a grid that end where the best one was at the target, which takes hours off a table's search: 46
    # claims of 2023 to 2025, a recipe: 104; FedLESAM and FedSAM in it: 6
    # points of a grid kept one by one, so that another machine goes on inside it and a longer grid tries the new ones
    # alone: 65
    # bounds judged by seed, values that there cannot be, who missed a target and who diverged, by what a search chose:
    # 45; LoSAC's server as printed, whose forms of equations pages name: 55; a file more for tables: 32
    "fedconcord_papers": Wing(9533, 6200),
    "fedconcord_diagnosis": Wing(2146, 2000),
    "fedconcord_natural": Wing(180, 170),
    "fedconcord_referee": Wing(2680, 2040),  # a ClientApp with its strategy; two mistakes at once
    # sites that know each other: a file of keys, compared before round 0; secure sums of whole numbers, whose bits are
    # refused where the noise says them; models with what is added to their weights
    # sites that take no weight from their server: one list of sizes, told and looked up, and the most that a site may
    # weigh: 100 lines
    # rounds without waiting: 130 lines of the server's half, 45 of a link whose answers come one by one
    # figures of an evaluation in a secure sum: 110 lines of both ends, 95 of its terms, numbers, gate and remarks
    # what became of each order without rounds, from which the simulation comes to the same model: 50 lines
    # classes of tokens: what a site says of them, and how much its samples count, in sums and in weights, bounded by
    # its rows: 94; no figures where a site's noise is its own: 17; persons with several rows: 18
    # models of a site's own: judged under the reply that counted, and kept as a folder that predicts: 70 lines of a
    # file, 45 of who is asked and told what: 117
    # statistics of batch normalisation, an exchange a layer by the messages of an evaluation: 60 lines of their form
    # and of what is said, 45 of the server's half; tokens as weights of secure sums, a second list of numbers: 14
    # edge servers: bundles of frames 45, the root's way and its totals 190, an edge 100, what both import and say 60;
    # two processes of one machine that ask each other 53; in the server's run, with what run.json says of edges, 30.
    # An edge has no ledger, no state on disk and no protocol of its own to a site, which is why sites need no line; 22
    # are the head of a second file
    # edge servers below edge servers: one exchange of any server with what is right below it, the root and an edge
    # alike, with what it says of those below 80; why names are no tree 25; who is above whom, and tiers 25; totals of
    # totals 12; the head of a third file 17; a root that has a model once beside its messages 11
    # secure sums through edge servers: integers that an edge adds, and a second kind of total at the root, 55; which
    # sites are below which, told once, looked at, kept in the ledger and on resume, 55; one way to refuse for both 27
    # gone: a trace of its own, 24
    # servers and sites that lie, a third time: figures that no samples have 32, words and numbers without end 10,
    # policies of sites whose data the job names 8, secret cohorts 5
    "fedconcord_sites": Wing(5278, 2800),
    # keys are shown by fingerprint, and a trial that goes on keeps them; 150 lines of what a job would send
    # messages that are taken as they come: a carrier that knows no Flower, in place of half as much that did; what is
    # said of tokens: 5
    # signatures of models, in files that openssl reads, and a card of a run at sites: 320 lines
    # keys and certificates that are replaced and revoked while a federation stands: 220 lines; who may submit: 100;
    # health: 95; times in logs: 45. Services, log rotation, firewall, proxy and containers are files, not lines of this
    # a card, and a trial's end, of a model that nobody judged: 2; persons: 1; sums of layers in a preview: 4
    # edge servers: SuperLinks of a trial that one function starts, and again where one ends, 75; how edges are named in
    # apps and commands 55; their two halves at Flower 15; a preview of sums below an edge: 7
    # edge servers below others in a trial, from below, and sites that come later below them: 10
    # secret cohorts, and modules of jobs that nobody has listed: 6
    "fedconcord_flower": Wing(3261, 1600),
}
WINGS = {  # folders from the ground up: a wing imports from those before it, a room from those before it in its wing
    "support": Wing(
        # folders of results that are not written over: 11; files that are for their owner's eyes: 4
        1398,
        1000,
    ),  # file and line of an error in somebody else's code: 10 lines, and where it is nobody's or comes of it: 19
    # noise that is what it says, an exact sampler and messages as whole numbers, and why that costs no more: 150 lines
    # compiled steps of second models, of steps inside a step and ahead: 60 lines; steps with noise of their own: 190
    # clients that hold parts of the model, by the ranks of their factors: 110 lines; replies of several rounds: 5
    # mixtures of two models (APFL) on the step that Ditto has: 65 lines; prototypes beside any method's messages: 135
    # a local step of one's own, made a whole training of one's own: 50; step sizes by step, of any form: 35
    # `auto`: duals from round 0 and a hypergradient: 25
    # AdamW, Lion and sign steps in compiled rounds, which took five times as long by torch: 100
    # which replies a round did without: 1
    # noise of a tree, for batches without coins: 40, of which 15 prove what it costs
    # products of compiled steps in vectors, which take two thirds of the time: 75; mixtures (APFL) in them: 30
    # compiled steps that are called by address: 40
    # what methods compute around their steps in one pass over memory, as they are written: 424, of which 85 are
    # LLVM's language and 75 what compiles it, in a process of its own
    # code for the processor of numba's settings, by which tests reach that of others: 11
    # moments of local optimisers that travel, and a direction behind them, which FedAdamW and both
    # FedMuons are made of: 145
    # gradients at a point that is known before the step, in every way to take steps, and FedLESAM of it: 110
    # Muon's steps of long matrices, and products for them: 45, of which 9 were those of objectives; FedVRA's a and d
    # by client: 16; gradients of SVRG and Mime that are whole before a clip and a moment: 18; what meets in one step,
    # said where it cannot: 40, with a file of its own for the order of pieces
    # linear layers of transformers by oneDNN, forwards and backwards, which take half of the time: 47
    # who runs without rounds: FedCM, MFL and server optimisers: 4
    # what a method's sums cannot go with, said by methods and refused in one way: 45
    # noises of steps with keys apart from those of messages and sums: 7
    # what optimisers, compressed uploads and FedExP's rule do not go with: 14
    "method": Wing(13027, 7000, ("contract", "step", "wrappers", "algorithms")),
    "federation": Wing(
        # a clock of events (370 lines with jobs, updates and x^0), servers above servers (140), targets of tokens
        # (265), R between two factors (30); losses (25); coins (40); ranks of clients (25); updates of real time (12)
        # which token is padding in a model's card, and whether the library lets a token look ahead (13); a site's
        # file of rows of tokens (23); sums of features by class (26); in how many rounds a client is at most (29)
        # persons with several rows: an objective whose samples they are (115), whose a row is, in tables or arrays (47)
        # statistics of batch normalisation by client (14)
        # sums of one layer's inputs, and statistics of batch normalisation that others made (17)
        # batches that are parts of a pass, as many at every client, and what privacy accounts batches by (40)
        # factors from a first step (Fed-SB): 41
        # what a clock does until an update, for whoever writes it down; each update is found once, no longer twice: 10
        # convolutions of 5 x 5 with 36 multiplications for 100, which take half of oneDNN's time and a quarter off a
        # round of job B: 525, of which 280 write the code and 130 are shapes and matrices
        # what a linear layer multiplies, which says whether oneDNN's products and a client at a time gain: 8
        # cohorts that a method's sums cannot take, and arrays that nobody reads or that hold no numbers: 25
        # images of more than 8 bits: 11; whether more of a metric of one's own is better: 9; numbers held out: 4
        12489,
        8700,
        ("data", "transformers", "adapters", "layers", "models", "objectives", "partitions", "participation"),
    ),
    # signed keys, and a signed list of who was heard, without which a server needs nobody on its side: 110 lines
    # messages that have what a client holds of the model: 30 lines; orders of earlier models: 20
    # secure sums of something else than a round's contributions, and rounds that nobody could judge: 20
    # what is spent of clients beside samples: 5; clients whose own are statistics alone: 12
    # the form of a total and whose message is far, for totals of edge servers too: 6
    # secure sums of groups of clients, each exchange of which is one of all groups (60), of contributions that somebody
    # else has added up (30), and which clients are whose, with what weights and threshold (35); a sum that is noise: 5
    # what became of each order without rounds, of simulations as of sites, whose 24 lines are gone: 108; several
    # processes without rounds took away 4; rows that are read and written where they lie: 27
    # rows that a checkpoint takes as they lie, in arrays for all clients: half the memory and no copy, 70
    # a run that ends at its target: 3; one that ends with an error: 12, and a damaged run.json: 4
    # pieces that make no step, said before a folder is taken: 10
    # each part of a round is the sum of one message, whatever a server calls it: 5
    # what patience keeps where clients have models of their own, and gradients of rounds without messages: 3
    # bounds on what an answer says and how deep it is nested: 10; models that are shown after their checkpoint: 6
    "execution": Wing(6866, 4900, ("rows", "messages", "engines", "job", "run")),
    # privacy of persons, and what says that epsilon is of a row: 44; of clients beside samples: 35
    # how many nodes of a tree a round spends in: 9; the trace among what looks on at a run: 1
    # a run that ends at its target: 5
    # an oracle that keeps something of every client's: 3
    # the rounds that a run is worth when it begins, by runs that have ended: 12, for which no point of a grid waits
    # models without sizes, numbers of numpy: 3
    # files that settings name, by content: a run goes on with those that it began with, or not at all: 45;
    # versions that have changed since: 12
    "study": Wing(6874, 5300, ("options", "settings", "statistics", "runs", "search")),
    # what a round of each method took, measured: 27 of `advise`
    # means of the clients that a gain is of, and metrics of one's own as they say of themselves: 25
    "insight": Wing(4507, 3900, ("report", "methods", "advice")),
    # predictions of tokens, a row each, without those that have no class: 40 lines
    # what a run added to a folder's weights, as an adapter of peft: 110, with its configuration and what is refused
    # how long work may still take whose runs spare others rounds: 7
    # what follows a run of models of their own: 18; errors of own code, and topics that two registries share: 7
    # files that hold something else than what would replace them: 17; help without a stray backslash: 2
    "interface": Wing(2735, 2200, ("trained", "tracking", "api", "cli")),
    "testing": Wing(1639, 1300),  # checks of any method without rounds: 150 lines
    "root": Wing(210, 200),
}


class Place(NamedTuple):
    """Where a module stands; places are compared as floors."""

    floor: tuple[int, int]  # of the wing, and in it
    wing: str


def place_of(module: str) -> Place | None:
    """Where `execution/run/final_model` stands."""
    wing, _, path = module.partition("/")
    if wing in ("__init__", "__main__"):
        wing = "root"
    room = path.partition("/")[0]
    if wing not in WINGS or (room not in ("", "__init__") and WINGS[wing].rooms and room not in WINGS[wing].rooms):
        return None
    return Place(([*WINGS].index(wing), WINGS[wing].rooms.index(room) if room in WINGS[wing].rooms else 0), wing)


def names_imported(path: Path) -> set[str]:
    """Full names of all that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported(path: Path, source: Path) -> Iterator[str]:
    """Modules of the package that a file imports, as `execution/run/final_model`; what is none of them as it stands."""
    for name in names_imported(path):
        package, *parts = name.split(".")
        if package == "fedconcord" and parts:
            lengths = range(len(parts), 0, -1)
            there = (n for n in lengths if source.joinpath(*parts[:n]).with_suffix(".py").exists())
            yield "/".join(parts[: next(there, len(parts))])


def packages_imported(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in names_imported(path)}


def climbs(source: Path) -> set[tuple[str, str]]:
    """(module, what it imports) where that goes from a room to one above it."""
    found = set()
    for path in sorted(source.rglob("*.py")):
        module = str(path.relative_to(source).with_suffix(""))
        here = place_of(module)
        assert here is not None, f"{path} stands in no wing: give it a room in {__file__}"
        if here.wing != "root":  # which names everything
            there = ((other, place_of(other)) for other in imported(path, source))
            found |= {(module, other) for other, place in there if place is not None and place.floor > here.floor}
    return found


def secrets(source: Path) -> list[str]:
    """Methods that know more than the contract, and engines that know a method."""
    found = []
    for path in sorted(source.rglob("*.py")):
        room = "/".join(path.relative_to(source).parts[:2])
        rooms = {"/".join(module.split("/")[:2]) for module in imported(path, source)}
        known = {f"method/{name}" for name in ("algorithms", "contract", "wrappers")}
        if room == "method/algorithms" and {name for name in rooms - known if not name.startswith("support")}:
            found.append(f"{path} knows more than the contract")
        if room == "execution/engines" and "method/algorithms" in rooms:
            found.append(f"{path} names an algorithm")
    return found


def test_imports_go_one_way() -> None:
    assert climbs(SOURCE) == set()
    assert secrets(SOURCE) == []


def test_the_table_has_no_path_that_is_gone() -> None:
    paths = [SOURCE / wing / room for wing, content in WINGS.items() for room in content.rooms]
    assert [path for path in paths if not (path.is_dir() or path.with_suffix(".py").exists())] == []


def test_a_planted_violation_is_found(tmp_path: Path) -> None:
    for file, text in (
        ("method/algorithms/bad", "def f():\n    from fedconcord.execution.engines import Serial\n"),
        ("execution/engines/bad", "import fedconcord.method.algorithms.fedavg\n"),
        ("method/contract/bad", "from fedconcord.execution import job\n"),
        ("execution/run/final_model", "from fedconcord.study.runs import plan\nimport fedconcord.execution.run.lock\n"),
        ("study/runs/plan", "from fedconcord.execution.run.final_model import final_model\n"),
        ("execution/run/lock", ""),
    ):
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / f"{file}.py").write_text(text)
    assert climbs(tmp_path) == {
        ("method/algorithms/bad", "execution/engines/Serial"),
        ("method/contract/bad", "execution/job"),
        ("execution/run/final_model", "study/runs/plan"),
    }
    text = "\n".join(secrets(tmp_path))
    assert "algorithms/bad.py knows more than the contract" in text
    assert "engines/bad.py names an algorithm" in text


def sizes(source: Path = SOURCE) -> dict[str, int]:
    """Lines of each wing, docstrings and blank lines included."""
    lines = dict.fromkeys(WINGS, 0)
    for path in source.rglob("*.py"):
        here = place_of(str(path.relative_to(source).with_suffix("")))
        assert here is not None, path
        lines[here.wing] += length(path)
    return lines


def sibling_sizes() -> dict[str, int]:
    return {name: sum(map(length, (PACKAGES / name).rglob("*.py"))) for name in SIBLINGS}


def length(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_no_wing_is_larger_than_its_budget() -> None:
    assert {wing: lines for wing, lines in sizes().items() if lines > WINGS[wing].budget} == {}


def test_the_library_is_held_by_one_head() -> None:
    """What a person can know; what grows beyond it is a package beside the library, or goes."""
    # asynchronous rounds: 500 lines of clock, updates and versions; 250 of CA2FL and of checks for any method
    # the plan of a federation's costs: 360 lines of arithmetic, 200 of its command; 80 of signatures in secure
    # sums; 150 of servers above servers; 150 of checks of any method without rounds, yours too
    # A-FedPD without rounds: 75 lines; tables that steps move where they lie: 25; clients that come and go, and a
    # server that gives up on one, without rounds: 50; noise on whole numbers: 150; targets of tokens: 265
    # compiled steps of methods with further gradients: 60; a kernel for the losses that methods ask: 30
    # low-rank factors of different ranks, each client sent its own rows and columns: 165; steps with noise: 395
    # asynchronous rounds over messages: 30 of which orders carry which model, and of updates whose order is not drawn
    # evaluations in secure sums: 30 of sums that are no round's, and of rounds that were not judged
    # gone: fields by their former names, 100; modules by their former paths, 101
    # predictions of tokens, causal models of a folder, a site's file of tokens: 76
    # statistics of batch normalisation whose sums are elsewhere: 18
    # each client answers with a mixture of its model and the server's: 65; prototypes, which all of FedProto is made
    # of with parts that were there: 170; rounds that spend privacy for who is in them: 50
    # persons with several rows, protected with all of them, from tables, arrays and at sites: 205; clients protected
    # beside their samples: 40
    # a local step of one's own, and where in it an error is: 60; step sizes by step: 40
    # statistics of batch normalisation by client (SiloBN, and FedBN, which was refused): 26
    # low-rank factors for who goes on with peft: 110
    # `auto`'s duals from round 0 and its hypergradient: 26
    # privacy of samples without coins, by noise of a tree over equal parts of a pass: 82, and no setting for it
    # local optimisers in compiled rounds: 102; factors from a first step: 41
    # times of rounds in advice: 27
    # secure sums of groups of clients, whose contributions somebody else adds up: 141
    # the trace of simulations without rounds: 117; what advice does not know without rounds: 2
    # products of compiled steps in vectors: 73, and mixtures in them: 30
    # machine code called by its address: 41, for which no process that runs it loads numba (85 MB, a third of a second)
    # sums and products of clients' vectors in one pass over memory, for every method at once: 452
    # convolutions with fewer multiplications, of cnn1, cnn2 and lenet: 536
    # a run that ends at its target, beyond which may be half of a comparison's work: 8
    # moments of local optimisers that travel (FedAdamW, both FedMuons): 141
    # gradients at a point that is known before the step (FedLESAM, alone and with every method): 113
    # the rounds that a run is worth when it begins: 12, and how long that may still take: 7
    # a second reading by strangers, of methods and of commands (above, by room): 191
    # large linear layers of transformers by oneDNN, forwards and backwards, in half of the time: 59; rounds that wait
    # for nobody, of four methods more: 4
    # what sums cannot go with, in methods and samplings: 70; files and folders that are not written over: 32
    # a third reading by strangers: changed files, deep images, keys of noises, versions, and (above, by room): 157
    assert sum(sizes().values()) <= 49_743


def test_no_sibling_is_larger_than_its_budget() -> None:
    assert {name: count for name, count in sibling_sizes().items() if count > SIBLINGS[name].budget} == {}


def strangers(packages: Path) -> list[str]:
    """Files that import a package which they must not know: the library a sibling, or a sibling another one."""
    names = ("fedconcord", *SIBLINGS)
    known = {"fedconcord": set(), **{sibling: {"fedconcord"} for sibling in SIBLINGS}}
    known["fedconcord_flower"].add("fedconcord_sites")
    return [
        f"{path} imports {name}"
        for package in names
        for path in sorted((packages / package).rglob("*.py"))
        for name in sorted((packages_imported(path) & set(names)) - known[package] - {package})
    ]


def test_the_library_knows_no_sibling() -> None:
    """But the list of public names, which says for type checkers where four functions of theirs stand."""
    place = SOURCE / "__init__.py"
    assert strangers(PACKAGES) == [f"{place} imports fedconcord_diagnosis", f"{place} imports fedconcord_papers"]
    text = (SOURCE / "__init__.py").read_text()
    (checked,) = re.findall(r"^if TYPE_CHECKING:\n((?:    .*\n)+)", text, re.MULTILINE)
    assert "    from fedconcord_papers.functions import arena, audit, reproduce\n" in checked
    assert len(re.findall(r"\bimport\b.*\baudit\b", text)) == 1


def test_a_planted_stranger_is_found(tmp_path: Path) -> None:
    for package, line in (
        ("fedconcord", "from fedconcord_papers.recipes import RECIPES"),
        ("fedconcord_papers", "def f():\n    import fedconcord_flower.grid"),
        ("fedconcord_flower", "import fedconcord_sites.site"),
    ):
        (tmp_path / package).mkdir()
        (tmp_path / package / "bad.py").write_text(f"{line}\n")
    text = "\n".join(strangers(tmp_path))
    assert "fedconcord/bad.py imports fedconcord_papers" in text
    assert "fedconcord_papers/bad.py imports fedconcord_flower" in text
    assert "fedconcord_flower/bad.py" not in text


def test_the_library_works_without_its_siblings(tmp_path: Path) -> None:
    """None of its commands imports one, and where they cannot be imported only their own commands are missing."""
    code = f"""
import sys
for name in {tuple(SIBLINGS)}:
    sys.modules[name] = None
from fedconcord.interface.cli import call
def code(line): return call(line.split())
assert code("run --data quadratics --rounds 2 --out {tmp_path / "run"}") == 0
assert code("report {tmp_path / "run"}") == 0
assert code("flower --help") == 0
assert code("flower check") == 2
assert code("audit") == 2
assert code("--help") == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cannot load 'flower' of package fedconcord" in done.stderr
    assert re.search(r"^  audit +Not available", done.stdout, re.MULTILINE)
    assert re.search(r"^  compare +Compare methods", done.stdout, re.MULTILINE)


def test_no_command_of_the_library_imports_a_sibling() -> None:
    for words, packages in (("run --help", set()), ("tune --help", set()), ("reproduce --help", {"fedconcord_papers"})):
        code = (
            "import sys; from fedconcord.interface.cli import call; call(sys.argv[1:]); "
            "print(sorted(name for name in sys.modules if name.startswith('fedconcord_') and '.' not in name))"
        )
        done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == str(sorted(packages)), words


def files_that_name(pattern: str) -> list[str]:
    """Files of all packages with a match."""
    return [str(path.relative_to(PACKAGES)) for path in PACKAGES.rglob("*.py") if re.search(pattern, path.read_text())]


def test_flower_is_imported_in_one_place() -> None:
    """The framework flwr in one file; the package flwr-datasets, which is another, in its own.

    `fedconcord_referee/flower_child.py` is run where a strategy under judgement lives, and loads flwr by name there.
    """
    assert files_that_name(r"(?m)^\s*(from|import) flwr\b") == ["fedconcord_flower/grid.py"]
    assert files_that_name(r"flwr_datasets\.") == ["fedconcord/federation/partitions/own.py"]


def test_method_files_are_short() -> None:
    """About 60 lines of code at most; blank lines, imports and words (docstrings, descriptions, facts) do not count."""
    for path in (SOURCE / "method" / "algorithms").glob("*.py"):
        if path.name == "__init__.py":
            continue
        tree = ast.parse(path.read_text())
        docstrings = set()
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            first = body[0] if isinstance(body, list) and body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1))
            has_words = isinstance(node, ast.keyword) and node.arg in ("facts", "description")
            has_words |= isinstance(node, ast.Call) and getattr(node.func, "id", "") == "about"
            if isinstance(node, ast.Import | ast.ImportFrom) or has_words:
                docstrings |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        code = [
            number
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if line.strip() and not line.strip().startswith("#") and number not in docstrings
        ]
        assert len(code) <= 70, f"{path.name} has {len(code)} lines of code"


def test_no_file_is_long() -> None:
    """A reader takes a file in at once; what grows beyond that has a seam."""
    long = {path: length(path) for path in PACKAGES.rglob("*.py")}
    assert {path: lines for path, lines in long.items() if lines > 400} == {}


def test_insight_knows_no_method_by_name() -> None:
    """Lists, advice, diagnosis and reports read what methods say of themselves; citations are in capitals."""
    methods = "|".join(sorted(METHODS))
    for folder in (SOURCE / "insight", PACKAGES / "fedconcord_diagnosis"):
        for path in folder.rglob("*.py"):
            named = set(re.findall(rf"\b(?:{methods})\b", path.read_text())) - {"auto"}  # an ordinary word too
            assert not named, f"{path} names {named}"


def show() -> None:
    """How large each wing is, beside its budget and what that should become."""
    rows = [(wing, lines, WINGS[wing].budget, WINGS[wing].aim) for wing, lines in sizes().items()]
    rows.append(("fedconcord", *(sum(row[k] for row in rows) for k in (1, 2, 3))))  # type: ignore[misc]
    rows += [(name, lines, SIBLINGS[name].budget, SIBLINGS[name].aim) for name, lines in sibling_sizes().items()]
    print(f"{'':18} {'lines':>7} {'budget':>7} {'aim':>7}")
    for name, *counts in rows:
        print(f"{name:18} " + " ".join(f"{count:7,}" for count in counts))


if __name__ == "__main__":
    show()
