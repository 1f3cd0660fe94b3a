"""Pages run as printed and print what they show; some trainings are cut short."""

import re
import shutil
import subprocess
import sys
import time
import urllib.request

import pytest

from keras_transformer.training.distribution import worker_of_environment

_SMALL = "--num_layers=1 --model_dim=16 --feed_forward_dim=16 --num_heads=2 --vocabulary_size=60"
_SHORT = "--train_steps=2 --checkpoint_steps=2 --batch_tokens=512"
# A repeated flag counts the last time; these lack settings of every architecture or task.
_SMALL_AND_SHORT = f"{_SMALL} {_SHORT}"
_ONE_LAYER_AND_SHORT = f"--num_layers=1 {_SHORT}"

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that the tutorials and guides share."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture
def trained(folder, run_page):
    """The folder after the tutorial of parallel text, which trains runs/mine."""
    if not (folder / "runs" / "mine").exists():
        run_page("docs/tutorials/own_text.md", folder)
    return folder


@slow
def test_own_text_is_trained_and_translated(trained):
    assert len((trained / "test.de").read_text("utf-8").splitlines()) == 100


@slow
def test_fine_tuning(trained, run_page):
    run_page("docs/tutorials/fine_tune.md", trained)


@slow
def test_serving(trained, run_page, call, free_ports, monkeypatch):
    run_page("docs/guides/formats.md", trained)
    monkeypatch.chdir(trained)
    assert call("export.py", "--run_dir=runs/mine", "--export_dir=exports/served").code == 0
    models = trained / "exports" / "served" / "models.config"
    text = models.read_text().replace("/models/served", str(models.parent))
    models.write_text(text.replace('"served"', '"mine"'))
    grpc, rest = free_ports(2)
    server = subprocess.Popen(
        [sys.executable, "tests/serving/stand_in_server.py", f"--port={grpc}",
         f"--rest_api_port={rest}", f"--model_config_file={models}",
         "--file_system_poll_wait_seconds=0.2"],
        cwd=trained,
    )  # fmt: skip
    try:
        _wait_for(rest)
        run_page("docs/tutorials/serve.md", trained, replace=[(":8500", f":{grpc}")])
        run_page("docs/guides/bulk.md", trained, replace=[(":8500", f":{grpc}")])
    finally:
        server.kill()
        server.wait()
    assert len((trained / "output.de").read_text("utf-8").splitlines()) == 100


def _wait_for(port: int) -> None:
    """Waits until the server has loaded the model."""
    for _ in range(600):
        try:
            url = f"http://localhost:{port}/v1/models/mine"
            if b"AVAILABLE" in urllib.request.urlopen(url, timeout=1).read():
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError("the stand-in does not answer")


@slow
@pytest.mark.parametrize(
    "guide",
    ["search", "constraints", "confidence", "attention", "training", "new_words"],
)
def test_guides_to_a_trained_run(trained, run_page, guide):
    run_page(f"docs/guides/{guide}.md", trained)


@slow
@pytest.mark.parametrize("guide", ["tasks", "architectures"])
def test_own_modules(trained, run_page, guide):
    run_page(f"docs/guides/{guide}.md", trained)


@slow
@pytest.mark.parametrize("guide", ["data", "memory"])
def test_guides_that_train(trained, run_page, guide):
    run_page(f"docs/guides/{guide}.md", trained, short=_SMALL_AND_SHORT)


@slow
def test_models_of_keras(run_page, tmp_path):
    run_page("docs/tutorials/keras.md", tmp_path)


@slow
def test_number_names(run_page, tmp_path):
    run_page("docs/tutorials/number_names.md", tmp_path, short=_ONE_LAYER_AND_SHORT)


def test_number_names_has_the_flags_of_the_quickstart(pages):
    root = pages["README.md"].parent
    script = (root / "scripts" / "quickstart.sh").read_text("utf-8")
    page = pages["docs/tutorials/number_names.md"].read_text("utf-8")
    flags = [re.findall(r"--\w+=\S+", re.search(r"train\.py (.*?)\n\n", text + "\n\n", re.S)[1])
             for text in (script, page.replace("```\n", "\n\n"))]  # fmt: skip
    of_script, of_page = (sorted(f for f in each if "run_dir" not in f) for each in flags)
    assert of_script == of_page


def test_server_command_of_the_readme_is_one_line_of_the_tutorial(pages):
    (short,), (long,) = (
        re.findall(r"^docker run .*$", pages[page].read_text("utf-8"), re.M)
        for page in ("README.md", "docs/tutorials/serve.md")
    )
    assert long.startswith(short)
    assert not long.endswith("\\")


@slow
def test_other_tasks(run_page, tmp_path):
    for split in ("train", "dev", "test"):
        entries = (f"ab{number}  a b {' '.join(str(number))}\n" for number in range(40))
        (tmp_path / f"{split}.dict").write_text("".join(entries), encoding="utf-8")
        count = 40 if split == "train" else 4
        nouns = [f"quick{number} brown{number * 7 % 10} foxes" for number in range(count)]
        trees = (f"(S (NP (NNS {noun.replace(' ', ') (NNS ')})))\n" for noun in nouns)
        (tmp_path / f"{split}.mrg").write_text("".join(trees), encoding="utf-8")
        (tmp_path / f"{split}.txt").write_text("\n".join(nouns) + "\n", encoding="utf-8")
    run_page("docs/guides/pronounce_and_parse.md", tmp_path, short=_ONE_LAYER_AND_SHORT)
    assert len((tmp_path / "test.tsv").read_text().splitlines()) == 1 + 4


@slow
def test_readme(trained, run_page, tmp_path):
    for split in ("train", "dev", "test"):
        for language in ("en", "de"):
            shutil.copy(trained / f"{split}.{language}", tmp_path)
    run_page("README.md", tmp_path, short=_SMALL_AND_SHORT)


def test_readme_is_short(pages):
    assert len(pages["README.md"].read_text("utf-8").splitlines()) <= 100


def test_cluster_example_is_valid(pages, monkeypatch):
    text = pages["docs/guides/gpu.md"].read_text("utf-8")
    (value,) = re.findall(r"export TF_CONFIG='(.*?)'", text, re.S)
    monkeypatch.setenv("TF_CONFIG", value)
    worker = worker_of_environment()
    assert (worker.index, worker.count) == (0, 2)


@slow
def test_strategies(run_page, tmp_path):
    run_page("docs/guides/gpu.md", tmp_path)
