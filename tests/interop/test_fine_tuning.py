"""An imported model is trained further on other text."""

import json

import numpy as np
import pytest
import samples

from keras_transformer.config import DataConfig, TrainingConfig
from keras_transformer.data import ParallelText
from keras_transformer.interop import import_run
from keras_transformer.training import RunDirectory, train
from keras_transformer.training.prepare import tokenize


@pytest.mark.slow
def test_the_loss_before_the_first_update_is_the_toolkits_and_200_updates_lower_it(
    shared_data, tmp_path
):
    sample = samples.read_sample(shared_data("interop") / "marian_post_swish_tied")
    origin = import_run(sample.model, tmp_path / "origin", {})
    entries = sample.oracle["sentences"]
    text = ParallelText([each["source"] for each in entries], [each["target"] for each in entries])
    data = DataConfig(train_source="oracle", train_target="oracle")
    training = TrainingConfig(
        train_steps=200, checkpoint_steps=200, batch_tokens=1000, learning_rate=1e-3,
        warmup_steps=20, label_smoothing=0.0, validation_time_share=0.0,
    )  # fmt: skip
    configs = origin.configs()._replace(data=data, training=training)
    run, vocabularies = RunDirectory(tmp_path / "run"), origin.vocabularies()
    run.write(configs, *vocabularies, origin.load_model())
    train(run, tokenize(text, vocabularies), text, show=False)
    first, *_, last = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
    scored = np.concatenate([each["target_log_probs"] for each in entries])
    assert first["step"] == 0
    assert first["val_loss"] == pytest.approx(-scored.mean(), abs=2e-5)
    assert last["val_loss"] < first["val_loss"] - 0.1
