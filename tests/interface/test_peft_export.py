"""Runs with low-rank factors as adapters of the library peft, which must make the run's own model of the folder's."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_transformers import CLASSES, LENGTH, WORDS, saved

import fedconcord
from fedconcord.interface.trained.adapter import factored
from fedconcord.interface.trained.program import export
from fedconcord.support.errors import UserError
from pages import command


def tagged() -> fedconcord.Dataset:
    draw = np.random.default_rng(0)
    x = np.zeros((40, LENGTH), np.int64)
    for row, length in zip(x, draw.integers(3, 20, 40), strict=True):
        row[:length] = draw.integers(1, WORDS, length)
    y = draw.integers(0, CLASSES, 40)
    return fedconcord.Dataset("tagged", x, y, x[:9], y[:9], CLASSES, [np.arange(0, 25), np.arange(25, 40)])


def trained(folder: Path, adapters: str | None, **more: object) -> Path:
    """A run on a folder's model."""
    saved(folder / "bert")
    settings = {"rounds": 2, "cohort": 2, "lr": 0.5, "adapters": adapters, **more}
    fedconcord.run("fedavg", data=tagged(), model=f"hf(path='{folder / 'bert'}')", out=folder / "run", **settings)
    return folder / "run"


def logits(body: torch.nn.Module) -> torch.Tensor:
    x = torch.as_tensor(tagged().train_x[:8])
    with torch.no_grad():
        out: torch.Tensor = body.eval()(input_ids=x, attention_mask=(x != 0).long()).logits
    return out


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of the library's own
@pytest.mark.parametrize(
    ("adapters", "more", "rank"),
    [
        ("lora(where='query|value',rank=2)", {}, 2),
        ("lora(where='query|value',rank=2,train=B)", {}, 2),
        ("lora(where='query|value',rank=2)", {"aggregate": "fedex", "rounds": 8, "lr": 2.0}, None),
    ],
    ids=["fedit", "ffa", "fedex"],
)
def test_peft_makes_the_runs_model_of_the_folders(
    adapters: str, more: dict[str, object], rank: int | None, tmp_path: Path
) -> None:
    """Loaded by the library itself: weights, and what they answer, as the run's own; fedex has a higher rank."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    folder = export(trained(tmp_path, adapters, **more), "peft")
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"] == rank) if rank else (config["r"] > 2)
    assert config["r"] == config["lora_alpha"]
    assert len(config["target_modules"]) == 4

    def loaded() -> torch.nn.Module:
        body: torch.nn.Module = transformers.AutoModelForSequenceClassification.from_pretrained(
            tmp_path / "bert", num_labels=CLASSES, ignore_mismatched_sizes=True
        )
        return body

    body = peft.PeftModel.from_pretrained(loaded(), folder)
    mine = loaded()
    final = {k.removeprefix("body."): v for k, v in load_file(tmp_path / "run" / "model.safetensors").items()}
    mine.load_state_dict(final)
    torch.testing.assert_close(logits(body), logits(mine), rtol=1e-4, atol=1e-5)
    assert float((logits(mine) - logits(loaded())).abs().max()) > 1e-2
    merged = body.merge_and_unload().state_dict()
    for name, value in final.items():
        torch.testing.assert_close(merged[name], value, rtol=0, atol=1e-6)


def test_the_files_are_as_the_library_documents_them(tmp_path: Path) -> None:
    """Without the library: names, shapes and the keys that a configuration has to have."""
    run = trained(tmp_path, "lora(where='query',rank=3)")
    done = command(tmp_path, "export", str(run), "--format", "peft", "--out", str(tmp_path / "lora"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"adapter: {tmp_path / 'lora'}\n"
    state = load_file(tmp_path / "lora" / "adapter_model.safetensors")
    at = "base_model.model.bert.encoder.layer.1.attention.self.query"
    assert state[f"{at}.lora_A.weight"].shape == (3, 8)
    assert state[f"{at}.lora_B.weight"].shape == (8, 3)
    assert state["base_model.model.classifier.weight"].shape == (CLASSES, 8)
    assert len(state) == 6
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    assert config["task_type"] == "SEQ_CLS"
    assert config["modules_to_save"] == ["classifier"]
    assert config["base_model_name_or_path"] == str(tmp_path / "bert")


@pytest.mark.parametrize("fan_in_fan_out", [False, True])
def test_factors_are_what_was_added(fan_in_fan_out: bool) -> None:
    """A square weight, of which a transpose would go unseen by its shape; float32, whose rounding is no rank."""
    draw = torch.Generator().manual_seed(0)
    before = torch.randn(40, 40, generator=draw)
    b, a = torch.randn(40, 3, generator=draw), torch.randn(3, 40, generator=draw)
    added = 0.1 * (b @ a)
    pair = factored(before + (added.mT if fan_in_fan_out else added), before, fan_in_fan_out)
    assert pair is not None
    assert len(pair[0]) == 3
    torch.testing.assert_close((pair[1] @ pair[0]).float(), added, rtol=0, atol=1e-6)
    assert factored(before + torch.randn(40, 40, generator=draw), before, fan_in_fan_out) is None


def test_what_has_no_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="added nothing of low rank"):
        export(trained(tmp_path, None), "peft")
    fedconcord.run("fedavg", data="digits", clients=3, cohort=3, rounds=1, out=tmp_path / "digits")
    with pytest.raises(UserError, match="for a model in a folder"):
        export(tmp_path / "digits", "peft")
    with pytest.raises(UserError, match="must be torch, onnx or peft"):
        export(tmp_path / "digits", "gguf")  # type: ignore[arg-type]
