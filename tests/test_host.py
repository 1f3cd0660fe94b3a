"""Memory that malloc keeps, counted in page faults of fresh processes; processors and signals."""

import os
import pathlib
import platform
import shlex
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import pytest

import keras_transformer
from keras_transformer import host
from keras_transformer.errors import InputError
from keras_transformer.inference.translator import BatchTranslator

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# 5 arrays of 64 MB, one after the other: 16,384 pages each. Threads are those of TensorFlow's
# pools: by default each has its own arena. The threshold is what TensorFlow's library sets.
_ALLOCATE = """
import ctypes, resource, sys, threading
from keras_transformer import keep_freed_memory
kept = [keep_freed_memory() for _ in range({calls})]
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
ctypes.CDLL(None).mallopt(-3, 2**17)
import numpy as np
def allocate():
    for _ in range(5):
        np.ones(2**23)
allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
allocate()
thread = threading.Thread(target=allocate)
thread.start()
thread.join()
print(*kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
_PAGES = 2 * 5 * 2**26 // os.sysconf("SC_PAGE_SIZE")
_TOKENIZE = """
import pathlib, sys, tempfile, time
from keras_transformer.data import TsvFile, cached_corpus
from keras_transformer.text import learn_vocabulary
if __name__ == "__main__":
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "text").write_text("a b\\tc d\\n" * 500_000)
    vocabulary = learn_vocabulary(["a b c d"], kind="word")
    print("ready", flush=True)
    pair = vocabulary, vocabulary
    cached_corpus(folder / "tokens", [TsvFile(folder / "text")], pair, processes=2)
"""
_ON_GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's malloc")


@pytest.fixture
def faults(run_python, monkeypatch):
    """Gives the results of so many calls of `keep_freed_memory`, and the page faults after them."""
    for name in ("MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)

    def faults(calls, **variables):
        program = _ALLOCATE.format(calls=calls)
        *kept, faults = run_python("-c", program, NUMPY_MADVISE_HUGEPAGE="0", **variables).split()
        return kept, int(faults)

    return faults


@_ON_GLIBC
def test_kept_memory_takes_no_page_faults(faults):
    other_tunables = "glibc.rtld.optional_static_tls=1024"  # do not matter
    kept, few = faults(2, GLIBC_TUNABLES=other_tunables)
    assert kept == ["True", "True"]
    assert few < _PAGES / 50


@_ON_GLIBC
def test_default_malloc_takes_page_faults(faults):
    enabled = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if enabled.exists() and "[always]" in enabled.read_text():
        pytest.skip("the system gives large pages by default")
    assert faults(0)[1] > 0.9 * _PAGES


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
        ("MALLOC_ARENA_MAX", "2"),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=2"),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2"),
    ],
)
def test_settings_and_malloc_of_the_user_are_kept(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(host.ctypes, "CDLL", None)  # not even loaded
    assert keras_transformer.keep_freed_memory() is False


def test_library_without_malloc_options_is_left_alone(monkeypatch):
    monkeypatch.setattr(host.ctypes, "CDLL", mock.Mock(side_effect=OSError("does not exist")))
    assert keras_transformer.keep_freed_memory() is False


def test_gpu_machine_compiles_without_trials_and_with_a_heap_for_each_thread(monkeypatch, tmp_path):
    for name in ("TF_FORCE_GPU_ALLOW_GROWTH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4 --xla_dump_to=dump")
    monkeypatch.setattr(host.ctypes, "CDLL", None)  # not even loaded
    monkeypatch.setattr(host, "NVIDIA_DRIVER", tmp_path)
    host.set_up_gpu()
    expected = "--xla_gpu_autotune_level=4 --xla_dump_to=dump --xla_gpu_enable_triton_gemm=false"
    assert os.environ["XLA_FLAGS"] == expected
    assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert keras_transformer.keep_freed_memory() is False
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "false")
    host.set_up_gpu()
    assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "false"
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    host.set_up_gpu()
    assert os.environ["XLA_FLAGS"] == ""


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("flags\t\t: fpu avx2 avx512f", False),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512_bf16", True),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx512f avx512_bf16", False),
        ("flags\t\t: fpu avx512f amx_bf16 amx_tile", True),
        ("Features\t: fp asimd bf16", True),
        ("Hardware\t: unknown", False),
        (None, False),  # an unknown system, without such a file
    ],
)
def test_has_bfloat16_needs_fast_cpu_instructions(monkeypatch, tmp_path, line, result):
    if line is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\nprocessor\t: 1\n{line}\n")
    monkeypatch.setattr(host.pathlib, "Path", lambda _: tmp_path / "cpuinfo")
    assert host.has_bfloat16() is result


_FORK = """
import os
from keras_transformer.errors import InputError
from keras_transformer.host import check_not_forked
for is_loaded in (False, True):
    if is_loaded:
        check_not_forked()
    if os.fork() == 0:
        try:
            check_not_forked()
            print("fine", flush=True)
        except InputError as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
