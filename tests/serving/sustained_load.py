"""Asks an export from several threads, with sentences and batches of mixed length, for minutes.

    python tests/serving/sustained_load.py --export_dir=exports/1 --seconds=300

Serves by the C++ runtime of TensorFlow alone, in a program of its own. Prints the load that was
borne as one JSON object, and ends with status 1 where a request failed, a sentence got another
answer than it got alone, or resident memory grew by more than `--max_growth_mb` after the warm-up.
The sentences are those of `--text`, one a line, or else ones made of the words and letters below.
oneDNN's kernels are off unless TF_ENABLE_ONEDNN_OPTS is set: see `native_runtime`.
"""

import argparse
import json
import pathlib
import random
import sys
import tempfile

import native_runtime

# After its warm-up a sound export grows by a few MB, which the allocator keeps for reuse.
MAX_GROWTH_MB = 64
_PARTS = ["hello", "tree", "sun", "house", "cat", "two", *"aäж木", "nonsense", "two,", "12", "👍"]


def make_sentences(count: int = 64, longest: int = 40, seed: int = 1) -> list[bytes]:
    """Gives sentences of no words to the longest, short ones being more frequent."""
    generator = random.Random(seed)
    lengths = [int(longest * generator.random() ** 2) for _ in range(count)]
    return [" ".join(generator.choices(_PARTS, k=length)).encode() for length in lengths]


def bear(
    program: pathlib.Path,
    export_dir: pathlib.Path,
    sentences: list[bytes],
    *,
    seconds: int,
    warm_up_seconds: int,
    threads: int = 4,
    largest_batch: int = 32,
    max_growth_mb: float = MAX_GROWTH_MB,
) -> dict[str, float]:
    """Puts the load on `serving_default` and gives its figures; see `native_runtime.load`.

    Args:
        program: `load`, as `native_runtime.build` made it.
        export_dir: the folder of one version.
        sentences: what is asked, at random.
        seconds: how long after the warm-up.
        warm_up_seconds: how long nothing is measured.
        threads: how many ask at once.
        largest_batch: sentences asked at once are 1 to so many.
        max_growth_mb: of the resident memory, in millions of bytes.

    Raises:
        native_runtime.NativeError: as told at the top.
    """
    figures = native_runtime.load(
        program,
        native_runtime.read_signature(export_dir),
        [[sentence] for sentence in sentences],
        threads=threads,
        largest_batch=largest_batch,
        warm_up_seconds=warm_up_seconds,
        seconds=seconds,
    )
    growth = figures["end_mb"] - figures["start_mb"]
    if growth > max_growth_mb:
        raise native_runtime.NativeError(
            f"memory grew by {growth:.0f} MB, more than {max_growth_mb:.0f}: {figures}"
        )
    return figures


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--export_dir", type=pathlib.Path, required=True, help="<folder>/<version>")
    parser.add_argument("--text", type=pathlib.Path, help="sentences, one a line")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--warm_up_seconds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--largest_batch", type=int, default=32)
    parser.add_argument("--max_growth_mb", type=float, default=MAX_GROWTH_MB)
    return parser.parse_args()


def main() -> None:
    arguments = vars(_parse_arguments())
    text = arguments.pop("text")
    sentences = text.read_bytes().splitlines() if text else make_sentences()
    if lack := native_runtime.missing():
        sys.exit(lack)
    with tempfile.TemporaryDirectory() as folder:
        program = native_runtime.build("load", pathlib.Path(folder))
        try:
            print(json.dumps(bear(program, sentences=sentences, **arguments)))
        except native_runtime.NativeError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
