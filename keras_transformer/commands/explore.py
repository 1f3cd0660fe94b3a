"""Shows the attention and the search of a translation as a page, a figure or JSON.

keras-transformer explore --run_dir=runs/mine "A man rides a horse." --output=page.html
keras-transformer explore --run_dir=runs/mine,runs/larger "One." "Two." --output=page.html
keras-transformer explore --run_dir=runs/mine --serve
keras-transformer explore --model=en-de "Good morning." --output=page.html

The page is one file that loads nothing else. With --serve it translates the sentences that you
type; Ctrl-C ends it.
"""

import io
import json
import pathlib
from typing import TYPE_CHECKING, Any

from absl import flags

from keras_transformer.commands import command_flags, common
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError, check_unicode
from keras_transformer.files import write_atomically
from keras_transformer.serving.model_folder import check_version, read_model_card

if TYPE_CHECKING:
    from keras_transformer.explorer.views import Inspector, View

_RUN_DIR = command_flags.define_path(
    "run_dir", "Directory of a training run. Several, separated by commas, are compared."
)
_MODEL = command_flags.define_model_flag()
_SAVED_MODEL = command_flags.define_path(
    "saved_model",
    "Exported version, or several separated by commas, with or without --run_dir. Shows "
    "the mean of the last layer's heads only.",
)
_CHECKPOINT = command_flags.define_checkpoint_flag()
_OUTPUT = command_flags.define_path("output", "Write a page, an .html file.")
_PNG = command_flags.define_path(
    "png", "Write a figure of one sentence and one model, a .png, .pdf or .svg file."
)
_BERTVIZ = command_flags.define_path(
    "bertviz", "Write BertViz's attn_data, a .json file, of one sentence and one model."
)
_ATTENTION = flags.DEFINE_enum(
    "attention",
    "cross",
    ["encoder", "decoder", "cross"],
    "Attention in the figure: among source words (encoder), among target words (decoder), "
    "or from target to source words (cross).",
)
_LAYER = flags.DEFINE_integer("layer", None, "Layer in the figure, from 1. Default: the last.")
_SERVE = flags.DEFINE_boolean("serve", False, "Serve the page on this machine only (loopback).")
_PORT = flags.DEFINE_integer(
    "port", 8600, "Port of --serve; 0 for any free one.", lower_bound=0, upper_bound=65535
)
command_flags.define_flags(SearchConfig)

_MIN_SHARE = 0.15  # of a word's attention; the figure hides weights below it


def main(arguments: list[str]) -> None:
    outputs = [path for path in (_OUTPUT.value, _PNG.value, _BERTVIZ.value) if path]
    if all(flag.value is None for flag in (_RUN_DIR, _MODEL, _SAVED_MODEL)):
        raise InputError("give --run_dir, --model or --saved_model")
    if _MODEL.value is not None:
        command_flags.reject_given(["run_dir", "checkpoint"], "cannot be combined with --model")
    if _SERVE.value == bool(outputs) or _SERVE.value == bool(arguments):
        raise InputError(
            'give sentences and --output=page.html, for example: explore --run_dir=... "A man '
            'rides a horse." --output=page.html; or --serve alone'
        )
    if not _PNG.value:
        command_flags.reject_given(["attention", "layer"], "needs --png")
    if _PNG.value and _figure_format() not in ("png", "pdf", "svg"):
        raise InputError(f"--png must be a .png, .pdf or .svg file, got {_PNG.value}")
    for path in outputs:
        common.check_output(path)
    for sentence in arguments:
        check_unicode("a sentence", sentence)
    search = command_flags.given_flags(SearchConfig)
    if _RUN_DIR.value is None and _MODEL.value is None:
        command_flags.reject_given(["checkpoint", *search], "was fixed when exported")
    if _PNG.value:
        common.load_matplotlib()
    common.load_tensorflow(one_dnn=False)
    inspectors = _inspectors(search)
    if len(set(arguments)) * len(inspectors) > 1 and (_PNG.value or _BERTVIZ.value):
        raise InputError("--png and --bertviz take one sentence and one model")
    if _SERVE.value:
        _serve(inspectors)
        return
    views = [inspect(sentence) for sentence in dict.fromkeys(arguments) for inspect in inspectors]
    _write(views)


def _figure_format() -> str:
    return pathlib.Path(_PNG.value or "").suffix.lower().removeprefix(".")


def _inspectors(search: dict[str, Any]) -> "list[Inspector]":
    from keras_transformer.explorer.views import inspect_export, inspect_model
    from keras_transformer.serving.export import load_exported

    inspectors = []
    with common.runs_to_read(_RUN_DIR.value, _MODEL.value) as run_dirs:
        checkpoints = common.find_checkpoints(run_dirs, _CHECKPOINT.value) if run_dirs else []
        for run, checkpoint in checkpoints:
            configs = run.configs()
            model, vocabularies = run.load_model(checkpoint), run.vocabularies()
            name = _MODEL.value or f"{run.path} ({checkpoint})"
            settings = configs.search_config(search)
            inspectors.append(inspect_model(name, model, vocabularies, configs.task, settings))
    for version in (_SAVED_MODEL.value or "").split(","):
        if version:
            check_version(pathlib.Path(version))
            task = common.task_of(read_model_card(version))
            if not task.keeps_words:
                raise InputError(
                    f"{version} answers with other words than the model writes ({task.name}); give "
                    "--run_dir"
                )
            inspectors.append(inspect_export(version, load_exported(version)))
    return inspectors


def _write(views: "list[View]") -> None:
    from keras_transformer.explorer.page import make_page, page_content
    from keras_transformer.explorer.views import bertviz_attention, draw_attention

    if _PNG.value:  # first, since it may refuse
        kind = _ATTENTION.value
        if kind not in views[0].attentions:
            raise InputError(f"{views[0].model} has no {kind} attention; give another --attention")
        num_layers = len(views[0].attentions[kind])
        layer = num_layers if _LAYER.value is None else _LAYER.value
        if not 1 <= layer <= num_layers:
            raise InputError(f"--layer must be from 1 to {num_layers}, got {layer}")
        drawn = draw_attention(views[0], kind, layer - 1, _MIN_SHARE)
        image = io.BytesIO()
        drawn.savefig(image, format=_figure_format(), dpi=300, bbox_inches="tight")
        write_atomically(_PNG.value, image.getvalue())
    if _OUTPUT.value:
        write_atomically(_OUTPUT.value, make_page(page_content(views)))
    if _BERTVIZ.value:
        data = bertviz_attention(views[0])
        write_atomically(_BERTVIZ.value, json.dumps(data, ensure_ascii=False))
    for path in (_OUTPUT.value, _PNG.value, _BERTVIZ.value):
        if path:
            print(f"Wrote {path}.")


def _serve(inspectors: "list[Inspector]") -> None:
    from keras_transformer.explorer.page import ExplorerServer

    server = ExplorerServer(inspectors, _PORT.value)
    with server:
        print(f"Open http://localhost:{server.server_port}; Ctrl-C ends.", flush=True)
        server.serve_forever()
