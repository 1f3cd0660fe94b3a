"""Translates sentences, one a line, with the ONNX model in the folder of this file.

    pip install numpy onnxruntime sentencepiece
    echo "A man rides a horse." | python translate.py --beam_size=4

`Model.search` is the loop to write in another language. encoder.onnx reads the source ids of B
sentences once. decoder_step.onnx reads the newest token of each hypothesis and returns the K most
probable next ones. Of the encoder's outputs, those that config.json lists as "context" stay the
same; those that it lists as "state" are replaced by the step's outputs of the same name, with
"next_" before it. The first dimension of all is that of sentences, and in the decoder that of
hypotheses: a search gathers rows when hypotheses branch or are dropped.

Shapes: B sentences, W hypotheses of each (the beam size), t tokens so far, K candidates.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import sentencepiece

PAD, UNKNOWN, BOS, EOS = range(4)


class Model:
    """An exported model.

    Args:
        folder: that of encoder.onnx, decoder_step.onnx, source.model, target.model and config.json.
        num_threads: threads of an operation; 0 means one for each core.
    """

    def __init__(self, folder: str | pathlib.Path, num_threads: int = 0) -> None:
        folder = pathlib.Path(folder)
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        self.encoder, self.decoder_step = (
            onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), options)
            for name in ("encoder", "decoder_step")
        )
        self._source, self._target = (
            sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.model"))
            for side in ("source", "target")
        )

    def translate(
        self, sentences: Sequence[str], batch_size: int = 32, **options: Any
    ) -> list[tuple[str, float]]:
        """Returns the translation of each sentence and its score; a blank one stays blank.

        Args:
            sentences: any number of them.
            batch_size: sentences that are searched together.
            **options: those of "search" in config.json.
        """
        limit = options.get("max_source_length", self.config["search"]["max_source_length"])
        rows = [self.tokenize(sentence)[:limit] for sentence in sentences]
        found: list[tuple[list[int], float]] = [([], 0.0)] * len(rows)
        order = sorted(filter(rows.__getitem__, range(len(rows))), key=lambda row: len(rows[row]))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            results = self.search([rows[row] for row in batch], **options)
            for row, result in zip(batch, results, strict=True):
                found[row] = result
        texts = [self._target.decode(ids).removeprefix(" ") for ids, _ in found]
        return [(text, score) for text, (_, score) in zip(texts, found, strict=True)]

    def tokenize(self, sentence: str) -> list[int]:
        """Returns the source ids of a sentence, without EOS."""
        words = sentence.split(" ") if self.config["cuts_words_apart"] else [sentence]
        ids = [id_ for word in words for id_ in self._source.encode(word)]
        ids = [id_ if id_ < self.config["source_size"] else UNKNOWN for id_ in ids]
        return ids[: self.config["search"]["max_source_length"]]

    def search(
        self, sentences: Sequence[Sequence[int]], **options: Any
    ) -> list[tuple[list[int], float]]:
        """Returns the ids of the best translation that a beam finds, without EOS, and its score.

        The score is log P / ((5 + length) / 6) ** alpha (Wu et al. 2016, eq. 14), where the length
        counts EOS. A beam of 1 is greedy search.

        Args:
            sentences: one or more lists of source ids, none of them empty, without EOS.
            **options: those of "search" in config.json.
        """
        if unknown := sorted(options.keys() - self.config["search"].keys()):
            raise ValueError(f"there is no option {unknown[0]}; config.json lists them")
        search = self.config["search"] | options
        alpha, beam_size, min_length = (
            search[name] for name in ("length_penalty", "beam_size", "min_length")
        )

        def penalty(length: Any) -> Any:
            is_power = search["length_penalty_form"] == "power"
            return (length if is_power else (5 + length) / 6) ** float(alpha)

        lengths = np.array([len(sentence) for sentence in sentences])
        source = np.full((len(sentences), lengths.max() + 1), PAD, np.int32)
        for row, sentence in zip(source, sentences, strict=True):
            row[: len(sentence) + 1] = [*sentence, EOS]
        limits = lengths + search["max_extra_length"]  # tokens before EOS
        if search["max_length"]:
            limits = np.minimum(limits, search["max_length"])

        # 1. The encoder reads the sentences, of which every hypothesis gets a row.
        rows = np.repeat(np.arange(len(sentences)), beam_size)
        names = [*self.config["context"], *self.config["state"]]
        tensors = dict(zip(names, self.encoder.run(names, {"source": source}), strict=True))
        tensors = {name: tensor[rows] for name, tensor in tensors.items()}
        best: list[list[int]] = [[] for _ in sentences]
        scores = np.full(len(sentences), -np.inf)
        searched = np.arange(len(sentences))  # the sentences that are not done
        log_probs = np.full((len(sentences), beam_size), -np.inf)
        log_probs[:, 0] = 0.0  # one empty hypothesis; the others do not exist yet
        tokens = np.zeros((len(sentences), beam_size, 0), np.int32)
        newest = np.full(len(rows), BOS, np.int32)
        # As many candidates as a beam needs, though PAD, BOS and EOS may be forbidden.
        most = min(2 * beam_size + 3, self.config["target_size"])
        outputs = ["log_probs", "top_log_probs", "top_ids"]
        outputs += [f"next_{name}" for name in self.config["state"]]

        for time in range(int(limits.max()) + 1):
            # 2. The decoder reads the newest tokens.
            inputs = {
                "ids": newest,
                "time": np.array(time, np.int32),
                "count": np.array(most, np.int32),
            }
            all_, gains, ids, *state = self.decoder_step.run(outputs, inputs | tensors)
            tensors |= zip(self.config["state"], state, strict=True)

            # 3. Some tokens are not allowed; at its limit a translation must end.
            shape = (len(searched), beam_size, most)
            gains, ids = gains.reshape(shape), ids.reshape(shape)
            is_early = np.full(shape[:2], time < min_length)
            if min_length:  # a translation of spaces is empty, too
                is_early |= np.isin(tokens, self.config["space_ids"]).all(axis=2)
            gains[np.isin(ids, [PAD, BOS]) | ((ids == EOS) & is_early[..., None])] = -np.inf
            must_end = time >= limits[searched]
            gains[must_end], ids[must_end, :, 0] = -np.inf, EOS
            gains[must_end, :, 0] = all_[:, EOS].reshape(shape[:2])[must_end]

            # 4. The most probable continuations of all hypotheses of a sentence, best first.
            totals = (log_probs[..., None] + gains).reshape(len(searched), -1)
            order = np.argsort(-totals, axis=1, kind="stable")[:, : 2 * beam_size]
            totals = np.take_along_axis(totals, order, axis=1)
            ids = np.take_along_axis(ids.reshape(len(searched), -1), order, axis=1)
            parents = order // most

            # 5. EOS among the W best finishes a hypothesis.
            is_end = (ids == EOS) & (totals > -np.inf)
            for row, place in zip(*np.nonzero(is_end[:, :beam_size]), strict=True):
                score = totals[row, place] / penalty(time + 1)
                if score > scores[searched[row]]:
                    scores[searched[row]] = score
                    best[searched[row]] = tokens[row, parents[row, place]].tolist()

            # 6. The W best others stay open, unless none can beat the translation that is found:
            # a log-probability only falls, and the penalty is at most one of these.
            kept = np.argsort(is_end, axis=1, kind="stable")[:, :beam_size]
            log_probs, ids, parents = (
                np.take_along_axis(each, kept, axis=1)
                for each in (np.where(is_end, -np.inf, totals), ids, parents)
            )
            largest = np.maximum(penalty(time + 2), penalty(limits[searched] + 1))
            is_open = log_probs.max(axis=1) / largest > scores[searched]
            if beam_size == 1:
                is_open &= scores[searched] == -np.inf
            if not is_open.any():
                break
            still = np.flatnonzero(is_open)
            parents = parents[still]
            tokens = np.concatenate([tokens[still[:, None], parents], ids[still, :, None]], axis=2)
            searched, log_probs, newest = (
                searched[still],
                log_probs[still],
                tokens[:, :, -1].ravel(),
            )
            rows = (still[:, None] * beam_size + parents).ravel()
            moved = self.config["state"] if is_open.all() else names
            tensors |= {name: tensors[name][rows] for name in moved}
        return list(zip(best, scores.tolist(), strict=True))


def _count(text: str) -> int:
    """Returns the number that an argument has to be."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def _read_lines(parser: argparse.ArgumentParser) -> list[str]:
    lines = []
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            lines.append(line.decode("utf-8").removesuffix("\n").removesuffix("\r"))
        except UnicodeDecodeError as error:
            parser.error(f"line {number} is not UTF-8: {error.reason}; convert it first")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Translates standard input, one sentence a line.")
    parser.add_argument("--beam_size", type=_count, help="Hypotheses; 1 is greedy search.")
    parser.add_argument("--length_penalty", type=float, help="alpha of the length penalty.")
    parser.add_argument("--batch_size", type=_count, default=32, help="Sentences of a batch.")
    parser.add_argument("--scores", action="store_true", help="Print a score and a tab first.")
    given = vars(parser.parse_args())
    has_scores = given.pop("scores")
    options = {name: value for name, value in given.items() if value is not None}
    sentences = _read_lines(parser)
    for text, score in Model(pathlib.Path(__file__).parent).translate(sentences, **options):
        text = " ".join(text.splitlines())  # a vocabulary of bytes can generate a newline
        print(f"{score:.4f}\t{text}" if has_scores else text)


if __name__ == "__main__":
    main()
