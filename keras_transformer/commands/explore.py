"""Shows what attention does in a translation: a page to look at, a figure, or JSON.

keras-transformer explore --run_dir=runs/mine "A man rides a horse." --output=page.html
keras-transformer explore --run_dir=runs/mine,runs/larger "One." "Two." --output=page.html
keras-transformer explore --run_dir=runs/mine --serve

The page is one file that loads nothing from anywhere. With --serve it answers sentences that are
typed into it, until Ctrl-C.
"""

import json
import pathlib
from typing import TYPE_CHECKING

from absl import flags

from keras_transformer.commands import common, config_flags
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.explorer.views import Inspector, View

_RUN_DIR = flags.DEFINE_string(
    "run_dir", None, "Directory of a training run. Several, separated by commas, are compared."
)
_SAVED_MODEL = flags.DEFINE_string(
    "saved_model",
    None,
    "An exported version, or several, beside or in place of --run_dir. It knows the mean of its "
    "last layer's heads only.",
)
_CHECKPOINT = config_flags.define_checkpoint_flag()
_OUTPUT = flags.DEFINE_string("output", None, "The page to write, an .html file.")
_PNG = flags.DEFINE_string("png", None, "A figure to write, of one sentence and one model.")
_JSON = flags.DEFINE_string("json", None, "BertViz's attn_data to write, of the same.")
_ATTENTION = flags.DEFINE_enum(
    "attention", None, ["encoder", "decoder", "cross"], "Of the figure. Default: the first."
)
_LAYER = flags.DEFINE_integer("layer", None, "Of the figure, from 1. Default: the last.")
_THRESHOLD = flags.DEFINE_float(
    "threshold", 0.15, "The least weight that the figure shows.", lower_bound=0, upper_bound=1
)
_SERVE = flags.DEFINE_boolean("serve", False, "Serve the page on this machine's loopback.")
_PORT = flags.DEFINE_integer(
    "port", 8600, "Of --serve; 0 for any that is free.", lower_bound=0, upper_bound=65535
)
config_flags.define_flags(SearchConfig)


def main(arguments: list[str]) -> None:
    outputs = [pathlib.Path(each) for each in (_OUTPUT.value, _PNG.value, _JSON.value) if each]
    if _RUN_DIR.value is None and _SAVED_MODEL.value is None:
        raise InputError("give --run_dir or --saved_model")
    if _SERVE.value == bool(outputs) or _SERVE.value == bool(arguments):
        raise InputError(
            'give sentences and --output=page.html, as in: explore --run_dir=... "A man rides a '
            'horse." --output=page.html; or --serve alone'
        )
    for name in ("attention", "layer", "threshold"):
        if flags.FLAGS[name].present and not _PNG.value:
            raise InputError(f"--{name} has no use without --png; give that too, or leave it out")
    for output in outputs:
        common.check_output(output)
    if _PNG.value:
        common.load_matplotlib()
    if flags.FLAGS["shortlist"].present:
        raise InputError("--shortlist has no use here, where all tokens are shown; leave it out")
    common.load_tensorflow(one_dnn=False)
    inspectors = _inspectors()
    if len(set(arguments)) * len(inspectors) > 1 and (_PNG.value or _JSON.value):
        raise InputError("--png and --json are of one sentence and one model")
    if _SERVE.value:
        _serve(inspectors)
        return
    views = [inspect(sentence) for sentence in dict.fromkeys(arguments) for inspect in inspectors]
    _write(views)


def _inspectors() -> "list[Inspector]":
    from keras_transformer.explorer.views import inspect_export, inspect_model
    from keras_transformer.serving.export import load_exported

    inspectors = []
    search = config_flags.given_flags(SearchConfig)
    run_dir = _RUN_DIR.value
    for run, checkpoint in common.find_checkpoints(run_dir, _CHECKPOINT.value) if run_dir else []:
        configs = run.configs()
        model, vocabularies = run.load_model(checkpoint), run.vocabularies()
        name = f"{run.path} ({checkpoint})"
        inspectors.append(
            inspect_model(name, model, vocabularies, configs.task, configs.search_config(search))
        )
    for version in (_SAVED_MODEL.value or "").split(","):
        if version:
            inspectors.append(inspect_export(version, load_exported(version)))
    return inspectors


def _write(views: "list[View]") -> None:
    from keras_transformer.explorer import figure, page
    from keras_transformer.explorer import views as views_module

    if _PNG.value:  # first, since it may refuse
        kind = _ATTENTION.value or next(iter(views[0].attentions))
        if kind not in views[0].attentions:
            raise InputError(f"{views[0].model} has no attention of the kind {kind}")
        num_layers = len(views[0].attentions[kind])
        layer = num_layers if _LAYER.value is None else _LAYER.value
        if not 1 <= layer <= num_layers:
            raise InputError(f"--layer must be from 1 to {num_layers}, got {layer}")
        drawn = figure.draw_attention(views[0], kind, layer - 1, _THRESHOLD.value)
        drawn.savefig(_PNG.value, dpi=300, bbox_inches="tight")
    if _OUTPUT.value:
        text = page.make_page(page.page_content(views))
        pathlib.Path(_OUTPUT.value).write_text(text, encoding="utf-8")
    if _JSON.value:
        data = views_module.bertviz_attention(views[0])
        pathlib.Path(_JSON.value).write_text(json.dumps(data, ensure_ascii=False), "utf-8")
    for path in (_OUTPUT.value, _PNG.value, _JSON.value):
        if path:
            print(f"Wrote {path}.")


def _serve(inspectors: "list[Inspector]") -> None:
    from keras_transformer.explorer.server import ExplorerServer

    try:
        server = ExplorerServer(inspectors, _PORT.value)
    except OSError as error:
        raise InputError(
            f"--port={_PORT.value} cannot be used ({error.strerror}); give another, or 0 for any"
        ) from error
    with server:
        print(f"http://localhost:{server.server_port} shows sentences; Ctrl-C ends.", flush=True)
        server.serve_forever()
