"""Translates a file with an export on the workers of an Apache Beam pipeline.

    python examples/translate_with_beam.py exports/en-de/1 input.en output.de --runner=DirectRunner

Needs `pip install ".[beam]"`; other flags are options of the pipeline. All workers see the
same files. Parts that are finished, files in `output.de.parts-1000`, are not translated again.
"""

import argparse
import itertools
import pathlib

import apache_beam
from apache_beam.options.pipeline_options import PipelineOptions

from keras_transformer import load_exported
from keras_transformer.files import iterate_lines, write_atomically


class TranslatePart(apache_beam.DoFn):
    """Translates the lines of a part, given by its number, into a file."""

    def __init__(self, export: str, source: str, parts: pathlib.Path, size: int) -> None:
        self.export, self.source, self.parts, self.size = export, source, parts, size

    def setup(self) -> None:
        self.translator = load_exported(self.export)

    def process(self, number: int) -> None:
        path = self.parts / f"{number:06}"
        if not path.exists():
            first = number * self.size
            lines = list(itertools.islice(iterate_lines(self.source), first, first + self.size))
            results = self.translator.translate(lines)
            write_atomically(path, "".join(f"{result.text}\n" for result in results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs=3, metavar="FILE", help="export, source and output")
    parser.add_argument("--lines", type=int, default=1000, help="of a part")
    args, pipeline_options = parser.parse_known_args()
    export, source, output = args.files
    parts = pathlib.Path(f"{output}.parts-{args.lines}")
    parts.mkdir(exist_ok=True)
    numbers = range(-(-sum(1 for _ in iterate_lines(source)) // args.lines))
    with apache_beam.Pipeline(options=PipelineOptions(pipeline_options)) as pipeline:
        created = pipeline | apache_beam.Create(numbers) | apache_beam.Reshuffle()
        _ = created | apache_beam.ParDo(TranslatePart(export, source, parts, args.lines))
    write_atomically(output, b"".join((parts / f"{n:06}").read_bytes() for n in numbers))
