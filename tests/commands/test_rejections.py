"""What commands reject when they see files and runs: one line says what is wrong."""

import sys

import pytest

from keras_transformer import host

_TEXT = (
    "--run_dir=new --train_source=two --train_target=two --vocabulary_kind=char --vocabulary_size=6"
)
_START = "--run_dir=new --start_from=run --train_source=two --train_target=two"
_EXPORT = "--run_dir=run --export_dir=exports"
_FILES = {
    "two": b"a\nb\n",
    "three": b"a\nb\nc\n",
    "blank": b"\n \n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch, run_dir):
    """The current folder: the files, and a trained run of two checkpoints."""
    for name, content in _FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "run").symlink_to(run_dir)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _contents(folder, *others):
    paths = [*folder.rglob("*"), *others]
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


# "..." in a message stands for any text.
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"train {_TEXT} --train_source=absent", "absent"),
        (f"train {_TEXT} --dev_source=absent --dev_target=two", "absent"),
        (f"train {_TEXT} --test_source=absent --test_target=two", "absent"),
        (f"train {_TEXT} --freeze=encoder", "--freeze would keep random weights; give"),
        ("train --run_dir=new --user_module nowhere.py", "there is no module 'nowhere.py'"),
        ("train --run_dir=new --user_module nowhere.at_all", "--user_module: there is no module"),
        ("train --run_dir=new --start_from=run", "--start_from needs text to train on"),
        (f"train {_START} --start_from=absent", "no training run in absent: it has no config.json"),
        (f"train {_START} --start_from=run/checkpoints/step-9", "no checkpoint step-9 in"),
        (f"train {_START} --num_layers=3", "num_layers is 1 there and 3 here; remove these"),
        (f"train {_START} --architecture=recurrent", "is 'transformer' there and 'recurrent' here"),
        (f"train {_START} --vocabulary_size=30", "cannot be combined with --start_from"),
        ("translate --run_dir=run --checkpoint=7", "no checkpoint step-7 ... step-300, average"),
        ("evaluate --run_dir=run --source=two --target=three", "two has 2 ... three has 3"),
        ("evaluate --run_dir=run --output={texts}/test.xx", "test.xx is read and would be"),
        ("evaluate --run_dir=run --output=a --each=a", "--output and --each are one file"),
        ("evaluate --task=parsing --answers=blank --file=blank", "no sentence to evaluate on in"),
        (f"export {_EXPORT} --warm_up_file=absent", "absent"),
        (f"export {_EXPORT} --quantization=int8", "--quantization cannot be combined with"),
        (f"export {_EXPORT} --xla_lengths=8", "--xla_lengths cannot be combined with --noxla"),
        (f"export {_EXPORT} --format=ctranslate2 --beam_size=1", "--beam_size cannot be combined"),
        (f"export {_EXPORT} --format=transformers --quantization=int8", "--quantization cannot be"),
        ("average_checkpoints --run_dir=run --last=3", "--last=3 is more than the checkpoints"),
        ("learn_vocabulary --output=two three", "two already exists; choose another --output"),
        ("explore p", "give --run_dir, --model or --saved_model"),
        ("explore --run_dir=run --output=a.html", "give sentences and --output=page.html"),
        ("explore --run_dir=run --serve p", "or --serve alone"),
        ("explore --run_dir=run --output=a.html --layer=1 p", "--layer needs --png"),
        ("explore --saved_model=a/1 --output=a.html --beam_size=2 p", "--beam_size was fixed"),
        ("explore --run_dir=run --png=a.foo p", "must be a .png, .pdf or .svg"),
        ("explore --run_dir=run --png=a.png --layer=2 sun", "--layer must be from 1 to 1, got 2"),
        ("explore --run_dir=run --png=a.png sun r", "take one sentence and one model"),
        ("benchmark", "one of train, decode, plan, layers, start, gpu_program; got nothing"),
        ("benchmark train --presets=tiny,huge", "--presets must be of ... 'huge'"),
        ("benchmark train --batch=128", "rows x length, such as 128x16 ... '128'"),
        ("benchmark train --device=gpu", "--device=gpu needs an NVIDIA driver"),
        ("benchmark plan --batch=128x16", "--batch cannot be combined with plan; remove the flag"),
        ("benchmark layers --window=4", "--window must be odd and at least 3, got 4"),
    ],
)  # fmt: skip
def test_rejected_command_writes_nothing(call, refused, folder, texts, monkeypatch, line, message):
    name, *arguments = line.format(texts=texts).split()
    monkeypatch.setattr(host, "NVIDIA_DRIVER", folder / "none")
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which --user_module adds
    read = (folder / "run" / "config.json", texts / "test.xx")
    before = _contents(folder, *read)
    refused(call(f"{name}.py", *arguments), *message.split(" ... "))
    assert _contents(folder, *read) == before
