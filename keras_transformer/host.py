"""The machine that this process runs on: cores, instructions, and how malloc treats memory."""

import ctypes
import multiprocessing.connection
import os
import pathlib
import threading

# For mallopt (malloc.h): blocks come from the heap and never from mmap, the heap never shrinks, and
# all threads share it, since other arenas map what is larger than 64 MiB. M_MMAP_THRESHOLD would
# not do: TensorFlow's library sets it to 128 KiB when it is loaded.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_KEEP = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_ARENA_MAX: 1}


def num_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_flags() -> frozenset[str]:
    """Returns the processor's features as Linux names them, such as "avx2"; elsewhere none."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    names = ("flags", "Features")  # of x86 and Arm
    flags = (line.partition(":")[2].split() for line in lines if line.startswith(names))
    return frozenset(next(flags, ()))


def has_bfloat16() -> bool:
    """Whether the processor computes in bfloat16; the others convert to float32 and back."""
    return not cpu_flags().isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})


def end_with_parent() -> None:
    """Lets this process end when the one that started it is killed; for `multiprocessing`."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def keep_freed_memory() -> bool:
    """Has malloc keep the memory of freed tensors for the next ones; call it before TensorFlow.

    By default glibc returns large blocks to the system as soon as they are freed, and the system
    clears every page when it hands them out again. A training step allocates all its activations
    again: `tiny` with a vocabulary of 8,000 and 128 x 16 tokens takes 226,000 page faults a step,
    and 1 with memory kept. Where page faults are expensive, as in many virtual machines, that
    makes training 1.5 to 2 times as fast. Peak resident memory was 0.96 to 1.26 times what it was
    without, and is held until the process ends.

    Returns:
        Whether memory is kept. False, and nothing is changed, without glibc, where another malloc
        is preloaded, and where the environment sets MALLOC_* or GLIBC_TUNABLES' glibc.malloc.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc" in tunables or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        if not _is_in_use(libc):
            return False
        # None of them fails with these values; a list, so that each is set all the same.
        return all([libc.mallopt(name, value) == 1 for name, value in _KEEP.items()])
    except (OSError, AttributeError, TypeError):  # no glibc; on Windows no CDLL(None)
        return False


_MALLOC_INFO = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo` of malloc.h: numbers that wrap around at 4 GiB."""

    _fields_ = [(name, ctypes.c_uint) for name in _MALLOC_INFO.split()]


def _is_in_use(libc: ctypes.CDLL) -> bool:
    """Whether glibc's malloc is the one that the program calls.

    Comparing addresses would not do: in a program that is not position-independent, such as
    Debian's python3, the address of malloc is that of a stub in the program itself.
    """

    def allocated() -> int:
        info = libc.mallinfo()
        return int(info.uordblks + info.hblkhd)

    libc.mallinfo.restype = _MallocInfo
    program = ctypes.CDLL(None)
    program.malloc.restype = ctypes.c_void_p
    size, before = 2**20, allocated()
    block = program.malloc(ctypes.c_size_t(size))
    grown = (allocated() - before) % 2**32
    program.free(ctypes.c_void_p(block))
    return size <= grown < 2 * size
