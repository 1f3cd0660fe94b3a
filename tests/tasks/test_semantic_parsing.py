"""SCAN and COGS: files, categories, and a run by command."""

import json
import pathlib

import pytest

from keras_transformer.config import DataConfig
from keras_transformer.errors import InputError
from keras_transformer.tasks import SemanticParsingTask
from keras_transformer.tasks.semantic_parsing import SemanticParsingFile, read_lines
from keras_transformer.training.prepare import make_vocabularies

DATA = pathlib.Path(__file__).parents[1] / "data"


def test_scan_and_cogs_are_read():
    scan = list(SemanticParsingFile(DATA / "scan" / "simple.train.txt"))
    assert ("walk", "I_WALK") in scan
    assert len(scan) == 300
    cogs = list(read_lines(DATA / "cogs" / "gen.tsv"))
    assert len(cogs) == 2 * len({line.category for line in cogs}) == 42
    assert list(SemanticParsingFile(DATA / "cogs" / "gen.tsv")) == [line[:2] for line in cogs]


@pytest.mark.parametrize("line", ["IN: walk", "walk\tWALK", "a\t\tb", "walk"])
def test_malformed_line_is_reported(tmp_path, line):
    path = tmp_path / "file"
    path.write_text(f"IN: run OUT: I_RUN\n{line}\n")
    with pytest.raises(InputError, match='line 2: expected "IN: '):
        list(SemanticParsingFile(path))


def test_tokens_are_words():
    task = SemanticParsingTask()
    data = DataConfig(train_file=str(DATA / "cogs" / "train.tsv"), **task.default_data)
    vocabularies = make_vocabularies(data, task)
    sides = zip(*task.read_file(data.train_file), strict=True)
    for vocabulary, texts in zip(vocabularies, sides, strict=True):
        encoded = vocabulary.encode(texts)
        assert [len(ids) for ids in encoded] == [len(text.split()) for text in texts]
        assert vocabulary.decode(encoded) == list(texts)


def test_exact_match_by_category():
    path = DATA / "cogs" / "gen.tsv"
    lines = list(read_lines(path))
    sources, references, _ = zip(*lines, strict=True)
    outputs = ["", *references[1:]]
    task = SemanticParsingTask(categories_of=str(path))
    results = task.evaluate(outputs, references, sources)
    assert results["exact_match"] == pytest.approx(100 * 41 / 42)
    assert results["categories"].pop(lines[0].category) == {"exact_match": 50.0, "count": 2}
    assert {part["exact_match"] for part in results["categories"].values()} == {100.0}
    n_best = [[output, "x"] for output in outputs]
    assert task.evaluate_n_best(n_best, references, sources) == {
        "exact_match": results["exact_match"]
    }
    with pytest.raises(InputError, match=r"gen\.tsv has no category of 'a b'"):
        task.evaluate(["c"], ["c"], ["a b"])
    assert task.measure(["c", "d"], ["c", "e"], ["a b", "c d"]) == 50  # in training


@pytest.mark.slow
def test_scan_by_command(call, tmp_path):
    run = f"--run_dir={tmp_path}"
    files = [f"--train_file={DATA / 'scan' / 'simple.train.txt'}"]
    files += [f"--{split}_file={DATA / 'scan' / 'simple.test.txt'}" for split in ("dev", "test")]
    sizes = ["--num_layers=1", "--model_dim=32", "--feed_forward_dim=64", "--num_heads=2"]
    steps = ["--train_steps=20", "--checkpoint_steps=20", "--warmup_steps=5", "--batch_tokens=500"]
    result = call("train.py", run, "--task=semantic_parsing", *files, *sizes, *steps)
    assert result.code == 0, result.err
    assert "exact match" in result.out
    results = json.loads(call("evaluate.py", run, "--json", "--max_extra_length=20").out)
    assert (results["sentences"], results["categories"]) == (40, {})
