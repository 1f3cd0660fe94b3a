"""The model card of an export."""

import json

import pytest

from keras_transformer.config import DataConfig, TrainingConfig, TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.serving.export import describe_run
from keras_transformer.serving.model_folder import read_model_card
from keras_transformer.text import learn_vocabulary
from keras_transformer.training import RunConfigs, RunDirectory


@pytest.fixture
def make_run(tmp_path):
    """Makes a run directory with metrics, of a run that had files from all over the disk."""

    def make(**data):
        run = RunDirectory(tmp_path / "run")
        vocabulary = learn_vocabulary(["a b c"], size=7, kind="word")
        run.write(
            RunConfigs(
                TransformerConfig.preset("tiny", vocabulary_size=vocabulary.size),
                DataConfig(**data),
                TrainingConfig.preset("tiny", seed=7),
            ),
            vocabulary,
            vocabulary,
        )
        metrics = run.checkpoints().metrics
        metrics.path.parent.mkdir()
        metrics.write(1000, {"bleu": 20.5})
        metrics.write(2000, {"bleu": 30.5, "val_loss": 2.0})
        return run

    return make


def test_model_card_describes_the_export(exported, separate_translator):
    card = read_model_card(exported)
    assert card["model"] == separate_translator.model.config.to_dict()
    assert card["search"] == json.loads(separate_translator.search.to_json())
    assert card["parameters"] == separate_translator.model.count_params()
    assert card["precision"] == {"weights": ["float32"], "computation": "float32"}
    for side in ("source", "target"):
        vocabulary = getattr(separate_translator, f"{side}_tokenizer").vocabulary
        assert card["vocabularies"][side] == {
            "size": vocabulary.size,
            "sha256": vocabulary.fingerprint,
        }
    assert card["signatures"]["serving_default"] == {
        "inputs": {"text": {"type": "string", "shape": [None]}},
        "outputs": {
            "translations": {"type": "string", "shape": [None, 2]},
            "scores": {"type": "float32", "shape": [None, 2]},
        },
    }
    assert "SentencepieceTokenizeOp" in card["operations_of_tensorflow_text"]
    assert {"tensorflow", "tensorflow-text", "keras"} < card["packages"].keys()


def test_training_data_have_no_folders(make_run, tmp_path):
    files = {"train_source": "/home/me/train.en,/data/more.en", "train_target": "train.de,more.de"}
    run = make_run(**files, vocabulary=str(tmp_path / "bpe.model"))
    training = describe_run(run, "step-1000")
    assert training["data"]["train_source"] == "train.en,more.en"
    assert training["data"]["vocabulary"] == "bpe.model"
    assert training["settings"]["seed"] == 7
    assert training["task"]["name"] == "translation"
    assert "/" not in json.dumps(training)


@pytest.mark.parametrize(
    ("start", "name"),
    [("/data/runs/opus", "opus"), ("/data/runs/opus/checkpoints/step-100", "opus/step-100")],
)
def test_origin_is_named_without_folders(make_run, start, name):
    run = make_run(train_source="a", train_target="b")
    path = run.path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"origin": {"start_from": start}}))
    assert describe_run(run, "step-1000")["origin"] == {"start_from": name}


def test_dev_metrics_are_those_of_the_checkpoint(make_run):
    run = make_run(train_source="a", train_target="b")
    of_last = {"step-2000": {"bleu": 30.5, "val_loss": 2.0}}
    assert describe_run(run, "step-1000")["dev_metrics"] == {"step-1000": {"bleu": 20.5}}
    assert describe_run(run, "step-2000")["dev_metrics"] == of_last
    assert describe_run(run, "average")["dev_metrics"] == of_last
    assert describe_run(run, "step-1500")["dev_metrics"] == {}
    run.checkpoints().metrics.path.unlink()
    assert describe_run(run, "average")["dev_metrics"] == {}


def test_missing_or_invalid_card_is_rejected(tmp_path):
    with pytest.raises(InputError, match="give the folder of an exported version"):
        read_model_card(tmp_path)
    path = tmp_path / "assets.extra" / "model_card.json"
    path.parent.mkdir()
    of_older = '{"training": [{}], "search": {}, "signatures": {}, "precision": {}}'
    for text in ("[]", '{"training": null}', '{"training": []}', of_older):
        path.write_text(text)
        with pytest.raises(
            InputError, match="not a model card of this release; export the model again"
        ):
            read_model_card(tmp_path)
