"""This process and its machine: cores, instructions, versions, memory, signals."""

import contextlib
import ctypes
import importlib.metadata
import os
import pathlib
import platform
import re
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from keras_transformer.version import __version__

NVIDIA_DRIVER = pathlib.Path("/proc/driver/nvidia")
# For mallopt (malloc.h): blocks come from the heap and never from mmap, the heap never shrinks, and
# all threads share it, since other arenas map what is larger than 64 MiB. M_MMAP_THRESHOLD would
# not do: TensorFlow's library sets it to 128 KiB when it is loaded.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_KEEP = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_ARENA_MAX: 1}
# Matrix products on a GPU by cuBLAS, without autotuning: compiled programs side by side disturb its
# measurements. Without it XLA's own kernels (Triton) took 535 ms of an update of `base` on an H200,
# and everything else 18 ms.
_XLA_OPTIONS = "--xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=0"
_PACKAGES = ("tensorflow", "tensorflow-text", "keras", "sentencepiece", "sacrebleu")


def package_versions() -> dict[str, str]:
    """Returns the versions of Python, this package and those that decide what it computes."""
    versions = {"python": platform.python_version(), "keras_transformer": __version__}
    return versions | {name: importlib.metadata.version(name) for name in _PACKAGES}


def machine() -> str:
    """Returns the processor, the number of cores for this process, and the NVIDIA GPUs."""
    name = " ".join(_cpuinfo("model name")) or platform.machine()
    fast = sorted(cpu_flags() & {"avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16"})
    descriptions = (path.read_text() for path in NVIDIA_DRIVER.glob("gpus/*/information"))
    gpus = re.findall("^Model:(.*)", "".join(descriptions), re.MULTILINE)
    return ", ".join([f"{num_cores()} cores of {name} ({', '.join(fast)})", *map(str.strip, gpus)])


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_flags() -> frozenset[str]:
    """Returns the processor's features as Linux names them, such as "avx2"; elsewhere none."""
    return frozenset(_cpuinfo("flags", "Features"))  # of x86 and Arm


def _cpuinfo(*names: str) -> list[str]:
    """Returns the words of the first line with one of these names; on Linux only."""
    path = pathlib.Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line.partition(":")[2].split() for line in lines if line.startswith(names)), [])


def has_bfloat16() -> bool:
    """Whether the processor is faster in bfloat16 than in float32, by its instructions.

    Training `tiny` was faster on AMD processors with AVX512_BF16 and an Intel one with AMX, but
    slower on an Intel one with AVX512_BF16 alone.
    """
    fast = {"amx_bf16", "bf16"}
    if "AuthenticAMD" in _cpuinfo("vendor_id"):
        fast.add("avx512_bf16")
    return not cpu_flags().isdisjoint(fast)


def may_use_gpu() -> bool:
    """Whether there is an NVIDIA driver, and the environment does not hide its GPUs."""
    return NVIDIA_DRIVER.exists() and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")


def set_up_gpu() -> None:
    """Sets how TensorFlow and XLA use a GPU; call it before TensorFlow is imported.

    A process takes a GPU's memory as it needs it, so that several work side by side, and XLA
    compiles without autotuning (see `_XLA_OPTIONS`). Settings of the environment win.
    """
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if may_use_gpu():
        os.environ["XLA_FLAGS"] = f"{_XLA_OPTIONS} {os.environ.get('XLA_FLAGS', '')}".strip()


def keep_freed_memory() -> bool:
    """Makes malloc reuse the memory of freed tensors; call it before TensorFlow is imported.

    By default glibc returns large freed blocks to the system, which clears every page when it hands
    them out again. With this the process holds memory until it ends.

    Returns:
        Whether memory is kept. False, and nothing is changed, where a GPU may be used (XLA's
        threads would wait for one heap), without glibc, if another malloc is preloaded, or if the
        environment sets MALLOC_* or GLIBC_TUNABLES' glibc.malloc.
    """
    settings = os.environ.get("GLIBC_TUNABLES", "") + os.environ.get("LD_PRELOAD", "")
    is_set = any(name.startswith("MALLOC_") for name in os.environ)
    if is_set or "malloc" in settings or may_use_gpu():
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        return all([libc.mallopt(name, value) == 1 for name, value in _KEEP.items()])
    except (OSError, AttributeError):  # no glibc
        return False


@contextlib.contextmanager
def noted_signals() -> Iterator[list[signal.Signals]]:
    """Yields a list of the signals received that ask for the end: SIGTERM, SIGHUP and Ctrl-C.

    A second Ctrl-C raises `KeyboardInterrupt`. Signals that are ignored, as under `nohup`, stay
    ignored; outside of the main thread none is caught.
    """
    received: list[signal.Signals] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(signal.Signals(number))

    handlers: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                handlers[number] = signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
