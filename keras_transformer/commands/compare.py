"""Compares runs on one test set: scores, paired bootstrap, length ratio, cost of training.

keras-transformer compare runs/baseline runs/variant
keras-transformer compare runs/a runs/b/checkpoints/step-4000 --source=test.en --target=test.de
keras-transformer compare runs/baseline runs/variant --plot=curves.png

An argument is a run, whose checkpoint is the average or else the latest, or one of its checkpoints.
Each run decodes with the options of its own task; all are scored with those of the first.
Columns p are sacreBLEU's paired bootstrap: how likely a difference from the first run this large is
by chance in the choice of the test sentences. They do not cover the choice of the seed.
"""

import json
import sys
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import command_flags, common, evaluation_set
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.host import machine, package_versions
from keras_transformer.tasks import Task

if TYPE_CHECKING:
    from keras_transformer.loading import NamedModel
    from keras_transformer.training.run import RunDirectory

evaluation_set.define_flags()
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
    evaluation_set.check_flags()
    common.check_output(_PLOT.value)
    search = command_flags.given_search()
    if _PLOT.value is not None:
        with needs_extra("plot"):
            import matplotlib
        matplotlib.use("Agg")  # needs no screen
    common.load_tensorflow(one_dnn=False)
    from keras_transformer.loading import open_run
    from keras_transformer.training.run import RunDirectory

    folders, runs = {}, {}
    for name in arguments:
        folders[name], checkpoint = RunDirectory.of_checkpoint(name)
        runs[name] = open_run(folders[name], checkpoint)
    if len({(folders[name].path.resolve(), runs[name].checkpoint) for name in runs}) < len(runs):
        raise InputError(f"{', '.join(arguments)} name one checkpoint twice")
    tasks = {name: command_flags.with_given_options(run.configs.task) for name, run in runs.items()}
    first = tasks[arguments[0]]
    for name, task in tasks.items():
        if type(task) is not type(first):
            raise InputError(
                f"{arguments[0]} is of task {first.name}, and {name} of task {task.name}"
            )
    text, *others = (evaluation_set.read_test_set(first, run.configs) for run in runs.values())
    if any(evaluation_set.digest(other) != evaluation_set.digest(text) for other in others):
        raise InputError("the test sets of these runs differ; give --source and --target")
    records, outputs = {}, {}
    for name, run in runs.items():
        options = run.configs._replace(task=tasks[name]).search_config(search)
        outputs[name], parameters = evaluation_set.translate([run], tasks[name], options, text)
        records[name] = {
            "checkpoint": run.checkpoint,
            "checkpoint_sha256": run.digest,
            "parameters": parameters,
            "cost": run.cost,
            "search": options.to_dict(),
        }
    for name, scores in first.compare(outputs, text.target, text.source).items():
        records[name] |= scores
    if _PLOT.value is not None:
        _plot(folders, first, _PLOT.value)
    differences = _differences(runs, tasks, records)
    if _JSON.value:
        values = {
            "baseline": arguments[0],
            "runs": records,
            "differences": differences,
            "sentences": len(text.source),
            "test_set_sha256": evaluation_set.digest(text),
            "versions": package_versions(),
            "machine": machine(),
        }
        print(json.dumps(values))
        return
    _print_table(records, first)
    print(f"sentences: {len(text.source):,}")
    if differences:
        print(f"settings that differ: {', '.join(differences)}")


def _differences(
    runs: "dict[str, NamedModel]", tasks: dict[str, Task], records: dict[str, _Record]
) -> dict[str, dict[str, Any]]:
    """Returns the settings that differ, with the value of each run.

    They are those of model, data, training, task and search, and the run that it started from.
    """
    settings: dict[str, _Record] = {}
    for name, run in runs.items():
        configs = run.configs
        values = configs.to_dict()
        search = {f"search.{key}": value for key, value in records[name]["search"].items()}
        settings[name] = {
            **values["model"],
            **(values["data"] or {}),
            **(values["training"] or {}),
            **tasks[name].to_dict(),
            **search,
            "start_from": configs.origin.get("start_from"),
        }
    first, *others = settings.values()
    names = dict.fromkeys(key for values in settings.values() for key in values)
    return {
        key: {name: values.get(key) for name, values in settings.items()}
        for key in names
        if any(values.get(key) != first.get(key) for values in others)
    }


def _print_table(records: dict[str, _Record], task: Task) -> None:
    header = ["run", "checkpoint", "parameters", "updates", "target tokens"]
    is_translation = task.name == "translation"
    header += ["BLEU", "p", "chrF", "p", "length ratio"] if is_translation else [task.metric.label]
    rows = [header]
    for name, record in records.items():
        cost = record["cost"]
        row = [name, record["checkpoint"], f"{record['parameters']:,}"]
        row += [f"{cost['step']:,.0f}", f"{cost['target_tokens']:,.0f}"] if cost else ["-", "-"]
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


def _plot(runs: "dict[str, RunDirectory]", task: Task, path: str) -> None:
    """Plots each run in its color: training loss faint, dev loss and metric strong."""
    from matplotlib import pyplot

    from keras_transformer.training.metrics import read_metrics

    figure, (losses, scores) = pyplot.subplots(2, sharex=True, figsize=(8, 7), layout="constrained")
    for index, (name, run) in enumerate(runs.items()):
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
