"""The shards of a corpus as an Apache Beam pipeline, for the workers of a cluster."""

import dataclasses
from collections.abc import Sequence

from keras_transformer.data.sources import PairSource
from keras_transformer.data.token_cache import ShardMaker, read_shards
from keras_transformer.errors import InputError


@dataclasses.dataclass(frozen=True)
class ApacheBeamShards:
    """Makes shards for `cached_corpus` in a pipeline; needs the extra `beam`.

    All workers of the pipeline read the text from, and write the shards to, a file system that they
    share, and have this package installed. Each of them reads all text, and tokenizes its shares.

    Args:
        options: of the pipeline, such as ["--runner=FlinkRunner", "--flink_master=host:8081"].
        shares: into how many the work is cut, a few for each worker.

    Raises:
        InputError: Apache Beam is not installed, or `shares` is below 1.

    Example:
        >>> make_shards = ApacheBeamShards(["--runner=DirectRunner"])
        >>> corpus = cached_corpus(
        ...     "tokens", sources, vocabularies, make_shards=make_shards
        ... )  # doctest: +SKIP
    """

    options: Sequence[str] = ()
    shares: int = 100

    def __post_init__(self) -> None:
        if self.shares < 1:
            raise InputError(f"shares must be at least 1, got {self.shares}")

    def __call__(self, maker: ShardMaker, sources: Sequence[PairSource]) -> None:
        try:
            import apache_beam
            from apache_beam.options.pipeline_options import PipelineOptions
        except ImportError as error:
            raise InputError(
                'Apache Beam is not installed; pip install "keras_transformer[beam]"'
            ) from error
        shares = self.shares

        def make(share: int) -> None:
            for part, source in enumerate(sources):
                shards_of_text = read_shards(source)
                maker.make_missing(part, shards_of_text, lambda num_pairs: None, (share, shares))

        with apache_beam.Pipeline(options=PipelineOptions(list(self.options))) as pipeline:
            created = pipeline | apache_beam.Create(range(shares))
            _ = created | apache_beam.Reshuffle() | apache_beam.Map(make)
