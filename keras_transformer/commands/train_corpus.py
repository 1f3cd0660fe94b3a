"""The corpus of a run that is trained: made by its first worker, with the help of the others."""

import dataclasses
import pathlib
import shlex
from typing import TYPE_CHECKING

from keras_transformer.commands import train_configs
from keras_transformer.commands.train_start import Start

if TYPE_CHECKING:
    from keras_transformer.data import TokenizedCorpus
    from keras_transformer.text import Vocabulary
    from keras_transformer.training import RunConfigs, RunDirectory
    from keras_transformer.training.distribution import Worker


@dataclasses.dataclass(frozen=True)
class RunCorpus:
    """Makes the tokenized corpus of a run.

    Attributes:
        run: the run, which may not exist yet.
        configs: its settings from now on.
        worker: this one.
        cache_dir: folder for the tokenized text that runs share; None means one in the run.
        beam_options: of an Apache Beam pipeline that tokenizes; None means no pipeline.
        start: what a new run starts from, with its vocabularies and weights.
    """

    run: "RunDirectory"
    configs: "RunConfigs"
    worker: "Worker"
    cache_dir: str | None
    beam_options: str | None
    start: Start | None = None

    def prepare(self) -> "TokenizedCorpus":
        """Creates the run, or checks that it may be resumed so; returns its corpus."""
        from keras_transformer.training import check_symbols, is_finished, make_vocabularies

        run, configs = self.run, self.configs
        if run.exists:
            run.continue_with(configs)
            corpus, is_new = self._corpus(run.vocabularies())
            steps = run.checkpoints().steps()
            if steps and is_new and not is_finished(run):
                print(
                    "The text was not in the cache: if it has changed since the run began, the run "
                    f"resumes at step {steps[-1]:,} with the text as it is now."
                )
            return corpus
        if self.start is not None:
            weights = self.start.load_model(configs.training.freeze)
            source, target = self.start.run.vocabularies()
            check_symbols(configs.corpora, configs.task, (source, target))
            corpus, _ = self._corpus((source, target))
            run.create(configs, source, target, weights)
            return corpus
        print("Preparing the vocabulary ...", flush=True)
        source, target = make_vocabularies(configs.corpora, configs.task)
        corpus, _ = self._corpus((source, target))
        model = train_configs.model_config(configs.corpora, source.size, target.size)
        run.create(configs._replace(model=model), source, target)
        return corpus

    def wait(self) -> "TokenizedCorpus":
        """Waits until the first worker has prepared the run; returns its corpus.

        Meanwhile this worker tokenizes its share of a large corpus.
        """
        from keras_transformer.data import tokenize_share
        from keras_transformer.training.distribution import wait_for_first_worker

        run, configs = self.run, self.configs
        share = self.worker.index, self.worker.count
        has_helped = False

        def is_prepared() -> bool:
            nonlocal has_helped
            has_helped = has_helped or tokenize_share(
                self._folder,
                configs.task.pair_sources(configs.corpora, "train"),
                worker=share,
                max_length=configs.corpora.max_length,
                max_length_ratio=configs.corpora.max_length_ratio,
            )
            return run.exists and run.configs().training == run.resolved(configs.training)

        wait_for_first_worker(run.path, is_prepared)
        return self._corpus(run.vocabularies())[0]

    def _corpus(
        self, vocabularies: "tuple[Vocabulary, Vocabulary]"
    ) -> "tuple[TokenizedCorpus, bool]":
        """Returns the text to train on as tokens, and whether it was tokenized just now."""
        from keras_transformer.data import ApacheBeamShards
        from keras_transformer.training import training_corpus

        is_new = False

        def report(pairs: int) -> None:
            nonlocal is_new
            is_new = True
            print(f"Tokenizing: {pairs:,} pairs ...", flush=True)

        options = self.beam_options
        corpus = training_corpus(
            self.configs.corpora,
            vocabularies,
            self._folder,
            report,
            keep_others=self.cache_dir is not None,
            worker=(self.worker.index, self.worker.count),
            beam=None if options is None else ApacheBeamShards(shlex.split(options)),
            task=self.configs.task,
        )
        for reason, count in corpus.dropped.items():
            if count:
                print(f"Left out {count:,} pairs: {reason}.")
        return corpus, is_new

    @property
    def _folder(self) -> pathlib.Path:
        return pathlib.Path(self.cache_dir) if self.cache_dir else self.run.path / "tokens"
