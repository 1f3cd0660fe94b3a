"""docs/explanation/paper.md: its objects exist, its settings are the presets'; the notebook."""

import json
import pathlib
import re
import runpy

from keras_transformer.config import SearchConfig, TrainingConfig, TransformerConfig
from keras_transformer.tasks.parsing import ParsingTask

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_hyperparameters_are_those_of_the_paper():
    """Of sections 3 and 5, Table 3 (base and big), 6.1 and 6.3."""
    base = [6, 512, 2048, 8, 0.1, 100_000, 5, 4_000, 0.1, 25_000]
    big = [6, 1024, 4096, 16, 0.3, 300_000, 20, 4_000, 0.1, 25_000]
    for name, expected in (("base", base), ("big", big)):
        model = TransformerConfig.preset(name, vocabulary_size=37_000)
        training = TrainingConfig.preset(name)
        assert expected == [
            model.num_layers, model.model_dim, model.feed_forward_dim, model.num_heads,
            model.dropout, training.train_steps, training.average_last,
            training.warmup_steps, training.label_smoothing, training.batch_tokens,
        ]  # fmt: skip
    search, parsing = SearchConfig(), ParsingTask.default_search
    assert (search.beam_size, search.length_penalty, search.max_extra_length) == (4, 0.6, 50)
    assert parsing == parsing | {"beam_size": 21, "length_penalty": 0.3, "max_extra_length": 300}


def test_rows_name_objects_and_tests_that_exist():
    paper = runpy.run_path(str(ROOT / "scripts" / "paper.py"))
    text = paper["PAGE"].read_text("utf-8")
    assert paper["update"](text)[1] == []
    rows = re.findall(r"^\| (?!Paper|---).*", text, re.M)
    assert len(rows) >= 60
    for row in rows:
        files = [file for _, _, file in paper["LINK"].findall(row)]
        assert any(file.startswith("keras_transformer") for file in files), row
        assert any(file.startswith("tests") for file in files), row


def test_notebook_is_that_of_the_example():
    notebook = runpy.run_path(str(ROOT / "scripts" / "notebook.py"))
    example = notebook["EXAMPLE"]
    shown = example.with_suffix(".ipynb").read_text("utf-8")
    assert shown == notebook["make_notebook"](example.read_text("utf-8")), "run scripts/notebook.py"
    cells = [cell for cell in json.loads(shown)["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 12
    for cell in cells:
        compile("".join(cell["source"]), "cell", "exec")