"""


def test_process_forked_after_a_model_was_loaded_must_load_its_own(run_python):
    fine, error = run_python("-c", _FORK).splitlines()
    assert fine == "fine"
    assert "load models in the child process only" in error


def test_models_are_not_used_in_a_forked_process(monkeypatch):
    translator = BatchTranslator({}.get)
    monkeypatch.setattr(host.os, "getpid", lambda: 1)
    for use in (lambda: translator.translate(["two"]), lambda: BatchTranslator({}.get)):
        with pytest.raises(InputError, match="forked after a model had been loaded"):
            use()


_POOL = """
import concurrent.futures, multiprocessing, os, time
from keras_transformer.host import end_with_parent

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn, initializer=end_with_parent) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        time.sleep(600)
"""


def test_pool_ends_when_its_parent_is_killed(tmp_path):
    program = tmp_path / "pool.py"
    program.write_text(_POOL)
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    with subprocess.Popen(
        [sys.executable, program], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        child = pathlib.Path("/proc", process.stdout.readline().strip())
        assert child.exists()
        process.kill()
        # The pipe ends once the child, which has inherited it, is gone too.
        assert process.stdout.read() == ""


@pytest.fixture
def handlers():
    """Handles Ctrl-C as in a terminal, and checks that all handlers are restored."""
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    signal.signal(signal.SIGINT, found)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_noted_and_a_second_ctrl_c_raises(handlers, number):
    with pytest.raises(KeyboardInterrupt), host.noted_signals() as received:
        assert received == []
        signal.raise_signal(number)
        assert received == [number]
        signal.raise_signal(signal.SIGINT)


def test_closed_terminal_is_noted():
    with host.noted_signals() as received:
        signal.raise_signal(signal.SIGHUP)
    assert received == [signal.SIGHUP]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 8])  # while processes start, and while they tokenize
def test_ctrl_c_leaves_no_tracebacks_of_child_processes(tmp_path, seconds):
    (tmp_path / "make_tokens.py").write_text(_TOKENIZE)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "make_tokens.py")],
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n", process.communicate()
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert errors.count("Traceback") <= 1, errors  # that of this script, unless it has ended
    assert "SpawnProcess" not in errors


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "1000 100000"}, 1),
        ({"cpu.max": "6400000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
    ],
)
def test_cores_are_those_of_the_containers_quota(tmp_path, monkeypatch, files, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    monkeypatch.setattr(host, "CGROUPS", tmp_path)
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(f"{content}\n")
    assert host.num_cores() == cores


def test_programs_are_not_kept_without_a_home_folder(monkeypatch, tmp_path, capsys):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # of a user without an entry
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    host.keep_programs()
    assert capsys.readouterr().err.startswith("There is no home folder to keep compiled programs")
    assert os.environ["TF_XLA_FLAGS"] == ""
    host.keep_programs(str(tmp_path))
    assert str(tmp_path) in os.environ["TF_XLA_FLAGS"]


def test_ignored_signal_stays_ignored(handlers):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup and `&` in scripts do
    with host.noted_signals() as received:
        signal.raise_signal(signal.SIGINT)
    assert received == []
    assert signal.signal(signal.SIGINT, signal.default_int_handler) == signal.SIG_IGN


def test_other_threads_note_no_signals(handlers):
    def run():
        with host.noted_signals():
            found.append(signal.getsignal(signal.SIGINT))

    found = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


@pytest.fixture
def keep_in(monkeypatch):
    """Has XLA keep programs in a folder, and gives the folder that it is told to use, if any."""

    def keep_in(folder):
        monkeypatch.setenv("TF_XLA_FLAGS", "")
        host.keep_programs(str(folder))
        first, *_ = [*shlex.split(os.environ["TF_XLA_FLAGS"]), ""]  # quoted: it may have spaces
        return pathlib.Path(first.partition("=")[2]) if first else None

    return keep_in


def test_unwritable_folder_for_programs_is_reported_and_not_used(keep_in, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert keep_in(tmp_path / "file") is None
    message = f"Cannot keep compiled programs in {tmp_path}/file (Not a directory), so another "
    assert capsys.readouterr().err.startswith(message)
    assert keep_in(tmp_path / "a new one").is_dir()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("method", ["stat", "read_bytes"])
def test_another_process_may_prune_programs_meanwhile(keep_in, tmp_path, monkeypatch, method):
    folder = keep_in(tmp_path)
    for number in range(70):
        (folder / f"{number}.pb").touch()
    os.utime(folder / "0.pb", (0, 0))
    plain = getattr(pathlib.Path, method)

    def overtaken(path):
        if path.name == "69.pb":
            path.unlink(missing_ok=True)
        return plain(path)

    monkeypatch.setattr(pathlib.Path, method, overtaken)
    assert keep_in(tmp_path) == folder
    assert len(list(folder.iterdir())) <= 64
    assert not (folder / "0.pb").exists()


def test_commit_of_the_source_is_that_of_its_repository(monkeypatch, tmp_path):
    package = tmp_path / "keras_transformer"
    package.mkdir()
    (package / "host.py").write_text("")
    monkeypatch.setattr(host, "__file__", str(package / "host.py"))
    assert host.source_commit() is None

    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD").strip()
    assert commit.startswith(host.source_commit()) and len(host.source_commit()) == 12
    (package / "host.py").write_text("changed = True")
    assert host.source_commit() == commit[:12] + "+"
