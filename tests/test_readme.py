"""Every snippet of README.md runs: as printed, but that trainings are cut short."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from keras_transformer.training.distribution import worker_of_environment

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_README = (_ROOT / "README.md").read_text(encoding="utf-8")
_WITH_FLAGS = ("train", "translate", "export", "serve_client", "plot_run", "explore")
_OF_THE_SERVER = {
    "--tensorflow_intra_op_parallelism",
    "--tensorflow_inter_op_parallelism",
    "--xla_cpu_compilation_enabled",
}
_SMALL = "--num_layers=1 --model_dim=16 --feed_forward_dim=16 --num_heads=2 --vocabulary_size=60"
_SHORT = "--train_steps=2 --checkpoint_steps=2 --batch_tokens=512"


def _snippets(heading: str, language: str) -> list[str]:
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", _README, re.M | re.S)
    assert section, f"README.md has no section {heading!r}"
    return re.findall(rf"```{language}\n(.*?)```", section[1], re.S)


def _run(command: list[str] | str, folder: pathlib.Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        command,
        shell=isinstance(command, str),
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture
def execute(monkeypatch, capsys):
    """Runs Python text as a program in this process, which has loaded TensorFlow already."""

    def execute(program: str, folder: pathlib.Path) -> str:
        monkeypatch.chdir(folder)
        capsys.readouterr()
        exec(compile(program, "README.md", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out

    return execute


@pytest.fixture
def shell(monkeypatch, call, folder):
    """Runs shell commands in this process, with trainings cut short; gives what they print."""

    def run_line(line: str) -> str:
        words = shlex.split(line)
        python, script, *arguments = words
        assert python == "python" and script.startswith("scripts/"), line
        files = {}
        for sign in "<>":
            if sign in arguments:
                index = arguments.index(sign)
                files[sign] = folder / arguments[index + 1]
                del arguments[index : index + 2]
        stdin = files["<"].read_bytes() if "<" in files else b""
        code, out, err = call(script.removeprefix("scripts/"), *arguments, stdin=stdin)
        assert code == 0, err
        if ">" in files:
            files[">"].write_text(out, encoding="utf-8")
            return ""
        return out

    def shell(snippet: str) -> str:
        monkeypatch.chdir(folder)
        snippet = re.sub(r"--vocabulary_size=\d+", "", snippet.replace("\\\n", " "))
        snippet = re.sub(r"(scripts/train\.py .*)", rf"\1 {_SHORT}", snippet)
        snippet = re.sub(r"(scripts/train\.py (?!.*--start_from).*)", rf"\1 {_SMALL}", snippet)
        return "".join(map(run_line, snippet.splitlines()))

    return shell


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder like the one a user sits in, with parallel text files."""
    path = tmp_path_factory.mktemp("readme")
    for split in ("train", "dev", "test"):
        for language, words in (("en", "A horse"), ("de", "Ein Pferd")):
            lines = (f"{words} {number} {'abc'[number % 3]}" for number in range(40))
            (path / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        entries = (f"ab{number}  a b {' '.join(str(number))}\n" for number in range(40))
        (path / f"{split}.dict").write_text("".join(entries), encoding="utf-8")
        count = 40 if split == "train" else 4
        nouns = [f"quick{number} brown{number * 7 % 10} foxes" for number in range(count)]
        trees = (f"(S (NP (NNS {noun.replace(' ', ') (NNS ')})))\n" for noun in nouns)
        (path / f"{split}.mrg").write_text("".join(trees), encoding="utf-8")
        (path / f"{split}.txt").write_text("\n".join(nouns) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
def test_keras_examples_run_as_printed(execute, tmp_path):
    snippet, loading = _snippets("In your own Keras program", "python")
    assert len([line for line in snippet.splitlines() if line.strip()]) <= 20
    output = execute(snippet, tmp_path)
    assert "Epoch 5/5" in output
    # Copying is easy: the model must have learned it.
    assert float(re.findall(r"accuracy: ([\d.]+)", output)[-1]) > 0.8
    # In a process of its own: there only the program's imports tell Keras the classes.
    best, *_ = _run([sys.executable, "-c", loading], tmp_path).partition("]]")
    first = [int(each) for each in re.findall(r"\d+", best)][:6]
    assert sum(a == b for a, b in zip(first, [7, 12, 5, 5, 18, 3], strict=True)) >= 4


@pytest.mark.slow
def test_own_files_export_and_loading(execute, shell, folder):
    training, plotting = _snippets("On your own text", "bash")
    assert "sacreBLEU" in shell(training)
    shell(plotting)
    for name in ("mine", "cost"):
        assert (folder / f"{name}.png").stat().st_size > 10_000
    assert len((folder / "output.de").read_text(encoding="utf-8").splitlines()) == 40
    for command in "".join(_snippets("Translate", "bash")).splitlines():
        assert len(shell(command).splitlines()) in (40, 120)
    (translating,) = _snippets("Translate", "python")
    assert float(execute(translating, folder).split()[-1]) < 0
    (exploring,) = _snippets("See what heads attend to", "bash")
    shell(exploring)
    assert "A man rides a horse." in (folder / "page.html").read_text(encoding="utf-8")
    (exporting,) = _snippets("Serve it", "bash")
    shell(exporting)
    (loading,) = _snippets("Serve it", "python")
    assert execute(loading, folder)


@pytest.mark.slow
def test_pronunciation_commands(shell):
    (snippet,) = _snippets("Pronounce words", "bash")
    output = shell(snippet)
    assert "phone error rate" in output and "n_best_wer" in output


@pytest.mark.slow
def test_parsing_commands(shell, folder):
    (snippet,) = _snippets("Parse sentences", "bash")
    output = shell(snippet)
    assert output.count("F1, errors counted") == 2 and output.count("complete match") == 2
    assert len((folder / "test.tsv").read_text().splitlines()) == 1 + 4


@pytest.mark.slow
def test_import_commands(shell, folder, sample_model):
    shutil.copytree(sample_model("hf_marian"), folder / "opus-mt-en-de")
    (snippet,) = _snippets("Bring your model", "bash")
    output = shell(snippet)
    assert "A model of transformers with 779 source and 779 target tokens." in output
    assert "\n0/2  loss " in output


@pytest.mark.slow
def test_dataset_command_runs_up_to_the_download(shell, folder):
    (snippet,) = _snippets("On a TensorFlow data set", "bash")
    # wmt14_translate needs the network: the built-in data set stands in for it.
    command = snippet.replace("wmt14_translate/de-en", "number_names/de-en")
    assert "number_names" in command
    shell(command)
    shutil.rmtree(folder / "runs" / "wmt14")


def test_named_flags_exist(call):
    known = "".join(call(f"{name}.py", "--help").out for name in _WITH_FLAGS)
    for flag in set(re.findall(r"`(--\w+)", _README)) - _OF_THE_SERVER - {"--help", "--slow"}:
        assert flag in known or flag.replace("--", "--[no]") in known, flag


def test_server_and_client_calls_match_their_programs():
    section = _README.partition("## Serve it")[2]
    body = json.loads(re.search(r"-d '(.*)'", section)[1])
    assert body == {"inputs": {"text": ["A man rides a horse."]}}
    for name in ("models.config", "batching_parameters.txt", "monitoring.config"):
        assert f"/models/mine/{name}" in section
    (program,) = _snippets("Serve it", "py")
    compile(program, "README.md", "exec")
    for signature in ("serving_default", "translate_options", "score", "tokens", "attention"):
        assert f"| `{signature}` |" in section


def test_cluster_example_is_valid(monkeypatch):
    (snippet,) = _snippets("On many GPUs", "bash")
    monkeypatch.setenv("TF_CONFIG", snippet.partition("='")[2].rstrip().rstrip("'"))
    worker = worker_of_environment()
    assert (worker.index, worker.count) == (0, 2)


@pytest.mark.parametrize("script", re.findall(r"^bash (\S+)", _README, re.M))
def test_shell_scripts_exist(script):
    # The whole of them runs on each change, not from within itself.
    _run(["bash", "-n", str(_ROOT / script)], _ROOT)
