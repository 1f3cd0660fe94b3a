"""Runs with guided alignment: made from files, resumed, tuned, and better at aligning."""

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.inference import Translator
from keras_transformer.serving.export import export, load_exported
from keras_transformer.training import RunDirectory, train
from keras_transformer.training.settings import new_configs

OPTIONS = dict(
    preset="tiny", num_layers=2, model_dim=32, num_heads=4, feed_forward_dim=64, dropout=0.1,
    vocabulary_kind="word", batch_tokens=600, warmup_steps=100, average_last=1,
)  # fmt: skip


def make_text(count, seed):
    """Pairs of made-up words, where two of three words swap places with the next, and links."""
    random = np.random.default_rng(seed)
    sources, targets, links = [], [], []
    for _ in range(count):
        words = random.permutation(30)[: random.integers(4, 10)]
        order = np.arange(len(words))
        for place in range(0, len(words) - 1, 2):
            if words[place] < 20:
                order[[place, place + 1]] = order[[place + 1, place]]
        sources.append(" ".join(f"s{word}" for word in words))
        targets.append(" ".join(f"t{word}" for word in words[order]))
        links.append({(int(source), target) for target, source in enumerate(order)})
    return sources, targets, links


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The paths of a training text and its links."""
    folder = tmp_path_factory.mktemp("text")
    sources, targets, links = make_text(800, seed=1)
    lines = [" ".join(f"{i}-{j}" for i, j in sorted(pairs)) for pairs in links]
    for name, rows in (("source", sources), ("target", targets), ("links", lines)):
        (folder / name).write_text("".join(f"{row}\n" for row in rows))
    return str(folder / "source"), str(folder / "target"), str(folder / "links")


def create(path, files, **changes):
    return RunDirectory.create(path, train=files[:2], **OPTIONS | changes)


def error_rate(translator, sources, targets, links):
    """Returns the alignment error rate (Och and Ney 2003), all links being sure."""
    found = list(map(set, translator.align(sources, targets)))
    both = sum(len(ours & theirs) for ours, theirs in zip(found, links, strict=True))
    return 1 - 2 * both / (sum(map(len, found)) + sum(map(len, links)))


@pytest.mark.slow
def test_guided_attention_aligns_better(files, tmp_path):
    test = make_text(100, seed=2)
    rates = {}
    for name, guide in {"none": None, "file": files[2], "ibm1": "ibm1"}.items():
        weight = dict(guided_alignment_weight=1.0) if guide else {}
        steps = dict(train_steps=300, checkpoint_steps=300)
        run = create(tmp_path / name, files, guided_alignment=guide, **steps, **weight)
        translator = Translator(train(run, show=False), *run.vocabularies())
        rates[name] = error_rate(translator, *test)
    print(rates)
    assert rates["none"] > 2 * max(rates["file"], rates["ibm1"])
    # An export aligns as Python does.
    exported = load_exported(export(translator, tmp_path / "exports"))
    assert exported.align(*test[:2]) == translator.align(*test[:2])
    details = translator.translate(test[0][:5], details=True)
    texts = [best.text for best, *_ in details]
    assert [best.alignment for best, *_ in details] == translator.align(test[0][:5], texts)


@pytest.mark.slow
def test_resumed_run_has_the_same_weights(files, tmp_path):
    steps = dict(checkpoint_steps=3, guided_alignment=files[2], guided_alignment_weight=0.5)
    weights = {}
    for name, first in {"whole": 6, "resumed": 3}.items():
        run = create(tmp_path / name, files, train_steps=first, **steps)
        train(run, show=False)
        if first < 6:
            run.change(train_steps=6)
            train(run, show=False)
        weights[name] = run.load_model("step-6").get_weights()
    for whole, resumed in zip(weights["whole"], weights["resumed"], strict=True):
        np.testing.assert_array_equal(whole, resumed)


def test_guided_run_has_a_head_and_keeps_its_links(files, tmp_path):
    run = create(tmp_path / "run", files, guided_alignment=files[2], train_steps=5)
    assert run.configs().model.alignment_head
    assert run.corpus().alignment.any()
    with pytest.raises(InputError, match=r"guided_alignment is .*links' there and 'ibm1' here"):
        run.change(guided_alignment="ibm1")
    with pytest.raises(InputError, match="source, line 1: expected links such as"):
        create(tmp_path / "other", files, guided_alignment=files[0])


@pytest.mark.slow
def test_tuned_run_gets_a_head(files, tmp_path):
    origin = create(tmp_path / "origin", files, train_steps=1, checkpoint_steps=1)
    train(origin, show=False)
    assert not origin.configs().model.alignment_head
    tuned = RunDirectory.create(
        tmp_path / "tuned",
        train=files[:2],
        start_from=origin.path,
        guided_alignment="ibm1",
        train_steps=1,
        checkpoint_steps=1,
    )
    assert tuned.configs().model.alignment_head
    for old, new in zip(
        origin.load_model().weights, tuned.load_model("step-0").weights, strict=True
    ):
        np.testing.assert_array_equal(old, new)


def test_weight_without_a_reference_is_rejected():
    options = {"train_file": "text.tsv", "guided_alignment_weight": 0.3}
    with pytest.raises(InputError, match=r"weight=0\.3 needs a reference to align by; add --g"):
        new_configs(options)


def test_missing_file_of_links_is_reported_before_the_text_is_tokenized(files, tmp_path):
    with pytest.raises(InputError, match="absent does not exist; expected a text file"):
        create(tmp_path / "run", files, guided_alignment=f"{files[2]},{tmp_path}/absent")
    assert not (tmp_path / "run").exists()


def test_architecture_without_attention_is_rejected():
    import toy_architecture  # noqa: F401 (registers itself)

    with pytest.raises(InputError, match="which architecture toy cannot"):
        new_configs({"architecture": "toy", "guided_alignment": "ibm1", "train_file": "text.tsv"})
