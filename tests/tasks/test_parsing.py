"""Constituency parsing, from files of trees to an exported parser."""

import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import DataConfig
from keras_transformer.errors import InputError
from keras_transformer.files import read_lines
from keras_transformer.tasks import ParsingTask
from keras_transformer.tasks.parsing.constraint import copied_words, word_kinds
from keras_transformer.tasks.parsing.trees import (
    clean,
    parse_tree,
    read_trees,
    sentence_of,
    to_text,
)
from keras_transformer.text import learn_vocabulary
from keras_transformer.training.prepare import check_symbols, make_vocabularies

TREE = "(TOP (S (NP-SBJ (DT The) (NN dog)) (VP (VBZ barks) (NP (-NONE- *))) (. .)))"
ANSWER = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))"


def evaluate(output, reference=TREE):
    return ParsingTask().evaluate([output], [reference], ["The dog barks ."])


@pytest.fixture
def tree_file(tmp_path):
    path = tmp_path / "trees.mrg"
    path.write_text(TREE)
    return str(path)


def test_model_learns_linearized_trees(tree_file):
    data = DataConfig(train_file=tree_file, dev_file=tree_file)
    for options, text in (
        ({}, "(S (NP DT NN )NP (VP VBZ )VP . )S"),
        ({"copy_words": True}, "⟨S ⟨NP The ∕DT dog ∕NN ⟩NP ⟨VP barks ∕VBZ ⟩VP . ∕. ⟩S"),
    ):
        task = ParsingTask(**options)
        assert options.keys() <= set(task.fields_with(is_learned=True))
        (train,), (dev,) = task.train_sources(data), task.pair_sources(data, "validation")
        assert list(train) == [("The dog barks .", text)]
        assert list(dev) == [("The dog barks .", TREE)]
        assert task.target_text(TREE) == text
    (other,) = ParsingTask(copy_words=True).train_sources(data)
    assert other.identity != ParsingTask().train_sources(data)[0].identity
    assert list(*ParsingTask().pair_sources(data, "train")) == [("The dog barks .", TREE)]


def test_copied_words_have_the_sentences_tokens(tmp_path):
    tree = "(S (NP (DT the) (NN cat)) (PRN (-LRB- -LRB-) (NN 木x) (-RRB- -RRB-)) (VP (VB sat)))"
    path = tmp_path / "train.mrg"
    path.write_text(f"{tree}\n" * 5, encoding="utf-8")
    task = ParsingTask(copy_words=True)
    data = DataConfig(
        train_file=str(path), target_level="bpe", vocabulary_size=40, byte_fallback=False,
        vocabulary_normalization="identity",
    )  # fmt: skip
    task.check_data(data)
    vocabulary, target = make_vocabularies(data, task)
    assert target is vocabulary
    (pairs,) = task.train_sources(data)
    sentence, learned = next(iter(pairs))
    source, output = vocabulary.encode([sentence, learned])
    _, tokens, begins_word = copied_words(tf.constant([source]), vocabulary)
    assert [id_ for id_ in output if not tokens[id_]] == source
    labels = [tokens[id_] for id_ in output if tokens[id_]]
    assert " ".join(labels) == "(S (NP DT NN )NP (PRN -LRB- NN -RRB- )PRN (VP VB )VP )S"
    assert sum(begins_word[id_] for id_ in source) == len(sentence.split())
    (text,) = vocabulary.decode([output])
    found = task.finish(tf.constant([[text]]), tf.constant([sentence])).numpy().item().decode()
    assert found == tree


def test_vocabulary_without_labels_is_rejected(tree_file):
    task = ParsingTask(copy_words=True)
    data = DataConfig(train_file=str(tree_file), target_level="bpe", vocabulary_size=40)
    check_symbols(data, task, make_vocabularies(data, task))
    others = 2 * (learn_vocabulary(["the cat sees a dog"], size=30, kind="bpe"),)
    with pytest.raises(InputError, match=r"symbols of this text, such as '[⟨⟩∕].*', are not"):
        check_symbols(data, task, others)


@pytest.mark.parametrize("root", ["TOP", "", "ROOT", "S1"])
def test_f1_counts_sentences_that_evalb_ignores_and_no_root(root):
    reference = TREE.replace("(TOP", f"({root}", 1)
    assert evaluate(ANSWER, reference)["f1"] == 100
    assert evaluate(ANSWER.replace("(VP (VBZ barks))", "(VBZ barks)"), reference)["f1"] == 80
    wrong = evaluate(ANSWER.replace("(. .)", "(NN .)"), reference)
    assert (wrong["f1"], wrong["evalb"]["errors"], wrong["evalb"]["f1"]) == (0, 1, 0)
    both = ParsingTask().evaluate([ANSWER, ""], [reference] * 2, ["The dog barks ."] * 2)
    assert both["evalb"]["f1"] == 100
    assert both["f1"] == pytest.approx(200 * 3 / (3 + 3 + 3))
    report = ParsingTask().report(both)
    assert report["F1, errors counted"] == "66.67"
    assert (report["EVALB errors"], report["EVALB skipped"]) == ("0", "1")


