"""A task from its files to a server: training, resuming, evaluation, export, a fresh process and
the client of a server all give the same answers.
"""

import collections
import itertools
import json
import random

import fake_server
import pytest
import stand_in_server

from keras_transformer import Client
from keras_transformer.training.metrics import read_metrics

_TINY = (
    "--preset=tiny", "--num_layers=1", "--model_dim=32", "--num_heads=2", "--feed_forward_dim=32",
    "--dropout=0", "--batch_tokens=1000", "--warmup_steps=30", "--learning_rate=0.01",
    "--checkpoint_steps=30", "--average_last=1", "--log_steps=10",
)  # fmt: skip
_SHORT = ("--max_source_length=16", "--max_extra_length=8")

# What a task is tried with: flags of its data, sentences to answer, and a value that its metric
# crosses in training.
Trial = collections.namedtuple("Trial", "task flags sentences metric bound")


def pronunciation(folder) -> Trial:
    """A language in which x has two phones; every third word with a b has a variant."""
    phones = {"a": "ɑ", "b": "b", "k": "k", "x": "k s", "ö": "ø"}
    generator = random.Random(1)
    words = {"".join(generator.choices(list(phones), k=generator.randint(2, 5))): None
             for _ in range(400)}  # fmt: skip
    lines = []
    for number, word in enumerate(words):
        spoken = " ".join(phones[letter] for letter in word)
        lines.append(f"{word}\t{spoken}")
        if number % 3 == 0 and "b" in word:
            lines.append(f"{word}(1)\t{spoken.replace('b', 'p')}")
    path = folder / "words.tsv"
    path.write_text(";;; made up\n" + "\n".join(lines) + "\n", encoding="utf-8")
    flags = (f"--train_file={path}", "--held_out=0.1")
    return Trial("pronunciation", flags, ["abba", "xö", "köxa"], "wer", 75.0)


@pytest.mark.slow
def test_task_from_files_to_server(tmp_path, call, run):
    trial = pronunciation(tmp_path)
    run_dir = f"--run_dir={tmp_path}/run"

    def succeed(*command, **options):
        result = call(*command, **options)
        assert (result.code, result.err) == (0, "")
        return result.out

    train = ("train.py", run_dir, f"--task={trial.task}", *trial.flags, *_TINY)
    for steps in (30, 150):  # the second command goes on with the run
        succeed(*train, f"--train_steps={steps}")
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    values = [row[trial.metric] for row in rows if trial.metric in row]
    assert len(values) == 5
    assert min(values[0], values[-1]) < trial.bound < max(values[0], values[-1])
    assert all(first["flops"] < last["flops"] for first, last in itertools.pairwise(rows))
    evaluated = json.loads(succeed("evaluate.py", run_dir, "--json", "--num_translations=2"))
    assert evaluated["sentences"] > 10 and trial.metric in evaluated

    typed = "".join(f"{sentence}\n" for sentence in trial.sentences).encode()
    expected = succeed("translate.py", run_dir, *_SHORT, stdin=typed).splitlines()
    succeed("export.py", run_dir, f"--export_dir={tmp_path}/exports", *_SHORT)
    version = tmp_path / "exports" / "1"
    card = json.loads((version / "assets.extra" / "model_card.json").read_text())
    assert card["training"][0]["task"]["name"] == trial.task
    assert card["training"][0]["cost"]["flops"] == rows[-1]["flops"]
    (tmp_path / "input").write_bytes(typed)
    fresh = run("translate.py", f"--saved_model={version}", tmp_path / "input")
    assert (fresh.out.splitlines(), fresh.err) == (expected, "")
    served = fake_server.Model({}, lambda signature, inputs: {}, trial.task)
    served.versions, served.states = {}, {}
    stand_in_server.load(served, 1, version)
    with fake_server.serve_grpc(served) as address, Client(address, model=trial.task) as client:
        assert [best.text for best, *_ in client.translate(trial.sentences)] == expected
