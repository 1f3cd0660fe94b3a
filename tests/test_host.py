"""Cores, memory that malloc keeps (counted in page faults of fresh processes), signals."""

import os
import pathlib
import platform
import signal
import threading

import pytest

import keras_transformer
from keras_transformer import host

# 5 arrays of 64 MB, one after the other: 16,384 pages each. Threads are those of TensorFlow's
# pools: by default each has its own arena. The threshold is what TensorFlow's library sets.
_ALLOCATE = """
import ctypes, resource, sys, threading
from keras_transformer import keep_freed_memory
if {keep}:
    assert keep_freed_memory() and keep_freed_memory()
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
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
_PAGES = 2 * 5 * 2**26 // os.sysconf("SC_PAGE_SIZE")
_MALLOC = ("MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's malloc")
@pytest.mark.parametrize("keep", [True, False])
def test_kept_memory_takes_no_page_faults(run_python, monkeypatch, keep):
    enabled = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not keep and enabled.exists() and "[always]" in enabled.read_text():
        pytest.skip("the system gives large pages by default")
    for name in _MALLOC:
        monkeypatch.delenv(name, raising=False)
    other = "glibc.rtld.optional_static_tls=1024"  # does not matter
    program = _ALLOCATE.format(keep=keep)
    faults = int(
        run_python("-c", program, NUMPY_MADVISE_HUGEPAGE="0", GLIBC_TUNABLES=other).split()[-1]
    )
    assert faults < _PAGES / 50 if keep else faults > 0.9 * _PAGES


def test_settings_and_malloc_of_the_user_are_kept(monkeypatch):
    monkeypatch.setattr(host.ctypes, "CDLL", None)  # not even loaded
    for name, value in (
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=2"),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2"),
    ):
        with monkeypatch.context() as environment:
            environment.setenv(name, value)
            assert keras_transformer.keep_freed_memory() is False


def test_gpu_machine_compiles_without_autotuning_and_keeps_the_users_settings(
    monkeypatch, tmp_path
):
    for name in ("TF_FORCE_GPU_ALLOW_GROWTH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4")
    monkeypatch.setattr(host, "NVIDIA_DRIVER", tmp_path)
    host.set_up_gpu()
    flags = os.environ["XLA_FLAGS"].split()
    assert "--xla_gpu_enable_triton_gemm=false" in flags
    assert flags[-1] == "--xla_gpu_autotune_level=4"  # the last one counts
    assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert keras_transformer.keep_freed_memory() is False
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
        (None, False),  # an unknown system, without such a file
    ],
)
def test_has_bfloat16_needs_fast_cpu_instructions(monkeypatch, tmp_path, line, result):
    if line is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\nprocessor\t: 1\n{line}\n")
    monkeypatch.setattr(host.pathlib, "Path", lambda _: tmp_path / "cpuinfo")
    assert host.has_bfloat16() is result


def test_ignored_signals_stay_ignored_and_other_threads_catch_none():
    original = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup and `&` in scripts do
    try:
        with host.noted_signals() as received:
            signal.raise_signal(signal.SIGINT)
        assert received == [] and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.default_int_handler)
        seen = []

        def run():
            with host.noted_signals():
                seen.append(signal.getsignal(signal.SIGINT))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert seen == [signal.default_int_handler]
    finally:
        signal.signal(signal.SIGINT, original)
