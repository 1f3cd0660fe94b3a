"""More tokens for a vocabulary: old ids stay, new tokens are cut inside the graph as outside it."""

import pytest
import tensorflow as tf

from keras_transformer.config import UNK_ID
from keras_transformer.errors import InputError
from keras_transformer.text import SubwordSampler, Tokenizer, Vocabulary, learn_vocabulary
from keras_transformer.text.learning import cut_new_tokens, extend_vocabulary, kind_of
from keras_transformer.text.vocabulary import model_message

KINDS = ["bpe", "unigram", "char", "word"]
OLD = [
    "Ein kleines Mädchen klettert in ein Spielhaus aus Holz.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
    "Zwei Männer stehen am Herd und bereiten Essen zu <br>.",
]
NEW = ["Der Herzkatheter liegt im Herz.", "Жук и Herzkatheter", "der Herzkatheter und der Жук"]
# Each where a piece might reach over an end of it.
TAGGED = [
    "<de> Ein Mann", "Ein <de> Mann", "Ein Mann <de>", "Ein<de>Mann", "<de><fr> ein <de>",
    "<<de>>", "< de>", "<br><de>", "<d<fr>e>",
]  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def old(request) -> Vocabulary:
    size = {"bpe": 80, "unigram": 54}.get(request.param, 1000)
    return learn_vocabulary(OLD, size=size, kind=request.param)


@pytest.fixture(scope="module")
def learned(old) -> Vocabulary:
    size = {"bpe": 60, "unigram": 30}.get(kind_of(old), 1000)
    return learn_vocabulary(NEW, size=size, kind=kind_of(old))


def in_graph(vocabulary: Vocabulary, texts: list[str]) -> list[list[int]]:
    tokenize = tf.function(Tokenizer(vocabulary).tokenize, autograph=False)
    return tokenize(tf.constant(texts)).to_list()


def test_old_tokens_keep_ids_and_old_text_is_cut_as_before(old, learned):
    new = extend_vocabulary(old, learned, ["<de>", "<fr>"])
    assert new.size > old.size + 2
    assert new.pieces(range(old.size)) == old.pieces(range(old.size))
    texts = [*OLD, *" ".join(OLD).split(), "Omega Ω ? Ω"]
    added = new.pieces(range(old.size, new.size))
    spelled = {text: f"▁{text.replace(' ', '▁')}" for text in texts}
    unchanged = [text for text in texts if not any(piece in spelled[text] for piece in added)]
    assert unchanged
    assert new.encode(unchanged) == old.encode(unchanged)


def test_new_text_needs_fewer_tokens_and_none_unknown(old, learned):
    new = extend_vocabulary(old, learned)
    before, after = old.encode(NEW), new.encode(NEW)
    assert any(UNK_ID in row for row in before) and not any(UNK_ID in row for row in after)
    if kind_of(old) in ("bpe", "unigram"):
        assert sum(map(len, after)) < sum(map(len, before))
    assert new.decode(after) == NEW
    assert in_graph(new, NEW + OLD) == after + new.encode(OLD)


def test_added_tokens_are_one_piece_and_come_back(old):
    new = extend_vocabulary(old, tokens=["<de>", "<fr>"])
    assert new.size == old.size + 2
    is_word = kind_of(old) == "word"
    assert [piece.strip("▁") for piece in new.pieces([old.size, old.size + 1])] == ["<de>", "<fr>"]
    texts = TAGGED[:3] if is_word else TAGGED
    ids = new.encode(texts)
    for text, row in zip(texts, ids, strict=True):
        for number, tag in enumerate(("<de>", "<fr>")):
            assert row.count(old.size + number) == text.count(tag), text
    assert in_graph(new, texts) == ids
    known = [index for index, row in enumerate(ids) if UNK_ID not in row]
    assert len(known) > 2
    decoded = Tokenizer(new).detokenize(tf.ragged.constant(ids).to_tensor())
    for index in known:
        assert new.decode([ids[index]]) == [texts[index]] == [decoded[index].numpy().decode()]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sampled_segmentations_keep_added_tokens(kind):
    vocabulary = extend_vocabulary(learn_vocabulary(OLD, size=54, kind=kind), tokens=["<de>"])
    sampler = SubwordSampler(vocabulary, alpha=0.3)
    rows = vocabulary.encode(["<de> Ein Mann in einem<de>"])
    sampled = [sampler(rows, seed=seed)[0] for seed in range(20)]
    assert len(set(map(tuple, sampled))) > 5
    assert {row.count(vocabulary.size - 1) for row in sampled} == {2}


