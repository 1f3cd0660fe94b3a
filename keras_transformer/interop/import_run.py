"""Makes a run directory of a model of another toolkit: whole, or not at all."""

import pathlib
from typing import Any

from keras_transformer.atomic_folders import atomic_folder
from keras_transformer.config import SearchConfig, TrainingConfig
from keras_transformer.errors import InputError, advice_on_writing
from keras_transformer.interop.foreign import ForeignModel
from keras_transformer.training import RunConfigs, RunDirectory


def import_run(model: ForeignModel, run_dir: pathlib.Path, origin: dict[str, Any]) -> RunDirectory:
    """Writes the run directory and returns it.

    Args:
        model: to import.
        run_dir: a path that does not exist.
        origin: what people are to know of where the model came from.

    Raises:
        InputError: the model cannot be imported, or the folder exists or cannot be written.

    Example:
        >>> run = import_run(read_model(path), pathlib.Path("runs/opus"), {"format": "marian"})
        >>> Translator(run.load_model(), *run.vocabularies()).translate(["Hello"])
    """
    if run_dir.exists():
        raise InputError(f"{run_dir} exists already; give a path that does not")
    SearchConfig(**model.search)  # refuses what makes no sense
    transformer = model.to_model()
    configs = RunConfigs(
        transformer.config, None, TrainingConfig(), search=dict(model.search), origin=origin
    )
    try:
        with atomic_folder(run_dir) as aside:
            run = RunDirectory(aside)
            run.create(configs, *model.vocabularies, transformer)
    except OSError as error:
        raise InputError(
            f"cannot write {run_dir} ({error.strerror}); {advice_on_writing(error)}"
        ) from error
    return RunDirectory(run_dir)
