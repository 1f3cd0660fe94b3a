"""Translates a test set and evaluates it as the run's task does: for translation by sacreBLEU with
its signature, chrF and exact match.

keras-transformer evaluate --run_dir=runs/numbers
keras-transformer evaluate --run_dir=runs/mine --source=test.en --target=test.de --json
"""

import json
import pathlib

from absl import flags

from keras_transformer.atomic_files import write_atomically
from keras_transformer.commands import common, config_flags
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError

_RUN_DIR = flags.DEFINE_string(
    "run_dir",
    None,
    "Directory of a training run. Several, separated by commas, translate together.",
    required=True,
)
_CHECKPOINT = config_flags.define_checkpoint_flag()
_SOURCE = flags.DEFINE_string(
    "source", None, "File to translate, plain or .gz, in place of the run's test set."
)
_TARGET = flags.DEFINE_string("target", None, "Its reference translation.")
_SPLIT = flags.DEFINE_string(
    "split", "test", "Split of the run's data set, where the run or --source names no test files."
)
_OUTPUT = flags.DEFINE_string("output", None, "File for the translations; not written otherwise.")
_JSON = flags.DEFINE_boolean("json", False, "Print one JSON object.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Sentences translated at once.", lower_bound=1)
config_flags.define_flags(
    SearchConfig, set(SearchConfig.__dataclass_fields__) - {"num_translations"}
)
config_flags.define_task_options()


def main(arguments: list[str]) -> None:
    common.refuse_arguments(arguments)
    if (_SOURCE.value is None) != (_TARGET.value is None):
        raise InputError("--source and --target go together; one of them is missing")
    if _OUTPUT.value is not None:
        common.check_output(pathlib.Path(_OUTPUT.value))
    given = config_flags.given_flags(SearchConfig)
    SearchConfig(**given)  # so that a wrong value is reported at once
    common.load_tensorflow(one_dnn=False)
    from keras_transformer.data import read_parallel
    from keras_transformer.inference import Translator
    from keras_transformer.training import read_test_text

    found = common.find_checkpoints(_RUN_DIR.value, _CHECKPOINT.value)
    configs = found[0][0].configs()
    task = configs.task.replace(**config_flags.given_task_options(type(configs.task)))
    if _SOURCE.value is not None and _TARGET.value is not None:
        text = read_parallel(_SOURCE.value, _TARGET.value)
    else:
        text = read_test_text(configs.data, _SPLIT.value, task)
    search = task.search_config(given)
    translator = Translator(
        *common.load_translator(found), search, constraints=task.constraints
    ).with_cached_projection()
    results = translator.translate(text.source, _BATCH_SIZE.value)
    outputs = task.postprocess([best.text for best, *_ in results], text.source)
    if _OUTPUT.value is not None:
        write_atomically(_OUTPUT.value, "".join(line + "\n" for line in outputs))
    metrics = task.evaluate(outputs, text.target, text.source)
    checkpoint = ",".join(name for _, name in found)
    if _JSON.value:
        print(json.dumps(metrics | {"sentences": len(outputs), "checkpoint": checkpoint}))
        return
    lines = {"checkpoint": checkpoint, "sentences": f"{len(outputs):,}", **task.report(metrics)}
    width = max(map(len, lines))
    for label, value in lines.items():
        print(f"{label:{width}}  {value}")
