"""Sends sentences and batches of mixed length to an export from several threads, for minutes.

    python tests/serving/sustained_load.py --export_dir=exports/1 --seconds=300

The C program of `native_runtime` serves the export without Python. Prints the figures as one JSON
object, and exits with status 1 if a request failed, a sentence got another answer than it gets
alone, or resident memory grew by more than `--max_growth_mb` after the warm-up. Sentences are the
lines of `--text`, or random ones. oneDNN is off unless TF_ENABLE_ONEDNN_OPTS is set, see
`native_runtime`.
"""

import argparse
import json
import pathlib
import random
import sys
import tempfile

import native_runtime

# After the warm-up memory grows by a few MB, which the allocator keeps for reuse.
MAX_GROWTH_MB = 64
_PARTS = ["hello", "tree", "sun", "house", "cat", "two", *"aäж木", "nonsense", "two,", "12", "👍"]


def random_sentences(count: int = 64, longest: int = 40, seed: int = 1) -> list[bytes]:
    """Returns sentences of up to `longest` words, most of them short."""
    generator = random.Random(seed)
    lengths = [int(longest * generator.random() ** 2) for _ in range(count)]
    return [" ".join(generator.choices(_PARTS, k=length)).encode() for length in lengths]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--export_dir", type=pathlib.Path, required=True, help="<folder>/<version>")
    parser.add_argument("--text", type=pathlib.Path, help="sentences, one a line")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--warm_up_seconds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--largest_batch", type=int, default=32)
    parser.add_argument("--max_growth_mb", type=float, default=MAX_GROWTH_MB)
    options = parser.parse_args()
    if lack := native_runtime.missing():
        sys.exit(lack)
    sentences = options.text.read_bytes().splitlines() if options.text else random_sentences()
    with tempfile.TemporaryDirectory() as folder:
        try:
            figures = native_runtime.load(
                native_runtime.build("load", pathlib.Path(folder)),
                native_runtime.read_signature(options.export_dir),
                [[sentence] for sentence in sentences],
                threads=options.threads,
                largest_batch=options.largest_batch,
                warm_up_seconds=options.warm_up_seconds,
                seconds=options.seconds,
            )
        except native_runtime.NativeError as error:
            sys.exit(str(error))
    print(json.dumps(figures))
    growth = figures["end_mb"] - figures["start_mb"]
    if growth > options.max_growth_mb:
        sys.exit(f"memory grew by {growth:.0f} MB, more than {options.max_growth_mb:.0f}")


if __name__ == "__main__":
    main()
