"""Compares runs on one test set: scores, paired bootstrap, length ratio, cost of training.

keras-transformer compare runs/baseline runs/variant
keras-transformer compare runs/a runs/b/checkpoints/step-4000 --source=test.en --target=test.de
keras-transformer compare runs/baseline runs/variant --plot=curves.png

An argument is a run, whose checkpoint is the average or else the latest, or one of its checkpoints.
Columns p are sacreBLEU's paired bootstrap: how likely a difference from the first run this large is
by chance in the choice of the test sentences. They do not cover the choice of the seed.
"""

import json
import sys
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import command_flags, common
from keras_transformer.commands.evaluation_set import EvaluationSet, digest
from keras_transformer.config import SearchConfig, check_options
from keras_transformer.errors import InputError
from keras_transformer.host import machine, package_versions
from keras_transformer.tasks import Task

if TYPE_CHECKING:
    from keras_transformer.data import ParallelText
    from keras_transformer.training.run import RunDirectory

    Runs = dict[str, tuple[RunDirectory, str]]  # each with the full name of a checkpoint

_TEST_SET = EvaluationSet.define()
_JSON = flags.DEFINE_boolean(
    "json", False, "Print one JSON object with all values, the test set's SHA-256 and versions."
)
_PLOT = command_flags.define_path(
    "plot", "Also plot loss and dev metric against updates, a .png, .pdf or .svg file."
)
command_flags.define_flags(SearchConfig)
command_flags.define_task_options()

_Record = dict[str, Any]


def main(arguments: list[str]) -> None:
    if len(set(arguments)) < 2 or len(set(arguments)) < len(arguments):
        raise InputError("name two or more different runs, for example: compare runs/a runs/b")
    common.print_warnings()
    _TEST_SET.check()
    common.check_output(_PLOT.value)
    search = command_flags.given_flags(SearchConfig)
    check_options(search)  # reports a wrong value before loading
    if _PLOT.value is not None:
        common.load_matplotlib()
    common.load_tensorflow(one_dnn=False)
    runs = _find_runs(arguments)
    tasks = {
        name: command_flags.with_given_options(run.configs().task)
        for name, (run, _) in runs.items()
    }
    first = tasks[arguments[0]]
    _check_measures(tasks)
    text = _TEST_SET.read(first) or _shared_test_set(runs, first)
    records, outputs = {}, {}
    for name, run in runs.items():
        records[name], outputs[name] = _translate(*run, tasks[name], text, search)
    for name, scores in _compare(tasks, outputs, text).items():
        records[name] |= scores
    if _PLOT.value is not None:
        _plot(runs, first, _PLOT.value)
    differences = _differences(runs, tasks, records)
    if _JSON.value:
        values = {
            "baseline": arguments[0],
            "runs": records,
            "differences": differences,
            "sentences": len(text.source),
            "test_set_sha256": digest(text),
            "versions": package_versions(),
            "machine": machine(),
        }
        print(json.dumps(values))
        return
    _print_table(records, first)
    print(f"sentences: {len(text.source):,}")
    if differences:
        print(f"settings that differ: {', '.join(differences)}")


def _find_runs(paths: list[str]) -> "Runs":
    from keras_transformer.training.run import RunDirectory

    runs: Runs = {}
    for path in paths:
        run, checkpoint = RunDirectory.of_checkpoint(path)
        run.configs()  # raises where there is no run
        runs[path] = run, run.checkpoints().find(checkpoint)
    if len({(run.path.resolve(), checkpoint) for run, checkpoint in runs.values()}) < len(runs):
        raise InputError(f"{', '.join(paths)} name one checkpoint twice; name different ones")
    return runs


def _check_measures(tasks: dict[str, Task]) -> None:
    """Raises `InputError` if runs would be measured differently.

    Options that a model has learned may differ: each run decodes with its own.
    """
    (first, task), *others = tasks.items()
    learned = task.fields_with(is_learned=True)
    for name, other in others:
        if type(other) is not type(task):
            raise InputError(f"{first} is of task {task.name}, and {name} of task {other.name}")
        for option, value in other.to_dict().items():
            if option not in learned and value != getattr(task, option):
                raise InputError(
                    f"{option} is {getattr(task, option)} in {first} and {value} in {name}; give "
                    f"--{option}"
                )


def _shared_test_set(runs: "Runs", task: Task) -> "ParallelText":
    """Returns the test set that all runs name."""
    from keras_transformer.training.prepare import read_test_text

    texts = {
        name: read_test_text(run.configs().required_data, task) for name, (run, _) in runs.items()
    }
    (first, text), *others = texts.items()
    for name, other in others:
        if digest(other) != digest(text):
            raise InputError(
                f"the test sets of {first} and {name} differ; give --source and --target"
            )
    return text


