"""The programs in examples/ do what their docstrings say."""

import itertools
import json
import pathlib
import re
import runpy
import sys

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
    scope, score = {}, re.compile(r"-?\d\.\d+")
    for cell in (each for each in notebook["cells"] if each["cell_type"] == "code"):
        exec("".join(cell["source"]), scope)
        texts = [out["text"] for out in cell["outputs"] if out["output_type"] == "stream"]
        shown, printed = "".join(itertools.chain(*texts)), capsys.readouterr().out
        assert score.sub("", printed) == score.sub("", shown)
        found, expected = (np.array(score.findall(each), float) for each in (printed, shown))
        np.testing.assert_allclose(found, expected, atol=0.03)


def test_rows_of_pieces_pass_to_another_vocabulary(run, texts, tmp_path):
    files = {"train": (texts / "train.en", texts / "train.xx")}
    sizes = dict(model_dim=8, num_heads=2, feed_forward_dim=8, num_layers=1)
    steps = dict(train_steps=1, warmup_steps=1, average_last=1)
    old = RunDirectory.create(tmp_path / "old", **files, **sizes, **steps)
    before, (words, _) = train(old, jit_compile=False, show=False), old.vocabularies()
    output = run("change_vocabulary", tmp_path / "old", tmp_path / "new")
    new = RunDirectory(tmp_path / "new")
    after, (wider, _) = new.load_model(), new.vocabularies()
    old_pieces, pieces = (list(each.pieces(range(each.size))) for each in (words, wider))
    kept = [row for row, piece in enumerate(pieces) if piece in old_pieces]
    assert 0 < len(kept) < wider.size
    assert f"{len(kept)} of {wider.size} rows kept" in output
    rows = [old_pieces.index(pieces[row]) for row in kept]
    table, new_table = (np.asarray(each.source_embedding.table) for each in (before, after))
    np.testing.assert_array_equal(new_table[kept], table[rows])
    for old_weight, weight in zip(before.weights[1:], after.weights[1:], strict=True):
        np.testing.assert_array_equal(weight, old_weight)
