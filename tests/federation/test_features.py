"""Feature skew: each by its own definition, keyed by the client, on training samples only, with every partition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedconcord.federation.partitions.skew import FEATURES, noise, rotate, scale, skewed
from fedconcord.method.contract.rng import Purpose, generator
from fedconcord.study.settings.problem import problem_of
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import factories
from fedconcord.support.errors import UserError

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((5, 2, 8, 8)).astype(np.float32)


def key(client: int = 0) -> np.random.Generator:
    return generator(0, Purpose.PARTITION, 2, client)


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("client", [0, 3])
def test_new_samples_of_the_same_shape(name: str, client: int) -> None:
    before = IMAGES.copy()
    out = FEATURES[name](IMAGES, client, 10, key(client))
    assert np.array_equal(IMAGES, before)
    assert (out.shape, out.dtype) == (IMAGES.shape, np.float32)
    assert np.array_equal(out, FEATURES[name](IMAGES, client, 10, key(client)))


@pytest.mark.parametrize("client", range(9))
def test_quarter_turns_are_exact_and_anticlockwise(client: int) -> None:
    out = rotate(IMAGES, client, 9, key())
    for sample, turned in zip(IMAGES, out, strict=True):
        for plane, seen in zip(sample, turned, strict=True):
            assert np.array_equal(seen, np.rot90(plane, client % 4))


def test_other_angles_agree_with_quarter_turns() -> None:
    """89.999 degrees is nearly 90, in the same direction; 45 twice is nearly 90 in the middle of a smooth image."""
    nearly = rotate(IMAGES, 1, 2, key(), degrees=89.999, groups=2)
    np.testing.assert_allclose(nearly, np.rot90(IMAGES, 1, axes=(2, 3)), atol=2e-3)
    y, x = np.mgrid[-20:21, -20:21]
    smooth = np.exp(-((x - 6) ** 2 + (y + 3) ** 2) / 40).astype(np.float32)[None, None]
    half = rotate(smooth, 1, 2, key(), degrees=45, groups=2)
    twice = rotate(half, 1, 2, key(), degrees=45, groups=2)
    np.testing.assert_allclose(twice, rotate(smooth, 1, 2, key()), atol=0.03)
    assert np.abs(half - smooth).max() > 0.3


def test_what_turns_in_repeats_the_edge() -> None:
    flat = np.full((1, 1, 9, 9), -0.42, np.float32)  # MNIST's scaled background is no zero
    np.testing.assert_allclose(rotate(flat, 1, 2, key(), degrees=30), flat, rtol=1e-6)


def test_rotate_needs_images() -> None:
    with pytest.raises(UserError, match=r"^skew rotate turns images [^\n]* shape \(60,\); use noise or scale$"):
        rotate(np.zeros((3, 60), np.float32), 1, 2, key())


def test_oblong_images_keep_their_shape() -> None:
    oblong = RNG.standard_normal((2, 1, 6, 10)).astype(np.float32)
    assert np.array_equal(rotate(oblong, 2, 4, key()), oblong[:, :, ::-1, ::-1])
    assert rotate(oblong, 1, 4, key()).shape == oblong.shape


def test_noise_has_the_stated_law() -> None:
    """Mean 0 and variance std^2 (i + 1) / N; the variance of 200,000 draws scatters by sqrt(2 / 200,000)."""
    x = np.zeros((1000, 200), np.float32)
    for client in (0, 4, 9):
        drawn = noise(x, client, 10, key(client), std=0.7)
        variance = 0.49 * (client + 1) / 10
        assert drawn.mean() == pytest.approx(0, abs=4 * np.sqrt(variance / x.size))
        assert drawn.var(dtype=np.float64) == pytest.approx(variance, rel=4 * np.sqrt(2 / x.size))
        assert np.corrcoef(drawn[0], drawn[1])[0, 1] == pytest.approx(0, abs=0.3)


def test_scale_is_log_uniform() -> None:
    """One gain a client; log-uniform, by Kolmogorov and Smirnov at 0.1 %."""
    from scipy.stats import kstest

    x = np.ones((3, 4), np.float32)
    gains = []
    for client in range(500):
        out = scale(x, client, 500, key(client), low=0.25, high=2.0)
        assert len(np.unique(out)) == 1
        gains.append(out[0, 0])
    assert kstest(np.log(gains), "uniform", (np.log(0.25), np.log(8))).pvalue > 1e-3


def test_scale_refuses() -> None:
    with pytest.raises(UserError, match=r"^skew scale needs low <= high, given low = 3 and high = 2$"):
        scale(IMAGES, 0, 2, key(), low=3.0)


def test_a_client_does_not_depend_on_the_others() -> None:
    parts = [np.array([0, 3]), np.array([1, 4])]
    skew = factories.check(FEATURES, "feature skew", "noise(0.5)")
    both = skewed(IMAGES, parts, 7, skew)
    alone = noise(IMAGES[parts[1]], 1, 2, generator(7, Purpose.PARTITION, 2, 1), std=0.5)
    assert np.array_equal(both[parts[1]], alone)
    assert np.array_equal(both[2], IMAGES[2])  # nobody's sample
    assert not np.array_equal(both, skewed(IMAGES, parts, 8, skew))


# -- in a run ------------------------------------------------------------------------------------------------------


def settings(**changed: Any) -> Config:
    base = {"data": "digits", "clients": 8, "cohort": 4, "model": "logreg", "method": "fedavg", "rounds": 1}
    return resolve_run(from_nested({**base, **changed}, "here"))


@pytest.mark.parametrize("partition", ["iid", "dirichlet(0.3)", "shards(2)", "power_law", "quantity", "groups"])
def test_composes_with_every_partition(partition: str) -> None:
    """Client i's samples in the problem are its samples of the plain run, turned; the test set is untouched."""
    plain = problem_of(settings(partition=partition))
    x, y, offsets, test = plain.x[:], plain.y, plain.offsets, plain.test_x[:]
    turned = problem_of(settings(partition=partition, skew="rotate(90)"))
    assert torch.equal(turned.test_x[:], test)
    assert torch.equal(turned.y, y)
    for i in range(8):
        own = slice(offsets[i], offsets[i + 1])
        assert torch.equal(turned.x[own], torch.rot90(x[own], i % 4, (2, 3)))


def test_settings() -> None:
    assert settings(skew="rotate(45)").skew == "rotate(degrees=45)"
    assert settings(skew="none").skew is None
    for wrong, says in (
        ("turn", "unknown feature skew 'turn'"),
        ("rotate(400)", "feature skew rotate: degrees must be a number > -360 and < 360, given 400"),
        ("noise(std=0)", "feature skew noise: std must be a number > 0, given 0"),
    ):
        with pytest.raises(UserError) as error:
            settings(skew=wrong)
        assert says in str(error.value)
    with pytest.raises(UserError, match=r"^data quadratics brings its own clients and takes no skew, given scale"):
        settings(data="quadratics", skew="scale", model=None)


def test_validation_samples_are_skewed_and_the_test_set_is_not() -> None:
    """A client of two is turned by 180 degrees: so are the samples that it sets apart."""
    common = {"partition": "iid", "clients": 2, "cohort": 2, "validation": 0.2}
    plain = problem_of(settings(**common)).judged
    turned = problem_of(settings(**common, skew="rotate(180,groups=2)")).judged
    assert turned.split == "validation"
    half = plain.offsets[1]
    assert torch.equal(turned.x[:half], plain.x[:half])
    assert torch.equal(turned.x[half:], torch.rot90(plain.x[half:], 2, (2, 3)))
