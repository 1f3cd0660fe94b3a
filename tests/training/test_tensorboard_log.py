"""TensorBoard's own reader on what a run and its continuation wrote."""

import pytest

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_transformer.training.metrics import TensorBoardLog

ROW = {"seconds": 5.0, "loss": 3.0, "learning_rate": 0.5}
DEV = {"val_loss": 2.5, "val_accuracy": 0.5, "bleu": 20.0}


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def test_training_and_dev_set_are_two_runs_with_the_same_names_for_the_same_things(tmp_path):
    log = TensorBoardLog(tmp_path)
    log.write({"step": 100, **ROW})
    log.write({"step": 150, **ROW, **DEV})
    assert scalars(tmp_path / "train") == {
        "loss": [(100, 3.0), (150, 3.0)],
        "learning_rate": [(100, 0.5), (150, 0.5)],
    }
    assert scalars(tmp_path / "dev") == {
        "loss": [(150, 2.5)],
        "accuracy": [(150, 0.5)],
        "bleu": [(150, 20.0)],
    }


def test_no_dev_set_leaves_no_run_of_it(tmp_path):
    TensorBoardLog(tmp_path).write({"step": 100, **ROW})
    assert [path.name for path in tmp_path.iterdir()] == ["train"]


def test_what_a_killed_process_wrote_beyond_its_checkpoint_is_replaced(tmp_path):
    log = TensorBoardLog(tmp_path)
    for step, loss in ((100, 5.0), (200, 4.0), (300, -1.0), (400, -1.0)):
        log.write({"step": step, **ROW, "loss": loss})
    log = TensorBoardLog(tmp_path, step=200)
    log.write({"step": 300, **ROW, "loss": 3.0})
    assert scalars(tmp_path / "train")["loss"] == [(100, 5.0), (200, 4.0), (300, 3.0)]
