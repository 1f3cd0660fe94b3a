"""Fixtures shared by all tests."""

import collections
import functools
import gc
import io
import os
import pathlib
import random
import runpy
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from absl import flags

# A process for each core runs tests: further threads of OpenMP (PyTorch, CTranslate2) wait in
# loops, which took five sixths of the processor time of the models on PyTorch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Files that take longest, by their names: begun last, one of them would keep everyone waiting.
_LONGEST = (
    "test_fit", "test_devices", "test_backends", "test_pages", "test_train",
    "test_benchmark", "test_fuzz", "test_native_runtime", "test_model_server",
    "test_translate", "test_export_script",
    "test_signatures", "test_search_options", "test_transformer", "test_ctranslate2",
)  # fmt: skip

_SCRIPTS = pathlib.Path(__file__).resolve().parents[1] / "scripts"
_DATA = pathlib.Path(__file__).resolve().parent / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first."""
    items.sort(key=lambda item: item.path.stem not in _LONGEST)


# Folders whose files share expensive fixtures, a run and an export, and so run in one process.
_TOGETHER = {"commands": "commands", "inference": "serving", "serving": "serving"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distributes folders that share fixtures, and else files."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
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
    "tensorflow_model_server", "IPv6", "may not mount", "right to mount",
    "large pages", "at most one GPU", "only used with TensorFlow", "gRPC's tensors",
    "REPRODUCE_DATA",
)  # fmt: skip


def pytest_terminal_summary(terminalreporter, exitstatus, config) -> None:
    """Lists what was skipped and why; with --strict-skips unjustified skips are failures."""
    counts = collections.Counter(
        str(report.longrepr[-1]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
    )
    for reason, count in sorted(counts.items()):
        terminalreporter.write_line(f"skipped {count}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--strict-skips") or exitstatus:
        return
    reasons = {str(report.longrepr[-1]) for report in reporter.stats.get("skipped", [])}
    if any(all(known not in reason for known in _JUSTIFIED_SKIPS) for reason in reasons):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line("--strict-skips: tests were skipped that could run; see the list below")


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
    found = {"PYTHONPATH": str(_SCRIPTS.parent), "TF_CPP_MIN_LOG_LEVEL": "3"}

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


Result = collections.namedtuple("Result", "code out err")


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
    monkeypatch.syspath_prepend(str(_SCRIPTS))

    def call(script, *arguments, stdin=b""):
        path = str(_SCRIPTS / script)
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", _file_of(stdin))
        others = set(flags.FLAGS)
        capsys.readouterr()
        code = 0
        try:
            # What a script sets for its TensorFlow is not for the processes of later tests.
            with mock.patch.dict(os.environ):
                runpy.run_path(path, run_name="__main__")
        except SystemExit as error:  # its text is what Python would print
            code = error.code
            if isinstance(code, str):
                print(code, file=sys.stderr)
                code = 1
        finally:
            # A command defines its flags when it is imported.
            sys.modules.pop(f"keras_transformer.commands.{pathlib.Path(script).stem}", None)
            for name in set(flags.FLAGS) - others:
                delattr(flags.FLAGS, name)
            flags.FLAGS.unparse_flags()
        return Result(code or 0, *capsys.readouterr())

    return call


# Two small models that have learned to translate word by word, in several scripts.
_WORDS = {
    "hello": "привет",
    "tree": "木",
    "sun": "شمس",
    "house": "Haus",
    "cat": "γάτα",
    "two": "दो",
}
# Short, so that no test decodes for long.
_SEARCH = dict(beam_size=4, max_source_length=12, max_extra_length=5)


def _train(share_vocabulary):
    """Trains for seconds on sentences of one to four words."""
    import keras
    import numpy as np

    from keras_transformer.config import BOS_ID, EOS_ID, TransformerConfig
    from keras_transformer.data import pad_ids
    from keras_transformer.models import Transformer
    from keras_transformer.objectives import SmoothedCrossEntropy
    from keras_transformer.text import learn_vocabulary

    generator = random.Random(1)
    sentences = [generator.choices(list(_WORDS), k=generator.randint(1, 4)) for _ in range(512)]
    source_text = [" ".join(words) for words in sentences]
    target_text = [" ".join(_WORDS[word] for word in words) for words in sentences]
    if share_vocabulary:
        source = target = learn_vocabulary(source_text + target_text, size=30, kind="word")
    else:
        source = learn_vocabulary(source_text, size=30, kind="word")
        target = learn_vocabulary(target_text, size=29, kind="word")
    config = TransformerConfig(
        vocabulary_size=source.size,
        target_vocabulary_size=None if share_vocabulary else target.size,
        share_embeddings="all" if share_vocabulary else "target",
        num_layers=1,
        model_dim=32,
        feed_forward_dim=32,
        num_heads=2,
        dropout=0.0,
    )
    keras.utils.set_random_seed(1)
    model = Transformer(config)
    model.compile(keras.optimizers.Adam(5e-3), loss=SmoothedCrossEntropy(0.1), jit_compile=False)
    source_ids = pad_ids([[*ids, EOS_ID] for ids in source.encode(source_text)])
    labels = pad_ids([[*ids, EOS_ID] for ids in target.encode(target_text)])
    shifted = np.concatenate([np.full_like(labels[:, :1], BOS_ID), labels[:, :-1]], axis=1)
    model.fit({"source": source_ids, "target": shifted}, labels, 64, epochs=20, verbose=0)
    return model, source, target


def _translator(trained, **changes):
    from keras_transformer.config import SearchConfig
    from keras_transformer.inference import Translator

    return Translator(*trained, SearchConfig(**_SEARCH | changes))


@pytest.fixture(scope="session")
def words():
    """What each source word is in the target language."""
    return _WORDS


@pytest.fixture(scope="session")
def trained():
    """A trained model and the vocabularies of its source and target, which are the same one."""
    return _train(share_vocabulary=True)


@pytest.fixture(scope="session")
def make_translator(trained):
    """Gives a translator with that model and some search of its own, traced once."""
    return functools.cache(lambda **changes: _translator(trained, **changes))


@pytest.fixture(scope="session")
def translator(make_translator):
    """A trained translator."""
    return make_translator()


@pytest.fixture(scope="session")
def separate_translator():
    """A trained translator with a vocabulary for each side, which gives two translations."""
    return _translator(_train(share_vocabulary=False), num_translations=2)


@pytest.fixture(scope="session")
def exported(separate_translator, tmp_path_factory):
    """The second translator as a SavedModel: the folder of version 1."""
    from keras_transformer.serving.export import export

    return export(separate_translator, tmp_path_factory.mktemp("exports"), batch_sizes=(1, 8))


_HERE = "IP:127.0.0.1,DNS:localhost"


def _openssl(*arguments, folder):
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A folder with two authorities, ca and other, and with certificates of the first."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl, which is not here")
    folder = tmp_path_factory.mktemp("certificates")
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "other"):
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        _openssl(*new, "-x509", "-days", "2", *files, "-subj", f"/CN={name}", *usage, folder=folder)
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
    for name, days, hosts in (
        ("server", "2", _HERE),
        ("client", "2", _HERE),
        ("expired", "-1", _HERE),
        ("elsewhere", "2", "DNS:mt.example.org"),
    ):
        extensions = "authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
        (folder / "extensions").write_text(f"subjectAltName={hosts}\n{extensions}")
        files = ("-keyout", f"{name}.key", "-out", f"{name}.csr")
        _openssl(*new, *files, "-subj", f"/CN={name}", folder=folder)
        files = ("-in", f"{name}.csr", "-out", f"{name}.pem")
        _openssl("x509", "-req", *files, *signed, "-days", days, folder=folder)
    _openssl("ec", "-in", "client.key", "-aes256", "-passout", "pass:secret", "-out",
            "encrypted.key", folder=folder)  # fmt: skip
    return folder
