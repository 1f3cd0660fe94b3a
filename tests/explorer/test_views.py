"""What a view has is what the model did."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config.model import UniversalConfig
from keras_transformer.errors import InputError
from keras_transformer.explorer.page import page_content
from keras_transformer.explorer.views import bertviz_attention, look_into_export
from keras_transformer.models.universal import UniversalTransformer
from keras_transformer.serving.export import load_exported


def test_the_translation_is_the_translators(view, translator):
    assert view.translation == translator.translate([view.sentence])[0][0].text
    assert view.source == ["▁hello", "▁two", "▁cat", "</s>"]
    assert view.read[0] == "<s>"
    assert view.read[1:] == view.written[:-1]
    assert "".join(view.written) == view.translation.replace(" ", "▁").join(["▁", "</s>"])


def test_every_row_is_a_distribution_over_the_tokens_of_its_columns(view):
    assert list(view.attentions) == ["encoder", "decoder", "cross"]
    for kind, weights in view.attentions.items():
        rows, columns = view.tokens(kind)
        assert weights.shape == (1, 2, len(rows), len(columns))
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)


def test_the_mean_of_the_last_layers_heads_is_the_signature_attention(view, translator):
    answer = translator.signature("attention")(
        source=tf.constant([view.sentence]), target=tf.constant([view.translation])
    )
    mean = view.attentions["cross"][-1].mean(axis=0)
    np.testing.assert_allclose(mean, answer["attention"][0], atol=1e-5)
    assert view.source == [piece.decode() for piece in answer["source_pieces"][0].numpy()]
    assert view.written == [piece.decode() for piece in answer["target_pieces"][0].numpy()]


@pytest.mark.slow
def test_an_export_shows_the_mean_of_the_last_layers_heads(exported, separate_translator):
    sentence = "sun tree"
    view = look_into_export("exports/1", load_exported(exported))(sentence)
    assert view.translation == separate_translator.translate([sentence])[0][0].text
    assert list(view.attentions) == ["cross"]
    answer = separate_translator.signature("attention")(
        source=tf.constant([sentence]), target=tf.constant([view.translation])
    )
    np.testing.assert_allclose(view.attentions["cross"][0, 0], answer["attention"][0], atol=1e-5)
    assert (view.source[-1], view.written[-1], view.tree) == ("</s>", "</s>", None)


def test_bertviz_gets_the_weights_of_each_layer_head_and_pair_of_tokens(view):
    entries = bertviz_attention(view)
    assert [entry["name"] for entry in entries] == ["Encoder", "Decoder", "Cross"]
    for entry, (kind, weights) in zip(entries, view.attentions.items(), strict=True):
        np.testing.assert_allclose(entry["attn"], weights, atol=1e-6)
        assert (entry["left_text"], entry["right_text"]) == view.tokens(kind)


def test_a_blank_sentence_and_a_model_without_attention_are_refused(look, make_look, trained):
    with pytest.raises(InputError, match="the sentence is empty"):
        look("  ")

    class WithoutAttention:
        attentions = staticmethod(lambda inputs: {})
        __getattr__ = staticmethod(lambda name: getattr(trained[0], name))

    with pytest.raises(InputError, match="runs/blind has no attention to show"):
        make_look("runs/blind", WithoutAttention())("hello")


def test_steps_that_differ_from_token_to_token_are_shown(trained, make_look):
    model, source, target = trained
    sizes = {"vocabulary_size": source.size, "target_vocabulary_size": target.size}
    sizes["share_embeddings"] = "target"
    universal = UniversalTransformer(
        UniversalConfig.preset("universal-tiny", **sizes, model_dim=16, num_heads=2, num_steps=3)
    )
    look = make_look(model=universal)
    sentence = "hello two cat tree sun house"
    look(sentence)  # which makes the weights
    for stack in (universal.encoder, universal.decoder):
        # By the first feature, a sine of the position: some halt at once, others at the limit.
        stack.halting_unit.kernel.assign([[20.0], *[[0.0]] * 15])
    view = look(sentence)
    assert {side: len(counts) for side, counts in view.steps.items()} == {
        "source": len(view.source), "target": len(view.read),
    }  # fmt: skip
    assert all(1 <= count <= 3 for counts in view.steps.values() for count in counts)
    assert page_content([view])["views"][0]["steps"] == view.steps
    assert make_look(model=model)("hello two cat").steps == {}
