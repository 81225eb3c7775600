"""Text: samples that are symbols, from the data to a model that learns from them."""

import numpy as np
import pytest
import torch
from torch import nn

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, advance, evaluate, start
from fedconcord.federation.data import DATASETS
from fedconcord.federation.data.offline import SYMBOLS, encode, windows
from fedconcord.federation.models import MODELS
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.algorithms import METHODS
from fedconcord.study.settings.problem import divided
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError


def test_windows_are_what_comes_before_a_symbol() -> None:
    x, y = windows(encode("abcdef"), 3, 2)
    assert ["".join(SYMBOLS[k] for k in row) for row in x] == ["abc", "cde"]
    assert [SYMBOLS[k] for k in y] == ["d", "f"]
    assert encode("a\u00e9").tolist() == [0, len(SYMBOLS)]


def test_topics_come_in_clients_that_test_on_text_of_their_own() -> None:
    data = DATASETS["topics"](None, 0, 16, 4, 20_000)  # type: ignore[arg-type]
    assert data.natural is not None
    assert data.client_names is not None
    assert len(data.natural) == len(data.client_names) >= 2
    assert np.array_equal(np.concatenate(data.natural), np.arange(len(data.train_y)))
    assert (data.train_x.dtype, data.shape, data.classes) == (np.int64, (16,), 97)
    assert 0 <= data.train_x.min() <= data.train_x.max() < data.classes
    with pytest.raises(UserError, match="no topic has 9999999 characters"):
        DATASETS["topics"](None, 0, 16, 4, 9_999_999)  # type: ignore[arg-type]


def test_a_character_model_learns_and_is_the_same_on_both_engines() -> None:
    data = DATASETS["topics"](None, 0, 8, 40, 15_000)  # type: ignore[arg-type]
    ends = []
    for engine in (Stacked(4), Serial()):
        problem = Supervised(
            lambda: MODELS["charlm"](data.shape, data.classes, 8, 24),
            data,
            data.natural,  # type: ignore[arg-type]
            dtype=torch.float64,
        )
        assert problem.x.dtype == torch.int64
        job = Job(problem, METHODS["fedavg"](), Schedule(seed=0, cohort=4, lr=0.5, batch_size=16), engine=engine)
        state = start(job)
        first = evaluate(job, state)
        for _ in range(5):
            state = advance(job, state)
        last = evaluate(job, state)
        assert last["test_loss"] < first["test_loss"] - 1
        assert last["test_accuracy"] > 0.15
        ends.append(state.server.x)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-11)


def test_a_model_that_takes_no_symbols_is_one_sentence() -> None:
    data = DATASETS["topics"](None, 0, 8, 40, 20_000)  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r"the model cannot take samples of shape \(8,\) \(int64\): RuntimeError.*saved as float32"
    ):
        Supervised(lambda: nn.Linear(8, 97), data, [np.arange(9)])
    with pytest.raises(UserError, match="model 'charlm' needs samples that are a row of symbols"):
        MODELS["charlm"]((1, 8, 8), 10)


def test_symbols_have_no_feature_skew() -> None:
    config = resolve_run(
        from_nested({"data": "topics(smallest=20000)", "partition": "iid", "skew": "noise(0.5)"}, "here")
    )
    with pytest.raises(UserError, match=r"skew noise.* changes numbers, and the samples of data topics.* are symbols"):
        divided(config)


def test_the_size_that_the_model_says() -> None:
    model = MODELS["charlm"]((24,), 97)
    assert sum(p.numel() for p in model.parameters()) == 63_345
    assert model(torch.zeros(2, 24, dtype=torch.int64)).shape == (2, 97)