def test_white_space_between_words_is_read_as_spaces():
    task = ParsingTask()
    text = task.read_text(tf.constant(["the\tdog \n\x0b barks"]))
    assert text.numpy().tolist() == [b"the dog barks"]
    vocabulary = learn_vocabulary(["the dog barks"] * 3, size=16, normalization="identity")
    (ids,) = vocabulary.encode([text.numpy()[0].decode()])
    kinds = word_kinds(tf.constant([[*ids, 3]]), vocabulary).numpy()
    trees = task.finish(tf.constant([["(S DT NN VB )S"]]), text).numpy().item()
    assert np.count_nonzero(kinds) == trees.count(b" (") == 3


def test_parser_failure_is_an_empty_answer(tmp_path):
    path = tmp_path / "answers.mrg"
    path.write_text("(S (NN a)\n (NN b))\n(())\n(())\n(S (NN 5\u00a01/2))\n", encoding="utf-8")
    answers = ParsingTask().read_answers(path)
    assert answers == ["(S (NN a) (NN b))", "", "", "(S (NN 5\u00a01/2))"]
    path.write_text("(S (NN a))\n(())\n(())\n(S (NN a))\n(S (NN a)))\n")
    with pytest.raises(InputError, match="line 5: a bracket is closed that was not opened"):
        ParsingTask().read_answers(path)
    result = ParsingTask().evaluate(answers[:2], ["(S (NN a) (NN b))", "(S (NP (NN b)))"], ["", ""])
    assert (result["evalb"]["skipped"], result["f1"]) == (1, 50)


@pytest.mark.parametrize(
    ("values", "message", "options"),
    [
        ({"dataset": "trees", "reverse": True}, "parsing has no reverse", {}),
        ({"train_source": "a", "train_target": "b"}, "give train_file, dev_file and test_f", {}),
        ({"train_file": "a", "target_level": "bpe"}, "needs the target_level word and a sou", {}),
        *(({"train_file": "a", "target_level": "bpe"} | changes, "copy_words needs one vocabulary",
           {"copy_words": True}) for changes in (
            {"target_level": "word"}, {"share_vocabulary": False})),
    ],
)  # fmt: skip
def test_unusable_data_options_are_rejected(values, message, options):
    with pytest.raises(InputError, match=message):
        ParsingTask(**options).check_data(DataConfig(**ParsingTask.default_data | values))


def test_evaluate_answers_of_a_file(call, tmp_path, tree_file):
    answers = tmp_path / "answers.mrg"
    command = ["evaluate.py", "--task=parsing", f"--answers={answers}", f"--file={tree_file}"]
    for text, part in ((ANSWER * 2, "2 outputs for 1 sentences"), ("(S (NP", "is not closed")):
        answers.write_text(text)
        assert part in call(*command).err
    answers.write_text(ANSWER.replace("VP", "\nNP"))
    assert re.search(r"^EVALB precision +66\.67$", call(*command).out, re.MULTILINE)


@pytest.mark.slow
def test_parser_from_training_to_export(call, tmp_path):
    flags = ["--task=parsing", "--num_layers=1", "--model_dim=16", "--feed_forward_dim=16"]
    flags += ["--num_heads=2", "--batch_tokens=500", "--vocabulary_size=300", "--warmup_steps=10"]
    flags += ["--train_steps=20", "--checkpoint_steps=20", "--average_last=1"]
    lines = read_lines(pathlib.Path(__file__).parents[1] / "data" / "trees" / "gum_test.mrg.gz")
    pairs = [
        (sentence_of(tree), to_text(tree))
        for tree in (clean(tree) for _, tree in read_trees(lines, "GUM"))
        if re.fullmatch(r"(\w+ ){2,7}\.", sentence_of(tree))
    ]
    for split, part in (("train", pairs[10:300]), ("dev", pairs[:10]), ("test", pairs[:10])):
        path = tmp_path / f"{split}.mrg"
        path.write_text("\n".join(tree for _, tree in part))
        flags.append(f"--{split}_file={path}")
    run_dir = f"--run_dir={tmp_path / 'run'}"
    result = call("train.py", run_dir, *flags)
    assert (result.code, result.err) == (0, "")
    assert "F1 " in result.out
    search, output = ("--beam_size=3", "--max_extra_length=20"), tmp_path / "output"
    results = json.loads(call("evaluate.py", run_dir, *search, "--json", f"--output={output}").out)
    assert results["sentences"] == results["evalb"]["sentences"] == 10
    assert results["evalb"]["errors"] == 0 <= results["f1"] < 100
    sentences = [sentence for sentence, _ in pairs[:10]]
    (tmp_path / "text").write_text("\n".join(sentences[:3]))
    folders = (f"--export_dir={tmp_path}/parser", f"--warm_up_file={tmp_path}/text")
    exported = call("export.py", run_dir, *folders, *search)
    assert exported.code == 0, exported.err
    typed = [*sentences, "( Who , ?", sentences[0].replace(" ", "\t", 1)]
    text = "".join(f"{line}\n" for line in typed).encode()
    version = tmp_path / "parser" / "1"
    answers = call("translate.py", f"--saved_model={version}", stdin=text).out.splitlines()
    assert answers[:10] == output.read_text().splitlines() and answers[-1] == answers[0]
    assert [sentence_of(parse_tree(answer)) for answer in answers[:-1]] == typed[:-1]
