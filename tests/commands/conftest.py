"""Commands and benchmarks, run through scripts/: in a process of their own or, faster, in this."""

import collections
import functools
import os
import pathlib
import random
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# For the servers that stand in for the real one.
sys.path.extend(str(_ROOT / "tests" / folder) for folder in ("client", "serving"))
_SCRIPTS = _ROOT / "scripts"
_TINY = [
    "--preset=tiny",
    "--num_layers=1",
    "--model_dim=16",
    "--num_heads=2",
    "--feed_forward_dim=16",
    "--dropout=0",
    "--vocabulary_kind=word",
    "--vocabulary_size=20",
    "--train_steps=40",
    "--checkpoint_steps=20",
    "--batch_tokens=200",
    "--warmup_steps=10",
    "--learning_rate=0.02",
]


Result = collections.namedtuple("Result", "code out err")


def _environment():
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    return inherited | {"PYTHONPATH": str(_ROOT)}


@pytest.fixture(scope="session")
def start():
    """Starts a script, given by name or path, in a process of its own."""

    def start(script, *arguments, **options):
        command = [sys.executable, str(_SCRIPTS / script), *map(str, arguments)]
        pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        environment = _environment() | options.pop("env", {})
        return subprocess.Popen(command, text=True, env=environment, **(pipes | options))

    return start


@pytest.fixture(scope="session")
def run(start):
    """Runs a script in a process of its own."""

    def run(script, *arguments, **options):
        process = start(script, *arguments, **options)
        out, err = process.communicate(timeout=600)
        return Result(process.returncode, out, err)

    return run


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A folder with train, dev and test files: letters in .a, as many of the alphabet in .b."""
    folder = tmp_path_factory.mktemp("texts")
    generator = random.Random(1)
    for split, count in (("train", 200), ("dev", 10), ("test", 12)):
        lines = [generator.choices("pqrstuvw", k=generator.randint(4, 6)) for _ in range(count)]
        for ending, text in (("a", lines), ("b", ["abcdef"[: len(line)] for line in lines])):
            content = "".join(" ".join(letters) + "\n" for letters in text)
            (folder / f"{split}.{ending}").write_text(content)
    return folder


@pytest.fixture(scope="session")
def train_flags(texts):
    """The flags of train for a very small model on these texts."""
    files = [
        f"--{split}_{side}={texts}/{split}.{ending}"
        for split in ("train", "dev", "test")
        for side, ending in (("source", "a"), ("target", "b"))
    ]
    return [*_TINY, *files]


@pytest.fixture(scope="session")
def trained(run, train_flags, tmp_path_factory):
    """A run directory that train has made; tests that change it take a copy."""
    run_dir = tmp_path_factory.mktemp("runs") / "tiny"
    result = run("train.py", f"--run_dir={run_dir}", *train_flags)
    assert result.code == 0, result.err
    assert result.err == ""
    return run_dir


@pytest.fixture(scope="session")
def traced():
    """The translators of `translate` and `evaluate`, by checkpoints and settings."""
    return {}


@pytest.fixture
def share_translators(monkeypatch, traced):
    """Has the commands trace the graph of one checkpoint and search once."""
    from keras_transformer import inference
    from keras_transformer.commands import common

    load, make = common.load_translator, inference.Translator

    def load_once(found):
        stored = [path for run, name in found
                  for path in sorted(run.checkpoints().folder.glob(f"{name}.*"))]  # fmt: skip
        key = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in stored)
        if key not in traced:
            traced[key] = load(found)
        return traced[key]

    def make_once(model, source, target, search, *others, **options):
        if others or options.keys() != {"task"}:
            return make(model, source, target, search, *others, **options)  # for an export, say
        key = (id(model), search, options["task"])
        if key not in traced:
            traced[key] = made = make(model, source, target, search, **options)
            made.with_cached_projection = functools.cache(made.with_cached_projection)
        return traced[key]

    monkeypatch.setattr(common, "load_translator", load_once)
    monkeypatch.setattr(inference, "Translator", make_once)


@pytest.fixture
def small_disk(tmp_path):
    """Gives a folder on a disk of its own with so many bytes, where mounting is permitted."""
    mounted = []

    def mount(size):
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except OSError as error:
            pytest.skip(f"needs a small disk, and there is no mount: {error}")
        if done.returncode:
            pytest.skip(f"needs a small disk, and may not mount one: {done.stderr.decode()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def translate(call, trained, share_translators):
    """Runs translate with the trained run."""
    return functools.partial(call, "translate.py", f"--run_dir={trained}")


@pytest.fixture(scope="session")
def refused():
    """Checks that a command said in one line what is wrong, and found it in time."""

    def check(result, *parts):
        assert result.code == 1, result
        lines = result.err.splitlines()
        assert len(lines) == 1, result.err
        name, _, message = lines[0].partition(": ")
        assert name.endswith(".py")
        for part in parts:
            assert str(part) in message

    return check