def test_vocabulary_extended_twice_keeps_all_tokens(old, learned):
    once = extend_vocabulary(old, tokens=["<de>"])
    twice = extend_vocabulary(once, learned, ["<fr>"])
    assert twice.pieces(range(once.size)) == once.pieces(range(once.size))
    (ids,) = twice.encode(["<de> Herz <fr>"])
    assert once.size - 1 in ids and twice.size - 1 in ids
    assert extend_vocabulary(twice, learned).fingerprint == twice.fingerprint


def test_new_tokens_are_spelled_by_the_pieces_they_were_cut_into(old, learned):
    new = extend_vocabulary(old, tokens=["Mannherd", "<de>", "Ω"])
    cuts = [old.pieces(ids) for ids in cut_new_tokens(old, new)]
    if kind_of(old) == "word":
        assert cuts == [["<unk>"]] * 3
        return
    assert "".join(cuts[0]) == "Mannherd"  # and no "▁", which a text would begin with
    assert cuts[1][0] == "<" and cuts[1][-1] == ">"
    assert cuts[2] == ["<unk>"]
    new = extend_vocabulary(old, learned)
    pieces = new.pieces(range(old.size, new.size))
    for piece, ids in zip(pieces, cut_new_tokens(old, new), strict=True):
        if UNK_ID not in ids:
            assert "".join(old.pieces(ids)) == piece
    if kind_of(old) != "char":
        assert any(piece.startswith("▁") for piece in pieces)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("", "must be text without spaces, got ''"),
        ("de fr", "must be text without spaces, got 'de fr'; change add_tokens"),
        ("▁de", "must be text without spaces"),
        ("e\u0301", "would never be found: normalization turns it into 'é'; add that instead"),
        ("E", "'E' is a token of the vocabulary already"),
    ],
)
def test_tokens_that_cannot_be_added_are_rejected(token, message):
    vocabulary = learn_vocabulary(OLD, size=100, kind="char")
    with pytest.raises(InputError, match=message):
        extend_vocabulary(vocabulary, tokens=[token])
    with pytest.raises(InputError, match="'x' is a token of the vocabulary already"):
        extend_vocabulary(vocabulary, tokens=["x", "x"])


def test_imported_vocabulary_grows_before_pieces_that_are_no_tokens(old, learned):
    model = model_message().FromString(old.model_bytes)
    # The last tokens become pieces that only have text cut as before.
    model.num_tokens = len(model.pieces) - 3
    lost = [piece.piece for piece in model.pieces[-3:]]
    imported = Vocabulary(model.SerializeToString())
    assert imported.has_more_pieces
    texts = [*OLD, *NEW]
    new = extend_vocabulary(imported, tokens=["<de>"])
    assert (new.size, new.has_more_pieces) == (imported.size + 1, True)
    assert new.encode(texts) == imported.encode(texts)
    found = new.encode(["<de>"])
    assert found[0][-1] == imported.size
    assert in_graph(new, ["<de>", *texts]) == new.encode(["<de>", *texts])
    # A piece that is learned, or added by its name, becomes a token.
    again = extend_vocabulary(imported, old)
    assert sorted(again.pieces(range(imported.size, again.size))) == sorted(lost)
    assert not again.has_more_pieces
    for ids, expected in zip(again.encode(texts), old.encode(texts), strict=True):
        assert again.pieces(ids) == old.pieces(expected)
