"""Files of torch.save, written here without PyTorch: what they hold, and that they run nothing."""

import collections
import io
import os
import pickle
import struct
import sys
import tracemalloc
import types
import zipfile

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.interop import marian, pytorch, vocabularies
from keras_transformer.interop.pytorch import read_pytorch, state_tensors
from keras_transformer.interop.reading import Options

Storage = collections.namedtuple("Storage", "kind key data")


class FakeTensor:
    """Pickled as PyTorch pickles a tensor."""

    def __init__(self, storage, offset, shape, strides):
        self.arguments = storage, offset, shape, strides, False, collections.OrderedDict()


def _rebuild_tensor_v2(*arguments):
    raise AssertionError("it must not be called")


class TorchPickler(pickle.Pickler):
    def persistent_id(self, obj):
        if type(obj) is Storage:
            size = np.frombuffer(obj.data, obj.kind.dtype).size
            return ("storage", obj.kind, obj.key, "cpu", size)
        return None

    def reducer_override(self, obj):
        if type(obj) is FakeTensor:
            return sys.modules["torch._utils"]._rebuild_tensor_v2, obj.arguments
        return NotImplemented


@pytest.fixture
def torch(monkeypatch):
    """Modules with the names that such a pickle has, and nothing in them."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    function = types.FunctionType(_rebuild_tensor_v2.__code__, {}, "_rebuild_tensor_v2")
    function.__module__ = "torch._utils"
    utils._rebuild_tensor_v2 = function
    torch._utils = utils
    for kind, dtype in (("Float", "<f4"), ("Half", "<f2"), ("BFloat16", "<u2")):
        storage = type(f"{kind}Storage", (), {"__module__": "torch", "dtype": dtype})
        setattr(torch, storage.__name__, storage)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    return torch


def pickled(obj):
    file = io.BytesIO()
    TorchPickler(file, protocol=2).dump(obj)
    return file.getvalue()


def write_zip(path, obj, storages=(), pickle_bytes=None, order=None):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle_bytes or pickled(obj))
        if order is not None:
            archive.writestr("archive/byteorder", order)
        for storage in storages:
            archive.writestr(f"archive/data/{storage.key}", storage.data)
    return path


def write_legacy(path, obj, storages=()):
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    parts = [pickle.dumps(0x1950A86A20F9469CFC6C, 2), pickle.dumps(1001, 2)]
    parts += [pickle.dumps(system, 2), pickled(obj)]
    parts.append(pickle.dumps([storage.key for storage in storages], 2))
    for storage in storages:
        count = np.frombuffer(storage.data, storage.kind.dtype).size
        parts.append(struct.pack("<q", count) + storage.data)
    path.write_bytes(b"".join(parts))
    return path


def one_tensor(kind, data, offset=0, shape=(12,), strides=(1,)):
    """Gives a state of one tensor, "weight", and its storage."""
    storage = Storage(kind, "0", data)
    return {"weight": FakeTensor(storage, offset, shape, strides)}, [storage]


@pytest.mark.parametrize("write", [write_zip, write_legacy])
def test_tensors_of_all_types_and_strides_are_read(write, torch, tmp_path):
    numbers = np.arange(12, dtype="<f4")
    storages = [
        Storage(torch.FloatStorage, "0", numbers.tobytes()),
        Storage(torch.HalfStorage, "1", np.array([0.5, -2.0], "<f2").tobytes()),
        Storage(torch.BFloat16Storage, "2", np.array([0x3F80, 0xC040], "<u2").tobytes()),
    ]
    state = {
        "whole": FakeTensor(storages[0], 0, (3, 4), (4, 1)),
        "transposed": FakeTensor(storages[0], 1, (4, 2), (1, 4)),
        "half": FakeTensor(storages[1], 0, (2,), (1,)),
        "bfloat16": FakeTensor(storages[2], 0, (2,), (1,)),
        "step": 7,
    }
    path = write(tmp_path / "model.pt", state, storages)
    found = read_pytorch(path)
    assert found["step"] == 7
    tensors = state_tensors(found, path)
    np.testing.assert_array_equal(tensors.get("whole"), numbers.reshape(3, 4))
    np.testing.assert_array_equal(tensors.get("transposed"), numbers[1:9].reshape(2, 4).T)
    np.testing.assert_array_equal(tensors.get("half"), [0.5, -2.0])
    np.testing.assert_array_equal(tensors.get("bfloat16"), [1.0, -3.0])


@pytest.mark.parametrize(
    ("kind", "dtype"), [("Float", ">f4"), ("Half", ">f2"), ("BFloat16", ">u2")]
)
def test_big_endian_archives_are_read_in_their_order(kind, dtype, torch, tmp_path):
    bits = [0x3F80, 0x4000, 0xC040] if kind == "BFloat16" else [1, 2, -3]  # 1, 2 and -3
    data = np.array(bits, dtype).tobytes()
    case = one_tensor(getattr(torch, f"{kind}Storage"), data, shape=(3,))
    path = write_zip(tmp_path / "model.pt", *case, order="big")
    found = state_tensors(read_pytorch(path), path).get("weight", (3,))
    np.testing.assert_array_equal(found, [1, 2, -3])
    with pytest.raises(InputError, match="its byte order is b'middle'"):
        read_pytorch(write_zip(tmp_path / "odd.pt", *case, order="middle"))


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [(9, (2, 2), (2, 1)), (0, (2, 2), (100, 1)), (-1, (2,), (1,)), (0, (2,), (1, 1)),
     (0, (10**6, 10**6), (0, 0))],
)  # fmt: skip
def test_tensor_beyond_its_storage_is_rejected(offset, shape, strides, torch, tmp_path):
    case = one_tensor(torch.FloatStorage, bytes(4 * 12), offset, shape, strides)
    path = write_zip(tmp_path / "model.pt", *case)
    with pytest.raises(InputError, match="not a file of PyTorch, or a damaged one"):
        state_tensors(read_pytorch(path), path).get("weight")


class Hostile:
    """Runs a command where it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def hostile_pickles(command):
    """Gives programs for each instruction that calls something, in real unpicklers."""
    text = command.encode()
    return {
        "reduce": pickle.dumps({"model": Hostile(command)}, 2),
        "stack global": pickle.dumps({"model": Hostile(command)}, 4),
        "inst": b"(V" + text + b"\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nV" + text + b"\no.",
        "build": b"cos\nsystem\n(V" + text + b"\ntR}V__setstate__\ncos\nsystem\nsb.",
        "new object": b"\x80\x02cos\nsystem\nV" + text + b"\n\x85\x81.",
        "ordered": b"\x80\x02ccollections\nOrderedDict\nccollections\nOrderedDict\ncos\nsystem\nV"
        + text + b"\n\x85R\x85R\x85R.",
    }  # fmt: skip