def _translate(
    run: "RunDirectory", checkpoint: str, task: Task, text: "ParallelText", search_options: _Record
) -> tuple[_Record, list[str]]:
    """Returns the settings and costs of a run, and its outputs."""
    from keras_transformer.inference import Translator
    from keras_transformer.training.metrics import training_cost

    search = run.configs()._replace(task=task).search_config(search_options)
    model, source, target = common.load_translator([(run, checkpoint)])
    task.check_references(text.target, target)
    translator = Translator(model, source, target, search, task=task)
    results = _TEST_SET.translate(translator, text.source)
    outputs = task.postprocess([best.text for best in results], text.source)
    record = {
        "checkpoint": checkpoint,
        "checkpoint_sha256": run.checkpoints().digest(checkpoint),
        "parameters": int(model.count_params()),
        "cost": training_cost(run.metrics_path, checkpoint),
        "search": search.to_dict(),
    }
    return record, outputs


def _compare(
    tasks: dict[str, Task], outputs: dict[str, list[str]], text: "ParallelText"
) -> dict[str, _Record]:
    """Returns the scores of each run."""
    first = next(iter(tasks.values()))
    if all(task == first for task in tasks.values()):
        return first.compare(outputs, text.target, text.source)
    return {
        name: task.evaluate(outputs[name], text.target, text.source) for name, task in tasks.items()
    }


def _differences(
    runs: "Runs", tasks: dict[str, Task], records: dict[str, _Record]
) -> dict[str, dict[str, Any]]:
    """Returns the settings that differ, with the value of each run.

    They are those of model, data, training, task and search, and the run that it started from.
    """
    settings: dict[str, _Record] = {}
    for name, (run, _) in runs.items():
        configs = run.configs()
        values = configs.to_dict()
        parts = [values[part] or {} for part in ("model", "data", "training")]
        search = {f"search.{key}": value for key, value in records[name]["search"].items()}
        parts += [tasks[name].to_dict(), search]
        settings[name] = {key: value for part in parts for key, value in part.items()}
        settings[name]["start_from"] = configs.origin.get("start_from")
    names = dict.fromkeys(key for values in settings.values() for key in values)
    columns = {key: {name: values.get(key) for name, values in settings.items()} for key in names}
    return {
        key: values
        for key, values in columns.items()
        if any(value != next(iter(values.values())) for value in values.values())
    }


def _print_table(records: dict[str, _Record], task: Task) -> None:
    header = ["run", "checkpoint", "parameters", "updates", "target tokens", "FLOPs"]
    is_translation = task.name == "translation"
    header += ["BLEU", "p", "chrF", "p", "length ratio"] if is_translation else [task.metric.label]
    rows = [header]
    for name, record in records.items():
        cost = record["cost"]
        row = [name, record["checkpoint"], f"{record['parameters']:,}"]
        row += [f"{cost['step']:,.0f}", f"{cost['target_tokens']:,.0f}"] if cost else ["-", "-"]
        row.append(f"{cost['flops']:.2e}" if "flops" in cost else "-")
        if is_translation:
            for metric in ("bleu", "chrf"):
                value, interval = record[metric], record[f"{metric}_interval"]
                p_value = record[f"{metric}_p"]
                row.append("undefined" if value is None else f"{value:.2f} ± {interval:.2f}")
                row.append("-" if p_value is None else f"{p_value:.3f}")
            row.append(f"{record['length_ratio']:.3f}")
        else:
            value = record[task.metric.name]
            row.append("undefined" if value is None else f"{value:.4g}")
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    if is_translation:
        print(f"p: of the difference from {rows[1][0]}; ±: 95 % confidence, both by bootstrap")
        print(next(iter(records.values()))["bleu_signature"])


def _plot(runs: "Runs", task: Task, path: str) -> None:
    """Plots each run in its color: training loss faint, dev loss and metric strong."""
    from matplotlib import pyplot

    from keras_transformer.training.metrics import read_metrics

    figure, (losses, scores) = pyplot.subplots(2, sharex=True, figsize=(8, 7), layout="constrained")
    for index, (name, (run, _)) in enumerate(runs.items()):
        rows, color = read_metrics(run.metrics_path), f"C{index % 10}"
        # Matplotlib hides labels that begin with "_", and reads what "$" encloses as formulas.
        label = ("./" if name.startswith("_") else "") + name.replace("$", r"\$")
        for panel, value, style in (
            (losses, "loss", {"alpha": 0.45, "label": f"{label}, train"}),
            (losses, "val_loss", {"label": f"{label}, dev"}),
            (scores, task.metric.name, {"marker": "."}),
        ):
            points = [(row["step"], row[value]) for row in rows if value in row]
            panel.plot([x for x, _ in points], [y for _, y in points], color=color, **style)
    losses.set_ylabel("loss per token")
    losses.legend(frameon=False)
    scores.set(ylabel=f"dev {task.metric.label}", xlabel="update")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    print(f"Wrote {path}.", file=sys.stderr)
