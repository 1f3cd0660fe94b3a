"""Lets transformers load folders of MarianMT and compute, in a process without TensorFlow.

    python ask_transformers.py < questions.json

A question has "folder", "source", and for padded ids a "target" with the start token, for texts
"search", options of `generate`. Prints a list of answers.
"""

import functools
import json
import sys

import torch
import transformers


def forced(model, source, target, **_):
    """Returns the log-probabilities of all tokens, [B, T, V]."""
    source, target = torch.tensor(source), torch.tensor(target)
    is_real = source != model.config.pad_token_id
    logits = model(input_ids=source, attention_mask=is_real, decoder_input_ids=target).logits
    return {"log_probs": torch.log_softmax(logits, dim=-1).tolist()}


def translated(model, tokenizer, source, search):
    """Returns ids of the sources, translations, and scores if a beam is used."""
    batch = tokenizer(source, padding=True, return_tensors="pt")
    found = model.generate(**batch, **search, output_scores=True, return_dict_in_generate=True)
    scores = getattr(found, "sequences_scores", None)
    return {
        "source_ids": batch["input_ids"].tolist(),
        "texts": tokenizer.batch_decode(found.sequences, skip_special_tokens=True),
        "scores": None if scores is None else scores.tolist(),
    }


@functools.cache
def load(folder):
    return transformers.MarianMTModel.from_pretrained(folder, output_loading_info=True)


def answer(folder, source, target=None, search=None):
    model, report = load(folder)
    found = {"left_over": sorted(report["unexpected_keys"]) + sorted(report["missing_keys"])}
    if isinstance(source[0], list):
        return found | forced(model, source, target)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return found | translated(model, tokenizer, source, search)


if __name__ == "__main__":
    with torch.no_grad():
        print(json.dumps([answer(**question) for question in json.load(sys.stdin)]))
