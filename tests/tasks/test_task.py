"""Custom tasks: registered, trained and evaluated without a change in the package."""

import dataclasses
import importlib
import json
import math
import operator
import pathlib
import random
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import tensorflow as tf

from keras_transformer import Translator
from keras_transformer.config import DataConfig
from keras_transformer.errors import InputError
from keras_transformer.files import iterate_lines
from keras_transformer.tasks import Metric, Task, get_task, register_task
from keras_transformer.tasks import task as task_module
from keras_transformer.text import learn_vocabulary
from keras_transformer.training.metrics import read_metrics
from keras_transformer.training.prepare import (
    read_test_text,
    training_corpus,
)
from keras_transformer.training.run import RunDirectory
from keras_transformer.training.trainer import train


class ReversedLines(NamedTuple):
    """Lines of a file, and each with its words read backwards."""

    path: str

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "reversed lines", "path": self.path}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for line in iterate_lines(self.path):
            yield line, " ".join(reversed(line.split()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reversal(Task):
    """Words of a sentence in reverse order; in capitals if `shout`."""

    shout: bool = False

    name = "reversal"
    metric = Metric("error_rate", "error rate", higher_is_better=False)
    default_search = {"beam_size": 2, "max_extra_length": 3}  # noqa: RUF012

    def pair_sources(self, data, split):
        path = {"train": data.train_source, "validation": data.dev_source, "test": data.test_source}
        return [ReversedLines(path[split])]

    def postprocess(self, outputs, sources):
        return [  # no more words than the source has
            " ".join(output.split()[: len(source.split())])
            for output, source in zip(outputs, sources, strict=True)
        ]

    def finish(self, outputs, sources):
        return tf.strings.upper(outputs) if self.shout else outputs

    def evaluate(self, outputs, references, sources):
        right = sum(map(operator.eq, map(str.lower, outputs), references))
        return {"error_rate": 1 - right / len(references), "longest": max(map(len, outputs))}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(task_module, "_TASKS", dict(task_module._TASKS))
    register_task(Reversal)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, tuple[pathlib.Path, pathlib.Path]]:
    folder, generator = tmp_path_factory.mktemp("words"), random.Random(1)
    for split, count in (("train", 400), ("dev", 12), ("test", 8)):
        lines = (generator.choices("abcdef", k=generator.choice([2, 3])) for _ in range(count))
        (folder / split).write_text("".join(f"{' '.join(line)}\n" for line in lines))
    # The task reads the first file of each pair only.
    return {split: (folder / split, folder / split) for split in ("train", "dev", "test")}


def create(path: pathlib.Path, files, shout: bool = False) -> RunDirectory:
    return RunDirectory.create(
        path, task="reversal", shout=shout, **files, vocabulary_kind="word", vocabulary_size=12,
        num_layers=1, model_dim=32, feed_forward_dim=64, num_heads=2, dropout=0.0,
        train_steps=240, checkpoint_steps=30, batch_tokens=300, warmup_steps=30,
        learning_rate=0.01, average_last=1, stop_metric="error_rate",
        stop_patience=2, validation_time_share=1.0,
    )  # fmt: skip


@pytest.mark.slow
def test_custom_task_is_trained_stopped_and_evaluated(tmp_path, files, capsys):
    task = Reversal(shout=True)
    run = create(tmp_path / "run", files, shout=True)
    config = json.loads((run.path / "config.json").read_text())
    assert config["task"] == {"name": "reversal", "shout": True}
    assert run.configs().task == task
    train(run)
    by_step = run.checkpoints().dev_metrics()
    values = {step: metrics["error_rate"] for step, metrics in by_step.items()}
    assert min(values.values()) == 0 < values[30]
    # It stopped 2 checkpoints after the first with the best value, which none can exceed.
    first = next(step for step, value in values.items() if value == 0)
    assert max(values) == first + 60 < 240
    assert run.is_finished()
    # Of equal checkpoints the newer is better.
    best = max(step for step, value in values.items() if value == 0)
    assert run.checkpoints().find("best") == f"step-{best}"
    assert {best} < set(run.checkpoints().steps())
    rows = [row for row in read_metrics(run.metrics_path) if "error_rate" in row]
    assert {row["step"]: row["error_rate"] for row in rows} == pytest.approx(values, rel=1e-5)
    assert "error rate 0.00  on the dev set" in capsys.readouterr().out
    text = read_test_text(run.configs().data, task=task)
    translator = Translator(run.load_model("best"), *run.vocabularies(), task=task)
    outputs = [answer.text for answer in translator.translate(text.source)]
    answers = task.postprocess(outputs, text.source)
    assert answers == [" ".join(reversed(line.split())).upper() for line in text.source]
    assert task.evaluate(answers, text.target, text.source)["error_rate"] == 0


def test_tokens_are_those_of_the_task_and_its_code(tmp_path, monkeypatch):
    (tmp_path / "text").write_text("a b\tc d\n" * 3)
    data = DataConfig(train_file=str(tmp_path / "text"))
    vocabulary = learn_vocabulary(["a b c d"], size=100, kind="word")
    monkeypatch.syspath_prepend(tmp_path)

    def targets(expression, **options):
        (tmp_path / "own_task.py").write_text(
            "import dataclasses\n"
            "from keras_transformer.tasks import TranslationTask\n"
            "@dataclasses.dataclass(frozen=True, kw_only=True)\n"
            "class OwnTask(TranslationTask):\n"
            "    name = 'own'\n"
            f"    def target_text(self, text): return {expression}\n"
        )
        sys.modules.pop("own_task", None)
        importlib.invalidate_caches()
        task = importlib.import_module("own_task").OwnTask(**options)
        pair = vocabulary, vocabulary
        corpus = training_corpus(data, pair, tmp_path / "tokens", task=task)
        return vocabulary.decode([corpus.target_ids[: corpus.target_offsets[1] - 1].tolist()])

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert targets("text") == ["c d"]
    assert targets("'d' if self.remove_bpe else text") == ["c d"]
    assert targets("'d' if self.remove_bpe else text", remove_bpe=True) == ["d"]
    assert targets("text[0]") == ["c"]  # corrected


def test_undefined_metric_is_never_best():
    class Undefined(Reversal):
        def evaluate(self, outputs, references, sources):
            return {"x": None}

    for higher_is_better, worst in ((True, 0.0), (False, math.inf)):
        Undefined.metric = metric = Metric("x", higher_is_better=higher_is_better)
        with pytest.warns(UserWarning, match=f"x of these references counts as {worst:g}: None"):
            assert Undefined().measure(["a"], ["a"], ["a"]) == worst
        assert all(metric.rank(worst) <= metric.rank(other) for other in (0.0, 0.5, 1.0))


def test_task_names_are_unique():
    assert get_task("reversal") is Reversal
    with pytest.raises(InputError, match=r"task must be one of .*reversal, .*got 'x'"):
        get_task("x")
    register_task(Reversal)  # again
    corrected = type("Reversal", (Reversal,), {"__qualname__": "Reversal", "__module__": __name__})
    register_task(corrected)  # as in a notebook's cell that runs a second time
    assert get_task("reversal") is corrected

    class Other(Reversal):
        pass

    with pytest.raises(InputError, match=r"task 'reversal' of .*Other is that of Reversal; choose"):
        register_task(Other)
    for name in ("accuracy", "val_accuracy", "loss"):
        Other.name, Other.metric = "other", Metric(name)
        with pytest.raises(InputError, match=f"must not be named '{name}', like a value of tr"):
            register_task(Other)
