"""The call grammar, the merging of settings, and the sentence for each kind of mistake."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import Field

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, State, advance, start
from fedconcord.federation.data import DATASETS
from fedconcord.federation.models import MODELS
from fedconcord.federation.objectives import PROBLEMS
from fedconcord.federation.participation.work import WORK
from fedconcord.federation.partitions import PARTITIONS
from fedconcord.method.algorithms import METHODS, family, plugins
from fedconcord.method.contract import Oracle
from fedconcord.method.step.sizes import ByStep
from fedconcord.method.step.solver import Solver
from fedconcord.study.settings import parts
from fedconcord.study.settings.job import advise, build
from fedconcord.study.settings.methods import runs
from fedconcord.study.settings.problem import device_of
from fedconcord.study.settings.resolve import resolve_compare, resolve_run
from fedconcord.study.settings.settings import Config, LocalSettings
from fedconcord.study.settings.sources import Source, from_file, from_nested, from_options, keys
from fedconcord.support import factories, files, grammar
from fedconcord.support.errors import UserError
from fedconcord.support.grammar import Spec, parse, split_list
from table import batches_of


def sentence(f: Callable[[], Any]) -> str:
    """The text of the UserError that f raises: one line, one sentence."""
    with pytest.raises(UserError) as caught:
        f()
    text = str(caught.value)
    assert "\n" not in text
    assert not text.endswith(".")
    return text


# -- grammar -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iid", Spec("iid")),
        ("2nn", Spec("2nn")),
        ("iid()", Spec("iid")),
        ("dirichlet(0.1)", Spec("dirichlet", (0.1,))),
        (" f ( 1 , -2.5e-3 , x = true , ) ", Spec("f", (1, -2.5e-3), {"x": True})),
        ("f(message=paper,rho=\"x\",s='a b')", Spec("f", (), {"message": "paper", "rho": "x", "s": "a b"})),
        ("f(xs=[0, 1.5, [a]])", Spec("f", (), {"xs": [0, 1.5, ["a"]]})),
        ("f(.5,False)", Spec("f", (0.5, False))),
        ("f(local.epochs=uniform(1,5))", Spec("f", (), {"local.epochs": Spec("uniform", (1, 5))})),
        (r'f("say \"so\"")', Spec("f", ('say "so"',))),
        ("package.module:make(3)", Spec("package.module:make", (3,))),
    ],
)
def test_calls_are_read_and_written_back(text: str, expected: Spec) -> None:
    assert parse(text) == expected
    assert parse(str(expected)) == expected


@pytest.mark.parametrize("value", [1, 1.0, 1e-5, "1", "true", "none", "a b", 'q"', "", True, [1, "x,y"], 0.1 + 0.2])
def test_values_survive_their_text(value: Any) -> None:
    (found,) = parse(f"f({grammar.text(value)})").args
    assert found == value
    assert isinstance(found, bool) == isinstance(value, bool)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a name is missing at the end"),
        ("f(1", "',' or ')' is missing at the end"),
        ("f(1 2)", "',' or ')' is missing at '2' at character 5"),
        ("f(", "a value is missing at the end"),
        ("f(1))", "unexpected ')' at character 5"),
        ("f(a=1,a=2)", "a is given twice"),
        ("f(a=1,2)", "2 without a name comes after a named parameter"),
        ("f([1,2)", "',' or ']' is missing at ')' at character 7"),
        ("f('x)", "the quote ' is not closed"),
    ],
)
def test_what_cannot_be_read_says_where(text: str, why: str) -> None:
    said = sentence(lambda: parse(text, "method"))
    assert said.startswith("cannot read the method ")
    assert why in said


def test_lists_split_outside_brackets_and_quotes() -> None:
    assert split_list("a, b(c=1,d=[2,3]),e('x,)'),") == ["a", "b(c=1,d=[2,3])", "e('x,)')"]
    assert split_list("") == []


# -- parameters ----------------------------------------------------------------------------------------------------


def factory(
    given: str,
    /,
    alpha: Annotated[float, Field(gt=0, le=1, description="the mixture")] = 0.1,
    steps: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto",
    start: Literal["warm", "server"] = "warm",
    clip: float | None = None,
    weights: Annotated[tuple[float, ...], Field(min_length=1)] = (1.0,),
    exact: bool = False,
) -> dict[str, Any]:
    """Mixtures: a thing for tests.

    Paper, 2020,
    Algorithm 1.

    Raises:
        UserError: never.
    """
    return dict(locals())


def demanding(*, n: Annotated[int, Field(ge=1)]) -> int:
    return n


REGISTRY: dict[str, Callable[..., Any]] = {"mix": factory, "demanding": demanding}


def make(text: str) -> Any:
    return factories.build(REGISTRY, "method", text, "leading")


def test_positions_and_names_fill_the_users_parameters() -> None:
    assert make("mix") == {
        "given": "leading", "alpha": 0.1, "steps": "auto", "start": "warm", "clip": None, "weights": (1.0,),
        "exact": False,
    }  # fmt: skip
    made = make("mix(1, 3, server, weights=[1, 2.5], exact=true, clip=none)")
    assert (made["alpha"], made["steps"], made["start"], made["weights"]) == (1.0, 3, "server", (1.0, 2.5))
    assert made["exact"] is True
    assert made["clip"] is None
    assert isinstance(made["alpha"], float)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mixx", "unknown method 'mixx' (did you mean 'mix'?); known: demanding, mix"),
        (
            "mix(alfa=1)",
            "method mix has no parameter 'alfa' (did you mean 'alpha'?); "
            "it has alpha, steps, start, clip, weights, exact",
        ),
        ("mix(0)", "method mix: alpha must be a number > 0 and <= 1, given 0"),
        ("mix(1.5)", "method mix: alpha must be a number > 0 and <= 1, given 1.5"),
        ("mix(abc)", "method mix: alpha must be a number > 0 and <= 1, given 'abc'"),
        ('mix("0.5")', "method mix: alpha must be a number > 0 and <= 1, given '0.5'"),
        ("mix(true)", "method mix: alpha must be a number > 0 and <= 1, given true"),
        ("mix(steps=true)", "method mix: steps must be an integer >= 1 or auto, given true"),
        ("mix(steps=2.0)", "method mix: steps must be an integer >= 1 or auto, given 2.0"),
        ("mix(start=wram)", "method mix: start must be one of warm, server, given 'wram' (did you mean 'warm'?)"),
        ("mix(exact=1)", "method mix: exact must be true or false, given 1"),
        ("mix(weights=[])", "method mix: weights must be a list of one or more numbers, given []"),
        ("mix(weights=[1,x])", "method mix: weights must be a list of one or more numbers, given [1,x]"),
        ("mix(1,alpha=1)", "method mix: alpha is given twice, as 1 and as 1"),
        (
            "mix(1,2,warm,1,[1],true,7)",
            "method mix takes 6 parameters (alpha, steps, start, clip, weights, exact), "
            "given 7 values: 1, 2, warm, 1, [1], true, 7",
        ),
        ("demanding", "method demanding needs n, an integer >= 1: write demanding(n=...)"),
    ],
)
def test_wrong_parameters(text: str, said: str) -> None:
    assert sentence(lambda: make(text)) == said


def test_options_are_described() -> None:
    found = {option.name: option for option in factories.options(factory)}
    assert "given" not in found
    assert (found["alpha"].values, found["alpha"].meaning) == ("number > 0 and <= 1", "the mixture")
    assert found["steps"].values == "integer >= 1 or auto"
    assert found["start"].values == "one of warm, server"
    assert factories.describe(factory) == ("Mixtures: a thing for tests.", "Paper, 2020, Algorithm 1.")


@pytest.mark.parametrize(
    "registry",
    [METHODS, DATASETS, PROBLEMS, MODELS, PARTITIONS, WORK, *(registry.things for registry in parts.PARTS.values())],
    ids=lambda r: next(iter(r), "paths alone"),
)
def test_every_registered_thing_is_described_and_takes_its_own_defaults(registry: dict[str, Any]) -> None:
    for name, made in registry.items():
        assert factories.describe(made)[0], name
        for option in factories.options(made):
            assert option.meaning, f"{name}.{option.name} has no description"
        if any(option.required for option in factories.options(made)):  # a file, a list for the clients
            continue
        written = Spec(name, (), {o.name: o.default for o in factories.options(made)})
        call = factories.check(registry, "thing", parse(str(written)))
        for option in factories.options(made):
            default = list(option.default) if isinstance(option.default, tuple) else option.default
            assert call.resolved()[option.name] == default


def test_folder_names_are_safe() -> None:
    assert files.folder_name("fedprox(mu=0.1,local.lr=0.05)") == "fedprox-mu=0.1-local.lr=0.05"
    assert files.folder_name("../a b/(x)") == "a-b-x"
    assert files.folder_name("((") == "run"


# -- sources -------------------------------------------------------------------------------------------------------


def options(*sets: str, **named: Any) -> Source:
    """Options as the command gives them: local__lr is --lr."""
    return from_options({k.replace("__", "."): (f"--{k.rpartition('__')[2]}", v) for k, v in named.items()}, sets)


def toml(folder: Path, text: str) -> Source:
    path = folder / "job.toml"
    path.write_text(text)
    return from_file(path)


def test_later_sources_win(tmp_path: Path) -> None:
    file = toml(tmp_path, "rounds = 7\nclients = 20\n[local]\nlr = 0.5\nmomentum = 0.9\n")
    job = resolve_run(file, options("local.lr=.25", rounds=9, local__lr=0.3))
    assert (job.rounds, job.clients, job.local.lr, job.local.momentum) == (9, 20, 0.25, 0.9)
    assert job.local.batch_size == 10  # a default


def test_a_later_rival_replaces_an_earlier_one(tmp_path: Path) -> None:
    file = toml(tmp_path, "methods = ['fedavg', 'fedprox']\nseeds = [1, 2]\n[local]\nepochs = 3\n")
    job = resolve_run(file, options(method="scaffold", seed=5, local__steps="uniform(2,4)"))
    assert (job.method, job.seed, job.local.epochs, job.local.steps) == ("scaffold", 5, None, "uniform(2,4)")
    job = resolve_compare(file, options())
    assert (job.methods, job.seeds, job.local.epochs) == (["fedavg", "fedprox"], [1, 2], 3)


def test_set_reads_toml_and_plain_words() -> None:
    job = resolve_compare(
        options(
            "methods=fedavg,fedprox(mu=1)",
            "seeds=[3, 4]",
            "local.epochs=uniform(1,5)",
            "local.clip=.5",
            "eval.target=0.9",
        )
    )
    assert job.methods == ["fedavg", "fedprox(mu=1)"]
    assert job.seeds == [3, 4]
    assert (job.local.epochs, job.local.clip, job.eval.target) == ("uniform(1,5)", 0.5, 0.9)


def test_none_unsets(tmp_path: Path) -> None:
    assert resolve_run(toml(tmp_path, "[local]\nclip = 1.0\n"), options("local.clip=none")).local.clip is None


def test_a_cohort_that_is_not_given_fits_the_clients() -> None:
    assert resolve_run(options(clients=4)).cohort == 4
    assert resolve_run(options(clients=400)).cohort == 10


def test_the_algorithm_table_and_the_call_are_one() -> None:
    job = resolve_run(options("algorithm.rho=0.5", method="fedadmm(form=paper)"))
    assert job.method == "fedadmm"
    assert job.label == "fedadmm(rho=0.5,form=paper)"
    assert (job.algorithm["rho"], job.algorithm["form"], job.algorithm["server_lr"]) == (0.5, "paper", 1.0)


def test_a_method_has_its_own_local_settings() -> None:
    job = resolve_compare(options(methods="fedavg,scaffold(local.lr=0.05,local.steps=3)", local__epochs=2))
    assert job.methods == ["fedavg", "scaffold(local.steps=3,local.lr=0.05)"]
    one, other = runs(job)
    assert (one.local.epochs, one.local.steps, one.local.lr) == (2, None, 0.1)
    assert (other.local.epochs, other.local.steps, other.local.lr) == (None, 3, 0.05)


def test_runs_are_ordered_by_seed() -> None:
    job = resolve_compare(options(methods="fedavg,fedprox", seeds="3,1"))
    assert [(run.method, run.seed) for run in runs(job)] == [
        ("fedavg", 3), ("fedprox", 3), ("fedavg", 1), ("fedprox", 1)
    ]  # fmt: skip


def test_labels_are_canonical() -> None:
    job = resolve_compare(options(methods="fedprox(0.10),fedprox(weights=size, mu=1.0)"))
    assert job.methods == ["fedprox(mu=0.1)", "fedprox(mu=1,weights=size)"]


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"method": "fedadmm(0.3)", "local__steps": 4, "eval__target": 0.9, "local__clip": 2.0},
        {"sampling": "by_size", "server": "yogi(lr=.05)", "upload": "topk(.2)", "local__oracle": "sam(0.1)"},
        {"data": "quadratics(dim=3)", "clients": 6},
        {"data": "synthetic(0.5)", "clients": 8},
    ],
)
def test_resolved_settings_resolve_to_themselves(named: dict[str, Any]) -> None:
    job = resolve_run(options(**named))
    assert resolve_run(saved(job, "run.json")) == job
    both = resolve_compare(options(methods="fedavg,fedprox(0.5,local.steps=2)", seeds="0,1"))
    assert resolve_compare(saved(both, "compare.json")) == both


def test_a_method_has_its_own_server_optimiser_and_compressor() -> None:
    job = resolve_compare(
        options(
            methods="fedavg,fednova(upload=quantise(8),local.oracle=sam(.2),server=none),fedprox(server=adam)",
            server="momentum(0.5)",
        )
    )
    assert job.methods == [
        "fedavg(server=momentum(beta=0.5))",
        "fednova(server=none,upload=quantise(levels=8),local.oracle=sam(radius=0.2))",
        "fedprox(server=adam)",
    ]
    first, second, third = runs(job)
    assert [run.label for run in (first, second, third)] == job.methods
    assert (first.server, first.upload, first.local.oracle) == ("momentum(beta=0.5)", None, "minibatch")
    assert (second.server, second.upload, second.local.oracle) == (None, "quantise(levels=8)", "sam(radius=0.2)")
    assert third.server == "adam"
    assert resolve_compare(saved(job, "compare.json")) == job
    for run in runs(job):
        assert resolve_run(saved(run, "run.json")) == run
    assert resolve_run(options(method="fedavg(upload=none())")).upload is None


def saved(job: Config, name: str) -> Source:
    return from_nested(json.loads(json.dumps(job.as_dict())), name)


def test_a_methods_own_parameter_goes_before_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(server: Literal["fast", "slow"] = "fast") -> None: ...

    monkeypatch.setattr(plugins, "available", lambda: {"own": own})
    job = resolve_run(options(method="own(server=slow)"))
    assert (job.algorithm, job.server, job.label) == ({"server": "slow"}, None, "own(server=slow)")


def test_a_share_says_the_cohort() -> None:
    job = resolve_run(options(sampling="bernoulli(0.2)", clients=40))
    assert (job.sampling, job.cohort) == ("bernoulli(share=0.2)", 8)
    assert resolve_run(saved(job, "run.json")) == job
    assert resolve_run(options(sampling="bernoulli", clients=40)).cohort == 10


def test_data_with_clients_of_their_own() -> None:
    assert resolve_run(options(data="synthetic(clients=8)")).clients == 8
    job = resolve_run(options(data="synthetic", clients=9))
    assert (job.data, job.clients, job.partition) == ("synthetic(clients=9)", 9, "natural")
    assert resolve_run(options(data="synthetic", clients=9, partition="iid")).partition == "iid"
    job = resolve_run(options(data="quadratics"))
    assert (job.partition, job.model) == (None, None)


# -- sentences -----------------------------------------------------------------------------------------------------

KEYS = "; `fedconcord list settings` shows all keys"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"lr": 1}, f"unknown key 'lr' (--lr) (did you mean 'local.lr'?){KEYS}"),
        ({"local__lr": -1}, "local.lr must be a number > 0 or a rule such as auto, given -1 (--lr)"),
        ({"local__lr": "abc"}, "unknown rule of step sizes 'abc'; known: auto, delta, dog, normed"),
        ({"local__lr": math.nan}, "local.lr must be a number > 0 or a rule such as auto, given nan (--lr)"),
        ({"rounds": 1.5}, "rounds must be an integer >= 1, given 1.5 (--rounds)"),
        ({"rounds": True}, "rounds must be an integer >= 1, given true (--rounds)"),
        (
            {"cohort": 60},
            "cohort 60 (--cohort) is larger than clients 50; give a smaller cohort or more clients",
        ),
        (
            {"local__epochs": 0},
            "local.epochs must be an integer >= 1 or a draw such as uniform(1,5), given 0 (--epochs)",
        ),
        (
            {"local__epochs": "unform(1,5)"},
            f"unknown local work 'unform' (did you mean 'uniform'?); known: {', '.join(sorted(WORK))}",
        ),
        (
            {"local__epochs": 2, "local__steps": 2},
            "local.epochs and local.steps exclude each other (--epochs and --steps); give one of them",
        ),
        ({"eval__target": 1.5}, "eval.target must be a number > 0 and <= 1, given 1.5: it is of accuracy"),
        (
            {"engine__name": "fast"},
            "engine.name must be one of stacked, serial, distributed, wire, given 'fast' (--name)",
        ),
        ({"partition": "dirichlet(-1)"}, "partition dirichlet: alpha must be a number > 0, given -1"),
        ({"model": "3nn"}, f"unknown model '3nn' (did you mean '2nn'?); known: {', '.join(sorted(MODELS))}"),
        (
            {"data": "quadratics", "partition": "iid"},
            "data quadratics brings its own clients and takes no partition, given iid; leave it out",
        ),
        (
            {"data": "quadratics", "eval__target": 0.5},
            "eval.target is an accuracy, which data quadratics does not have; leave it out",
        ),
        (
            {"data": "synthetic(clients=3)", "clients": 5},
            "data synthetic(clients=3) has 3 clients, given clients 5; leave clients out",
        ),
        (
            {"methods": "fedavg,fedprox"},
            "a run takes one method, given 2 (--methods); use fedconcord compare for several",
        ),
        ({"seeds": "0,1"}, "a run takes one seed, given 2 (--seeds); use fedconcord compare for several"),
        (
            {"method": "fedavgg"},
            f"unknown method 'fedavgg' (did you mean 'fedavg'?); known: {', '.join(sorted(METHODS))}",
        ),
        (
            {"method": "fedavg(local.lrr=1)"},
            "method fedavg: unknown key 'local.lrr' (did you mean 'local.lr'?); known: "
            + ", ".join(f"local.{name}" for name in LocalSettings.model_fields),
        ),
        (
            {"server": "momentm(0.9)"},
            "unknown server optimiser 'momentm' (did you mean 'momentum'?); known: adagrad, adam, extrapolation, "
            "momentum, nesterov, sgd, yogi",
        ),
        ({"server": "adam(beta1=1)"}, "server optimiser adam: beta1 must be a number >= 0 and < 1, given 1"),
        ({"server": 3}, "server must be a server optimiser such as momentum(0.9), given 3 (--server)"),
        (
            {"method": "fedavg(upload=quantise(0))"},
            "compressor quantise: levels must be an integer between 1 and 32767, given 0",
        ),
        ({"local__oracle": "sam(0)"}, "gradient oracle sam: radius must be a number > 0, given 0"),
        (
            {"local__solver": "lbgfs"},
            "local.solver must be one of sgd, lbfgs, given 'lbgfs' (did you mean 'lbfgs'?) (--solver)",
        ),
        ({"local__tolerance": 0}, "local.tolerance must be a number > 0 or none, given 0 (--tolerance)"),
        (
            {"sampling": "bernouli"},
            "unknown sampling 'bernouli' (did you mean 'bernoulli'?); known: "
            "bernoulli, by_size, cyclic, everyone, poisson, power_of_choice, uniform, with_replacement",
        ),
        (
            {"sampling": "bernoulli(0.1)", "cohort": 10},
            "sampling bernoulli(share=0.1) draws about 5 of 50 clients, given cohort 10 (--cohort); leave cohort out",
        ),
        (
            {"method": "fedavg(local.lr=-1)"},
            "method fedavg: local.lr must be a number > 0 or a rule such as auto, given -1",
        ),
        (
            {"method": "fedavg(local.steps=1,local.epochs=1)"},
            "method fedavg: local.epochs and local.steps exclude each other; give one of them",
        ),
        (
            {"method": "fedprox(mu=0.1)", "algorithm__mu": 0.2},
            "method fedprox: mu is given twice, as 0.1 and as algorithm.mu = 0.2; give it once",
        ),
        (
            {"engine__name": "serial", "wire__loss": 0.1},
            "wire.loss (--loss) has no effect with engine serial; leave it out, or use engine wire",
        ),
    ],
)
def test_wrong_run(named: dict[str, Any], said: str) -> None:
    assert sentence(lambda: resolve_run(options(**named))) == said


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (
            {},
            "a comparison needs methods: write --methods fedavg,scaffold, or methods = [...] in the settings file; "
            f"known: {', '.join(sorted(METHODS))}",
        ),
        ({"methods": 1.5}, "methods must be a list of methods such as fedavg,fedprox(mu=0.1), given 1.5 (--methods)"),
        ({"methods": ""}, "methods must be a list of methods such as fedavg,fedprox(mu=0.1), given [] (--methods)"),
        (
            {"methods": "fedprox(0.1),fedprox(mu=.1)"},
            "the method fedprox(mu=0.1) is given twice; every method of a comparison must differ",
        ),
        (
            {"methods": "fedavg", "seeds": "1,1"},
            "the seed 1 is given twice; every seed of a comparison must differ",
        ),
        (
            {"methods": "fedavg", "seeds": "1,x"},
            "seeds must be a list of integers >= 0 such as 0,1,2, given [1,x] (--seeds)",
        ),
        (
            {"methods": "fedavg,fedprox", "algorithm__mu": 1},
            "algorithm.mu (--mu) belongs to a single method; for several write the parameters behind each, "
            "as in fedprox(mu=0.1)",
        ),
    ],
)
def test_wrong_comparison(named: dict[str, Any], said: str) -> None:
    assert sentence(lambda: resolve_compare(options(**named))) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cleints = 5", f"unknown key 'cleints' (job.toml) (did you mean 'clients'?){KEYS}"),
        ("[locl]\nlr = 1", f"unknown key 'locl' (job.toml) (did you mean 'local'?){KEYS}"),
        ("[local]\nlearning = 1", f"unknown key 'local.learning' (job.toml) (did you mean 'local.lr'?){KEYS}"),
        ("clients = '5'", "clients must be an integer >= 1, given '5' (job.toml)"),
        ("clients = [5]", "clients must be an integer >= 1, given [5] (job.toml)"),
        ("seeds = 2020-01-01", "seeds must be a list of integers >= 0 such as 0,1,2, given 2020-01-01 (job.toml)"),
        (
            "local = 3",
            f"local is a table of keys ({', '.join(LocalSettings.model_fields)}), given 3 (job.toml)",
        ),
    ],
)
def test_wrong_file(tmp_path: Path, text: str, said: str) -> None:
    assert sentence(lambda: resolve_run(toml(tmp_path, text))) == said


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert sentence(lambda: from_file(tmp_path / "no.toml")).endswith("no.toml: No such file or directory")
    assert "is not valid TOML: " in sentence(lambda: toml(tmp_path, "a = "))
    (tmp_path / "job.toml").write_bytes(b"\xff\xfe")
    assert "is not valid TOML: " in sentence(lambda: from_file(tmp_path / "job.toml"))
    (tmp_path / "job.json").write_text("[1]")
    assert sentence(lambda: from_file(tmp_path / "job.json")).endswith("must hold a table of settings")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("local.lr", "--set needs key=value, given 'local.lr'; write for example --set local.lr=0.05"),
        ("=1", "--set needs key=value, given '=1'; write for example --set local.lr=0.05"),
        ("locl.lr=3", f"unknown key 'locl.lr' (--set) (did you mean 'local.lr'?){KEYS}"),
        ("local.lr='x'", "unknown rule of step sizes 'x'; known: auto, delta, dog, normed"),
    ],
)
def test_wrong_set(setting: str, said: str) -> None:
    assert sentence(lambda: resolve_run(options(setting))) == said


def test_numbers_of_numpy_are_numbers() -> None:
    of = from_nested({"clients": np.int64(4), "local": {"lr": np.float32(0.5)}}, "Python")
    assert of.values == {"clients": 4, "local.lr": 0.5}
    assert [type(value) for value in of.values.values()] == [int, float]


def test_every_key_has_a_meaning() -> None:
    for key, schema in keys().items():
        assert schema.get("description"), key


# -- jobs ----------------------------------------------------------------------------------------------------------


def test_settings_become_a_job() -> None:
    job = build(
        resolve_run(
            options(
                "local.momentum=0.9", "local.weight_decay=0.01", "local.clip=3", "local.lr_decay=0.99",
                "local.step_schedule=step(1, 0.95)", "local.tolerance=1e-3", "local.oracle=svrg",
                "engine.chunk=2", method="fednova(mu=0.1)", data="quadratics(dim=4)", clients=6, cohort=2, seed=3,
                local__steps=4, local__batch_size="full", local__lr=0.2, engine__dtype="float64",
            )
        )
    )  # fmt: skip
    assert job.problem.objective.dim == 4
    assert job.problem.roster.n == 6
    assert job.solver == Solver(
        0.9, 0.01, 3.0, Oracle("svrg"), 1e-3, step_schedule=ByStep("step(every=1,factor=0.95)", lambda k: 0.95**k)
    )
    clipped = build(
        resolve_run(
            options(
                "local.momentum=0.9", "local.nesterov=true", "local.clip_direction=10",
                data="quadratics(dim=4)", clients=6, cohort=2,
            )
        )
    )  # fmt: skip
    assert clipped.solver == Solver(0.9, nesterov=True, clip_direction=10.0)
    assert job.engine == Stacked(2)
    plan = job.schedule.plan(1, job.algorithm, job.problem.roster)
    assert batches_of(job, plan) == [None, None]
    assert plan.steps.tolist() == [4, 4]
    assert plan.lr == 0.2 * 0.99


def test_parts_become_parts_of_the_job() -> None:
    common: dict[str, Any] = {"data": "quadratics(dim=4)", "clients": 6, "cohort": 4, "local__solver": "lbfgs"}
    job = build(resolve_run(options(**common, sampling="bernoulli(0.6)", server="adam", upload="topk(0.25)")))
    state = train_a_round(job)
    assert type(state.server).__name__ == "Served"
    assert job.solver.kind == "lbfgs"
    drawn = {len(job.schedule.plan(t, job.algorithm, job.problem.roster).ids) for t in range(20)}
    assert len(drawn) > 1
    whole = train_a_round(build(resolve_run(options(**common, sampling="bernoulli(0.6)"))))
    assert 0 < state.bytes_up < whole.bytes_up


def train_a_round(job: Job) -> State:
    return advance(job, start(job))


def test_epochs_count_epochs() -> None:
    job = build(
        resolve_run(
            options(
                data="quadratics(blocks=3)",
                clients=4,
                cohort=4,
                local__epochs=2,
                local__batch_size=2,
                engine__name="serial",
            )
        )
    )
    assert isinstance(job.engine, Serial)
    plan = job.schedule.plan(0, job.algorithm, job.problem.roster)
    assert plan.steps.tolist() == [4] * 4


def test_methods_of_a_seed_share_the_problem() -> None:
    job = resolve_compare(options(methods="fedavg,scaffold", seeds="0,1", data="digits", model="logreg", clients=10))
    first, second, third, _ = map(build, runs(job))
    assert first.problem is second.problem
    assert third.problem is not first.problem
    assert first.problem.roster.n == 10


def test_natural_clients() -> None:
    job = build(resolve_run(options(data="synthetic", clients=5, model="logreg")))
    assert job.problem.roster.n == 5
    assert "does not come in clients" in sentence(lambda: resolve_run(options(partition="natural")))


def test_cuda_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = resolve_run(options(engine__device="cuda"))
    assert "torch finds no CUDA device" in sentence(lambda: build(config))
    assert device_of(resolve_run(options(engine__device="auto"))).type == "cpu"


def test_fedvra_outside_its_condition_is_a_warning_with_numbers() -> None:
    """(a + d) eta gamma Q~ of the longest round: 5 epochs of 15 batches."""
    job = {"method": "fedvra(gamma=0.1,a=10,d=6)", "clients": 10, "cohort": 5, "partition": "iid"}
    local = {"epochs": "uniform(1,5)", "batch_size": 10, "lr": 0.1}
    wild = resolve_run(from_nested({**job, "local": local}, "test"))
    left = 16 * (1 - (1 - 0.01) ** (5 * 15))
    with pytest.warns(family.StepSizeWarning, match=f"has {left:.3g} on the left"):
        advise(wild)
    by_client = f"fedvra(gamma={[0.01] * 9 + [0.1]},a={[1] * 9 + [10]},d={[6] * 10})"
    with pytest.warns(family.StepSizeWarning, match=f"has {left:.3g} on the left"):
        advise(resolve_run(from_nested({**job, "method": by_client, "local": local}, "test")))
    advise(resolve_run(from_nested({**job, "method": "fedavg", "local": local}, "test")))
    advise(resolve_run(from_nested({**job, "local": {"steps": 1, "lr": 0.01}}, "test")))


def test_two_block_tasks_are_a_setting_away() -> None:
    """`labels` makes the task semi-supervised, saved settings come back, and what makes no sense is one sentence."""
    base = {"clients": 10, "cohort": 5, "partition": "iid", "model": "logreg", "labels": "labelled(0.2)"}
    semi = resolve_run(from_nested({**base, "method": "fedvra"}, "test"))
    assert (semi.labels, semi.task) == ("labelled(fraction=0.2)", "semi")
    assert resolve_run(from_nested(semi.as_dict(), "saved")) == semi
    job = build(semi)
    assert set(job.problem.evaluator.evaluate(advance(job, start(job)).server.x)) >= {
        "test_accuracy",
        "pseudo_accuracy",
    }
    clusters = resolve_run(from_nested({"task": "clustering(k=10)", "clients": 10, "partition": "iid"}, "test"))
    assert resolve_run(from_nested(clusters.as_dict(), "saved")) == clusters
    job = build(clusters)
    assert "cluster_accuracy" in job.problem.evaluator.evaluate(advance(job, start(job)).server.x)
    for wrong, sentence in (
        ({"task": "semi"}, "task semi needs samples without labels"),
        ({"task": "clustering", "model": "2nn"}, "task clustering has no model, given 2nn"),
        ({"task": "seni", "labels": "labelled"}, "did you mean 'semi'"),
        ({"labels": "labelled(0)"}, "fraction"),
        ({"data": "quadratics", "labels": "labelled"}, "takes no labels"),
    ):
        with pytest.raises(UserError, match=sentence):
            resolve_run(from_nested(wrong, "test"))


def test_a_saga_table_is_a_setting_away() -> None:
    job = build(resolve_run(from_nested({"method": "feddyn", "local": {"oracle": "saga(3)"}, "clients": 10}, "test")))
    assert job.algorithm.step.blocks == 3
    with pytest.raises(UserError, match="corrects its own gradients"):
        build(resolve_run(from_nested({"method": "losac", "local": {"oracle": "saga"}, "clients": 10}, "test")))