@pytest.mark.parametrize("name", hostile_pickles(""))
@pytest.mark.parametrize("kind", ["zip", "legacy"])
def test_hostile_pickle_runs_nothing(name, kind, tmp_path):
    marker, path = tmp_path / "ran", tmp_path / "model.pt"
    content = hostile_pickles(f"touch {marker}")[name]
    if kind == "zip":
        write_zip(path, None, pickle_bytes=content)
    else:
        path.write_bytes(content)
    try:
        found = read_pytorch(path)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        with pytest.raises(InputError, match="holds no tensors by name"):
            state_tensors(found, path)
    assert not marker.exists()


def test_hostile_pickle_runs_in_a_real_unpickler(tmp_path):
    pickle.loads(hostile_pickles(f"touch {tmp_path}/ran")["reduce"])
    assert (tmp_path / "ran").exists()


def test_slowly_hashed_key_is_rejected(tmp_path):
    nested = b"\x80\x02})" + b"2\x86" * 100 + b"Ns."  # ((..., ...), (..., ...)), 2^100 entries
    path = write_zip(tmp_path / "model.pt", None, pickle_bytes=nested)
    with pytest.raises(InputError, match="a key of a dictionary is no plain value"):
        read_pytorch(path)


def test_truncated_files_are_rejected(torch, tmp_path):
    path = tmp_path / "model.pt"
    for write in (write_zip, write_legacy):
        content = write(path, *one_tensor(torch.FloatStorage, bytes(4 * 12))).read_bytes()
        for length in range(0, len(content), 3):
            path.write_bytes(content[:length])
            with pytest.raises(InputError, match=r"not a file of PyTorch|cannot read"):
                read_pytorch(path)


