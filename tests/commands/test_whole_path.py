"""A task from its files to a server: training, resuming, evaluation, the export and the client of a
server give the same answers.
"""

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


def write_dictionary(path):
    """Of a language in which x has two phones; every third word with a b has a variant."""
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
    path.write_text(";;; made up\n" + "\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.slow
def test_task_from_files_to_server(tmp_path, call):
    write_dictionary(tmp_path / "words.tsv")
    files = (f"--train_file={tmp_path}/words.tsv", "--held_out=0.1")
    run_dir = f"--run_dir={tmp_path}/run"

    def succeed(*command, **options):
        result = call(*command, **options)
        assert (result.code, result.err) == (0, "")
        return result.out

    train = ("train.py", run_dir, "--task=pronunciation", *files, *_TINY)
    for steps in (30, 150):  # the second command goes on with the run
        succeed(*train, f"--train_steps={steps}")
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    error_rates = [row["wer"] for row in rows if "wer" in row]
    assert len(error_rates) == 5
    assert error_rates[-1] < 75.0 < error_rates[0]
    evaluated = json.loads(succeed("evaluate.py", run_dir, "--json", "--num_translations=2"))
    assert evaluated["sentences"] > 10 and "wer" in evaluated

    words = ["abba", "xö", "köxa"]
    typed = "".join(f"{word}\n" for word in words).encode()
    expected = succeed("translate.py", run_dir, *_SHORT, stdin=typed).splitlines()
    succeed("export.py", run_dir, f"--export_dir={tmp_path}/exports", *_SHORT)
    version = tmp_path / "exports" / "1"
    card = json.loads((version / "assets.extra" / "model_card.json").read_text())
    assert card["training"][0]["task"]["name"] == "pronunciation"
    assert card["training"][0]["cost"]["target_tokens"] == rows[-1]["target_tokens"]
    assert succeed("translate.py", f"--saved_model={version}", stdin=typed).splitlines() == expected
    served = fake_server.Model({}, lambda signature, inputs: {}, "translator")
    served.versions = {}
    stand_in_server.load(served, 1, version)
    with fake_server.serve_grpc(served) as address, Client(address) as client:
        assert [best.text for best in client.translate(words)] == expected
