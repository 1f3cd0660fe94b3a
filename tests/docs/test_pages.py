"""Pages run as printed and print what they show; some trainings are cut short."""

import pathlib
import shutil
import subprocess
import sys
import time
import urllib.request

import pytest

from keras_transformer.client import Client

ROOT = pathlib.Path(__file__).resolve().parents[2]
_SMALL = "--num_layers=1 --model_dim=16 --feed_forward_dim=16 --num_heads=2 --vocabulary_size=60"
_SHORT = "--train_steps=2 --warmup_steps=1 --checkpoint_steps=2 --batch_tokens=512"
# A repeated flag counts the last time; these lack settings of every architecture or task.
_SMALL_AND_SHORT = f"{_SMALL} {_SHORT}"
_ONE_LAYER_AND_SHORT = f"--num_layers=1 {_SHORT}"
_FEW_STEPS = "--train_steps=2 --checkpoint_steps=1 --batch_tokens=512"
# Trainings whose output the page does not show.
_SHORTER = [
    ("--train_steps=20 --checkpoint_steps=10", _FEW_STEPS),
    ("--num_layers=1 --train_steps=20\n", f"--num_layers=1 {_FEW_STEPS}\n"),
    ("--seed=2", f"--seed=2 {_FEW_STEPS}"),
]
# Of the tutorial on Keras, which shows seven epochs of at most 15, and an export's generated text.
_OF_KERAS = [
    ("epochs=15", "epochs=3"),
    ("train, batch_tokens=2000", "train, batch_tokens=1000"),
    ('"exports/numbers")', '"exports/numbers", sentences=["ten"])'),
]

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
        assert len((folder / "test.de").read_text("utf-8").splitlines()) == 100
    return folder


@pytest.fixture(scope="module")
def server(free_ports):
    """A function that serves an export, and the ports that replace those of the pages."""
    grpc, rest = free_ports(2)
    running = []

    def stop():
        for each in running:
            each.kill()
            each.wait()
        running.clear()

    def warm_up(name):
        """Sends a first request of each kind, which takes long; a server has them in a file."""
        address = f"localhost:{rest}"
        with Client(address, protocol="rest", model=name, timeout_s=600) as client:
            client.translate("a")
            client.translate("a", max_length=3)
            client.score(["a"], ["a"])

    def serve(exported):
        stop()
        models = exported / "stand_in.config"
        text = (exported / "models.config").read_text()
        models.write_text(text.replace(f"/models/{exported.name}", str(exported)))
        running.append(subprocess.Popen(
            [sys.executable, ROOT / "tests/serving/stand_in_server.py", f"--port={grpc}",
             f"--rest_api_port={rest}", f"--model_config_file={models}",
             "--file_system_poll_wait_seconds=0.2"],
        ))  # fmt: skip
        for _ in range(600):
            try:
                url = f"http://localhost:{rest}/v1/models/{exported.name}"
                if b"AVAILABLE" in urllib.request.urlopen(url, timeout=1).read():
                    return warm_up(exported.name)
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError("the stand-in does not answer")

    yield dict(serve=serve, replace=[(":8500", f":{grpc}"), (":8501", f":{rest}")])
    stop()


@slow
@pytest.mark.parametrize(
    "page",
    ["tutorials/fine_tune", "guides/formats", "guides/constraints", "guides/inspect",
     "guides/training", "guides/architectures", "guides/data", "guides/compare"],
)  # fmt: skip
def test_pages_about_a_trained_run(trained, run_page, page):
    short = _SMALL_AND_SHORT if page == "guides/data" else ""
    run_page(f"docs/{page}.md", trained, short=short, replace=_SHORTER)


@slow
def test_serving_and_readme(trained, run_page, server, tmp_path):
    run_page("docs/tutorials/serve.md", trained, **server)
    run_page("docs/guides/serving.md", trained, **server)
    run_page("docs/guides/search.md", trained, **server)
    assert len((trained / "output.de").read_text("utf-8").splitlines()) == 100
    for path in trained.glob("*.??"):
        shutil.copy(path, tmp_path)
    (tmp_path / "exports").symlink_to(trained / "exports")
    export = "keras-transformer export --model=en-de --export_dir=exports/en-de\n"
    readme = (ROOT / "README.md").read_text("utf-8")
    assert export in readme and export in (ROOT / "docs/tutorials/serve.md").read_text("utf-8")
    # The tutorial has exported it.
    server["replace"] = [*server["replace"], (export, ""), ("* 400", "* 40")]
    run_page("README.md", tmp_path, short=_SMALL_AND_SHORT, **server)


@slow
@pytest.mark.parametrize(
    "page", ["tutorials/keras", "guides/models", "guides/gpu", "tutorials/number_names"]
)
def test_pages_that_begin_with_nothing(run_page, tmp_path, page):
    run_page(f"docs/{page}.md", tmp_path, _ONE_LAYER_AND_SHORT, _OF_KERAS)


@slow
def test_other_tasks(trained, run_page, tmp_path):
    for path in trained.glob("*.??"):
        shutil.copy(path, tmp_path)
    for split in ("train", "dev", "test"):
        entries = (f"ab{number}  a b {' '.join(str(number))}\n" for number in range(40))
        (tmp_path / f"{split}.dict").write_text("".join(entries), encoding="utf-8")
        count = 40 if split == "train" else 4
        nouns = [f"quick{number} brown{number * 7 % 10} foxes" for number in range(count)]
        trees = (f"(S (NP (NNS {noun.replace(' ', ') (NNS ')})))\n" for noun in nouns)
        (tmp_path / f"{split}.mrg").write_text("".join(trees), encoding="utf-8")
        (tmp_path / f"{split}.txt").write_text("\n".join(nouns) + "\n", encoding="utf-8")
    run_page("docs/guides/tasks.md", tmp_path, short=_ONE_LAYER_AND_SHORT, replace=_SHORTER)