def test_archive_that_points_outside_itself_is_rejected(tmp_path):
    path = write_zip(tmp_path / "model.pt", {"step": 7})
    content = bytearray(path.read_bytes())
    (start,) = struct.unpack_from("<I", content, len(content) - 6)  # of the directory at the end
    struct.pack_into("<I", content, len(content) - 6, start + 100)
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a file of PyTorch, or a damaged one"):
        read_pytorch(path)


def error_and_peak(path, read=read_pytorch):
    """Returns the error of reading a file, and the bytes that it took at most."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as error:
            read(path)
        return str(error.value), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_repeated_list_cannot_fill_the_memory(tmp_path):
    """A list of n pairs, stored once, of which n OrderedDicts are made, has n * n entries."""
    pairs = b"".join(b"K" + bytes([n]) + b"N\x86" for n in range(256)) * 20
    again = b"ccollections\nOrderedDict\nq\x01" + b"h\x01h\x00\x85R" * 5000
    content = b"\x80\x02](" + pairs + b"eq\x00(" + again + b"t."
    path = write_zip(tmp_path / "model.pt", None, pickle_bytes=content)
    error, peak = error_and_peak(path)
    assert "repeats a list" in error
    assert peak < 20_000_000


def test_repeated_state_cannot_take_forever(tmp_path):
    """A dictionary of n entries, stored once, is the state of one object n times."""
    entries = b"".join(b"M" + n.to_bytes(2, "little") + b"N" for n in range(5000))
    build = b"cmodule\nClass\n)R" + b"h\x00b" * 20_000
    content = b"\x80\x02}(" + entries + b"uq\x00" + build + b"."
    path = write_zip(tmp_path / "model.pt", None, pickle_bytes=content)
    with pytest.raises(InputError, match="repeats a list"):
        read_pytorch(path)


@pytest.mark.parametrize(
    ("members", "size", "read", "most"),
    [
        (["archive/data.pkl"], 50_000_000, read_pytorch, 1_000_000),
        # A hundred arrays, each ten times as large as the file.
        ([f"{number}.npy" for number in range(100)], 1_000_000, marian._read_npz, 2_000_000),
    ],
    ids=["pickle", "arrays"],
)
def test_deflated_file_cannot_fill_the_memory(members, size, read, most, tmp_path):
    with zipfile.ZipFile(tmp_path / "model", "w", zipfile.ZIP_DEFLATED) as archive:
        for member in members:
            archive.writestr(member, b"N" * size)
    error, peak = error_and_peak(tmp_path / "model", read)
    assert f"would unpack to {len(members) * size:,} bytes" in error
    assert peak < most


def test_yaml_aliases_are_rejected():
    text = "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)
    )
    with pytest.raises(InputError, match="options has YAML aliases, which Marian does not write"):
        marian._read_yaml(text, "options")


def test_endless_options_have_short_errors():
    nested = []
    for _ in range(100):
        nested = [nested, nested]
    options = Options({"arch": nested, "layers": 10**5000}, "config", "fairseq")
    for name, kind in (("arch", str), ("layers", int)):
        with pytest.raises(InputError, match=f"option {name} .* has an unexpected value") as error:
            options.get(name, kind, kind())
        assert len(str(error.value)) < 500


def test_errors_of_our_own_code_are_not_damaged_files(tmp_path, monkeypatch, sample_model):
    def fail(*arguments, **options):
        return {}["absent"]

    monkeypatch.setattr(pytorch._PickleMachine, "_execute", fail)
    with pytest.raises(KeyError):
        read_pytorch(write_zip(tmp_path / "model.pt", {"step": 7}))
    monkeypatch.setattr(vocabularies, "SentencePieceProcessor", fail)
    with pytest.raises(KeyError):
        vocabularies.read_spm(sample_model("hf_marian") / "source.spm")
