"""Fixtures shared by all tests."""

import contextlib
import datetime
import fcntl
import functools
import gc
import io
import os
import pathlib
import random
import resource
import runpy
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from absl import flags

# A process for each core runs tests: further threads of OpenMP (PyTorch, CTranslate2) wait in
# loops, which took five sixths of the processor time of the models on PyTorch.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# On a GPU this process would take all memory, and leave none to those that a test starts.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

# Files that take longest, by their names: begun last, one of them would keep everyone waiting.
_LONGEST = (
    "test_devices", "test_distribution", "test_backends", "test_pages", "test_train", "test_fuzz",
    "test_benchmark", "test_model_server", "test_translate", "test_other_commands",
    "test_attention_is_all_you_need", "test_examples", "test_transformer",
)  # fmt: skip

_TESTS = pathlib.Path(__file__).resolve().parent
_SCRIPTS = _TESTS.parent / "scripts"
_DATA = _TESTS / "data"

# Folders with modules that tests of several folders import.
sys.path.extend(
    str(_TESTS / name)
    for name in ("", "../examples", "client", "interop", "models", "oracles", "serving", "training")
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first."""
    items.sort(key=lambda item: item.path.stem not in _LONGEST)


# Folders whose files share expensive fixtures, a run and an export, and so run in one process.
_TOGETHER = {"commands": "commands", "inference": "serving", "serving": "serving"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distributes folders that share fixtures, the tests of test_gpu.py, and else files."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            if "test_gpu" in file:  # XLA compiles each of its tests for a minute
                return nodeid
            return _TOGETHER.get(pathlib.PurePath(file).parent.name, file)

    return Scheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strict-skips",
        action="store_true",
        help="fail if a test was skipped for want of something that can be installed",
    )


# Reasons to skip that no package would remove.
_JUSTIFIED_SKIPS = (
    "tensorflow_model_server", "IPv6", "large pages", "at most one GPU",
    "needs a GPU", "only used with TensorFlow", "gRPC's tensors",
    "the extra aot",  # whose JAX is older than the one of the tests
)  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--strict-skips") or exitstatus:
        return
    reasons = {str(report.longrepr[-1]) for report in reporter.stats.get("skipped", [])}
    if any(all(known not in reason for known in _JUSTIFIED_SKIPS) for reason in reasons):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line("--strict-skips: tests were skipped that could run; see their list")


def pytest_fixture_setup(fixturedef: pytest.FixtureDef) -> None:
    """Seeds what each fixture draws: its models have the same weights in every run."""
    random.seed(fixturedef.argname)


def pytest_runtest_call(item: pytest.Item) -> None:
    """Seeds what each test draws, its fixtures aside."""
    random.seed(item.nodeid)


@pytest.fixture(scope="module", autouse=True)
def frozen_garbage():
    """Collects garbage once a module, and leaves what is alive out of later collections.

    Keras collects garbage for each variable that `quantize` replaces, which takes a second among
    all objects of TensorFlow.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def sample_model(tmp_path_factory) -> Callable[[str], pathlib.Path]:
    """Gives the folder of a model of another toolkit, see data/interop/README.md."""
    folder = tmp_path_factory.mktemp("interop")

    @functools.cache
    def unpack(name: str) -> pathlib.Path:
        with tarfile.open(_DATA / "interop" / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        return folder / name

    return unpack


@pytest.fixture(scope="session")
def free_ports():
    """Gives so many ports of this machine that no program listens on."""

    def free_ports(count: int) -> list[int]:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        ports = [each.getsockname()[1] for each in sockets]
        for each in sockets:
            each.close()
        return ports

    return free_ports


@pytest.fixture(scope="session")
def run_python():
    """Runs Python in a fresh process that finds this package, and gives what it prints."""
    paths = filter(None, [str(_SCRIPTS.parent), os.environ.get("PYTHONPATH")])
    found = {"PYTHONPATH": os.pathsep.join(paths), "TF_CPP_MIN_LOG_LEVEL": "3"}

    def run_python(*arguments, stdin=None, **environment):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            input=stdin,
            env=os.environ | found | environment,
            capture_output=True,
            text=True,
            timeout=1200,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run_python


@pytest.fixture
def full_disk():
    """A block in which no file may have more than 100 bytes."""

    @contextlib.contextmanager
    def full_disk():
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    return full_disk


def _file_of(content):
    """Returns an open file with a content: what a shell gives as standard input."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  (it outlives this call)
    file.write(content)
    file.seek(0)
    return io.TextIOWrapper(file)


@pytest.fixture
def call(monkeypatch, capsys):
    """Runs a script in this process, which has loaded TensorFlow already.

    Gives its exit status, and what it wrote to standard output and standard error.
    """
    from helpers import Result

    monkeypatch.syspath_prepend(str(_SCRIPTS))

    def call(script, *arguments, stdin=b""):
        path = str(_SCRIPTS / script)
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        file = _file_of(stdin) if isinstance(stdin, bytes) else stdin
        monkeypatch.setattr(sys, "stdin", file)
        others = set(flags.FLAGS)
        capsys.readouterr()
        code = 0
        try:
            # What a script sets for its TensorFlow is not for the processes of later tests.
            with mock.patch.dict(os.environ), warnings.catch_warnings():
                runpy.run_path(path, run_name="__main__")
        except SystemExit as error:  # its text is what Python would print
            code = error.code
            if isinstance(code, str):
                print(code, file=sys.stderr)
                code = 1
        finally:
            if file is not stdin:
                file.close()
            # A command defines its flags when it is imported.
            sys.modules.pop(f"keras_transformer.commands.{pathlib.Path(script).stem}", None)
            for name in set(flags.FLAGS) - others:
                if not flags.FLAGS.find_module_defining_flag(name).startswith("absl."):
                    delattr(flags.FLAGS, name)
            flags.FLAGS.unparse_flags()
        return Result(code or 0, *capsys.readouterr())

    return call


_TRANSLATORS: dict[Any, Any] = {}  # of commands, by checkpoints and settings


@pytest.fixture
def share_translators(monkeypatch):
    """Has the commands trace the graph of one checkpoint and search once."""
    from keras_transformer.commands import common

    load = common.load_translator

    def load_once(models, search, task=None, **of_export):
        if of_export:
            return load(models, search, task, **of_export)
        stored = [model.run.checkpoints().path(model.checkpoint) for model in models]
        files = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in stored)
        key = files, search, task or models[0].configs.task
        if key not in _TRANSLATORS:
            _TRANSLATORS[key] = load(models, search, task)
        return _TRANSLATORS[key]

    monkeypatch.setattr(common, "load_translator", load_once)


# A small model that has learned to translate word by word, in several scripts, with a vocabulary
# for each side: one run and one export of it for all tests.
_WORDS = {
    "hello": "привет",
    "tree": "木",
    "sun": "شمس",
    "house": "Haus",
    "cat": "γάτα",
    "two": "दो",
}
_SETTINGS = dict(
    preset="tiny", num_layers=1, model_dim=32, feed_forward_dim=32, num_heads=2, dropout=0.0,
    vocabulary_kind="word", vocabulary_size=30, share_vocabulary=False, precision="float32",
    batch_tokens=600, learning_rate=0.006, warmup_steps=50, train_steps=300, checkpoint_steps=150,
    log_steps=50,
)  # fmt: skip
# Short, so that no test decodes for long.
_SEARCH = dict(beam_size=4, max_source_length=12, max_extra_length=5)


@pytest.fixture(scope="session")
def words():
    """What each source word is in the target language."""
    return _WORDS


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Makes a folder once for all processes that run tests, and gives its path."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def once(name, make):
        folder, done = base / name, base / f"{name}.done"
        with (base / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                make(folder)
                done.touch()
        return folder

    return once


@pytest.fixture(scope="session")
def texts(once):
    """A folder with train, dev and test files of one to four words a line: .en, and .xx."""

    def write(folder):
        folder.mkdir()
        generator = random.Random(1)
        for split, count in (("train", 512), ("dev", 10), ("test", 12)):
            lines = [
                generator.choices(list(_WORDS), k=generator.randint(1, 4)) for _ in range(count)
            ]
            for ending, table in (("en", {}), ("xx", _WORDS)):
                rows = (" ".join(table.get(word, word) for word in line) + "\n" for line in lines)
                (folder / f"{split}.{ending}").write_text("".join(rows), encoding="utf-8")

    return once("texts", write)


@pytest.fixture(scope="session")
def run_dir(once, texts):
    """The directory of the run; tests that change it take a copy."""
    from keras_transformer.training.run import RunDirectory
    from keras_transformer.training.trainer import train

    def create(folder):
        files = {
            split: tuple(str(texts / f"{split}.{ending}") for ending in ("en", "xx"))
            for split in ("train", "dev", "test")
        }
        train(RunDirectory.create(folder, **files, **_SETTINGS), jit_compile=False, show=False)

    return once("run", create)


@pytest.fixture(scope="session")
def trained(run_dir):
    """The model of the run and the vocabularies of its source and target."""
    from keras_transformer.training.run import RunDirectory

    run = RunDirectory(run_dir)
    return run.load_model(), *run.vocabularies()


@pytest.fixture(scope="session")
def make_translator(trained):
    """Gives a translator with that model and some search of its own, traced once.

    Its task bans the words `banned`.
    """
    from helpers import banning_task

    from keras_transformer import Translator
    from keras_transformer.config import SearchConfig

    @functools.cache
    def make(banned=(), **changes):
        return Translator(*trained, SearchConfig(**_SEARCH | changes), task=banning_task(banned))

    return make


@pytest.fixture(scope="session")
def translator(make_translator):
    """A trained translator."""
    return make_translator()


@pytest.fixture(scope="session")
def two_best(make_translator):
    """A trained translator that gives two translations."""
    return make_translator(num_translations=2)


@pytest.fixture(scope="session")
def exported(once, run_dir, two_best):
    """The second translator as a SavedModel: the folder of version 1."""
    from keras_transformer.loading import open_model
    from keras_transformer.serving.export import export

    training = [open_model(run_dir, "average").describe()]
    return once("exports", lambda folder: export(two_best, folder, training=training)) / "1"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A folder with two authorities, ca and other, and with certificates of the first."""
    import trustme

    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().cert_pem.write_to_path(folder / "other.pem")
    here, yesterday = ("127.0.0.1", "localhost"), datetime.datetime.now() - datetime.timedelta(1)
    for name, certificate in (
        ("server", authority.issue_cert(*here)),
        ("client", authority.issue_cert(*here)),
        ("expired", authority.issue_cert(*here, not_after=yesterday)),
        ("elsewhere", authority.issue_cert("mt.example.org")),
        ("stranger", trustme.CA().issue_cert(*here)),
    ):
        certificate.private_key_pem.write_to_path(folder / f"{name}.key")
        certificate.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    return folder
