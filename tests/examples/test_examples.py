"""The programs in examples/ do what their docstrings say."""

import itertools
import json
import pathlib
import re
import runpy
import sys

import keras
import numpy as np
import pytest

from keras_transformer import RunDirectory, load_exported, train

_EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a program in this process, which has loaded TensorFlow already; gives its output."""

    def run(name, *arguments):
        path = str(_EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", ["copy_digits", "classify_sequences"])
def test_models_learn_almost_everything(run, name):
    assert float(run(name).split()[-1]) >= 0.95


def test_classifier_loads_in_safe_mode(tmp_path):
    model = runpy.run_path(str(_EXAMPLES / "classify_sequences.py"))["make_model"]()
    model.save(tmp_path / "classifier.keras")
    assert keras.models.load_model(tmp_path / "classifier.keras").count_params() > 0


def test_constraints_hold(run):
    free, no_repetition, limited = map(json.loads, run("write_constraints").splitlines())
    repeated = [a == b for row in free for a, b in itertools.pairwise(row)]
    assert any(repeated)  # without constraints the model repeats itself
    for rows in (no_repetition, limited):
        for row in rows:
            tokens = row[: row.index(3)]
            assert all(a != b for a, b in itertools.pairwise(tokens))
    evens = [sum(token > 3 and token % 2 == 0 for token in row) for row in limited]
    assert evens[0] == 0 and evens[1] <= 2


def test_python_alone_trains_and_exports(run, tmp_path):
    output = run("train_and_export", tmp_path / "work")
    assert "a small red tree -> ein kleiner roter Baum (" in output
    assert (tmp_path / "work" / "export" / "1" / "saved_model.pb").is_file()


def test_beam_translates_a_file_in_parts_once(run, exported, texts, tmp_path):
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    source, output = texts / "test.en", tmp_path / "output.xx"
    arguments = (exported, source, output, "--lines=5", "--runner=DirectRunner")
    run("translate_with_beam", *arguments)
    lines = source.read_text("utf-8").splitlines()
    expected = [result.text for result in load_exported(exported).translate(lines)]
    assert output.read_text("utf-8").splitlines() == expected
    first, second, _ = sorted((tmp_path / "output.xx.parts-5").iterdir())
    first.unlink()
    second.write_text("finished\n")
    run("translate_with_beam", *arguments)
    assert output.read_text("utf-8").splitlines() == [*expected[:5], "finished", *expected[10:]]


def test_notebook_prints_what_it_shows(monkeypatch, capsys):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    notebook = json.loads((_EXAMPLES / "first_steps.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    scope, scores = {}, re.compile(r"-?\d\.\d+")
    for cell in cells:
        exec("".join(cell["source"]), scope)
        texts = [out["text"] for out in cell["outputs"] if out["output_type"] == "stream"]
        shown = "".join(itertools.chain(*texts))
        printed = capsys.readouterr().out
        assert scores.sub("", printed) == scores.sub("", shown)
        for new, old in zip(scores.findall(printed), scores.findall(shown), strict=True):
            assert float(new) == pytest.approx(float(old), abs=0.03)
    kinds = [out["output_type"] for cell in cells for out in cell["outputs"]]
    assert kinds.count("display_data") == 2


def test_rows_of_pieces_pass_to_another_vocabulary(run, texts, tmp_path):
    files = {"train": (texts / "train.en", texts / "train.xx")}
    sizes = dict(model_dim=8, num_heads=2, feed_forward_dim=8, num_layers=1)
    steps = dict(train_steps=1, warmup_steps=1, average_last=1)
    old = RunDirectory.create(tmp_path / "old", **files, **sizes, **steps)
    before, (words, _) = train(old, jit_compile=False, show=False), old.vocabularies()
    output = run("change_vocabulary", tmp_path / "old", tmp_path / "new")
    new = RunDirectory(tmp_path / "new")
    after, (wider, _) = new.load_model(), new.vocabularies()
    places = {piece: row for row, piece in enumerate(words.pieces(range(words.size)))}
    pieces = wider.pieces(range(wider.size))
    assert any(piece.isupper() and len(piece) > 2 for piece in pieces)
    assert f"{sum(piece in places for piece in pieces)} of {wider.size} rows kept" in output
    tables = [np.asarray(model.source_embedding.table) for model in (before, after)]
    for row, piece in enumerate(pieces):
        if piece in places:
            np.testing.assert_array_equal(tables[1][row], tables[0][places[piece]])
    for old_weight, weight in zip(before.weights[1:], after.weights[1:], strict=True):
        np.testing.assert_array_equal(weight, old_weight)
