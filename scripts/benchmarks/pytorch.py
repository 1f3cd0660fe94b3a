"""Measures PyTorch's `nn.Transformer`, trained with the same sizes on the same batch.

It lacks what ours lacks: norms at the end of the stacks, biases in attention, dropout within
sub-layers. With equal weights its loss equals ours. The settings are the fastest on two cores of
those tried: batch first, fused Adam, gradients set to None, denormal numbers flushed.

Shapes: B batch, S source length, T target length, D model dimension, V vocabulary.
"""

import json
import math
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.engines import Channel, check_gpu
from benchmarks.training import Job, batch
from keras_transformer.config import PAD_ID, TrainingConfig, TransformerConfig
from keras_transformer.host import keep_freed_memory

if TYPE_CHECKING:
    from keras_transformer.data.batches import Batch


class TorchTransformer(nn.Module):
    """Encoder and decoder with one embedding matrix for source, target and projection (3.4)."""

    positions: Tensor
    causal_mask: Tensor

    def __init__(self, config: TransformerConfig, max_length: int = 512) -> None:
        super().__init__()
        self.dim = config.model_dim
        self.embedding = nn.Embedding(config.vocabulary_size, self.dim)
        nn.init.normal_(self.embedding.weight, std=self.dim**-0.5)
        self.register_buffer("positions", sinusoids(max_length, self.dim))
        hidden = torch.ones(max_length, max_length, dtype=torch.bool).triu(1)  # True hides
        self.register_buffer("causal_mask", hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            self.dim,
            config.num_heads,
            config.num_layers,
            config.num_layers,
            config.feed_forward_dim,
            config.dropout,
            layer_norm_eps=config.norm_epsilon,
            batch_first=True,
        )
        _take_off_extras(self.transformer, config)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Returns logits [B, T, V] for ids [B, S] and [B, T]."""
        padding = source == PAD_ID  # [B, S]
        length = target.shape[1]
        # Padding follows the real tokens, so the causal mask alone hides it from them.
        output = self.transformer(
            self._embed(source),
            self._embed(target),
            tgt_mask=self.causal_mask[:length, :length],
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )  # [B, T, D]
        return functional.linear(output, self.embedding.weight)

    def _embed(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.embedding(ids) * math.sqrt(self.dim)
        return self.dropout(vectors + self.positions[: ids.shape[1]])


def sinusoids(length: int, dim: int) -> Tensor:
    """Returns [length, D], sines in even columns and cosines in odd ones (3.5)."""
    angles = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, dim, 2) / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def make_step(
    model: TorchTransformer, training: TrainingConfig, is_compiled: bool = False
) -> "Callable[[Batch], Tensor]":
    """Returns a function that makes one update with a batch and returns the loss before it."""
    model.train()
    device = model.embedding.weight.device
    peak = (model.dim * training.warmup_steps) ** -0.5
    adam = torch.optim.Adam(model.parameters(), peak, betas=(0.9, 0.98), eps=1e-9, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(  # 5.3, relative to the peak
        adam,
        lambda step: min(
            ((step + 1) / training.warmup_steps) ** -0.5, (step + 1) / training.warmup_steps
        ),
    )
    in_bfloat16 = training.precision == "mixed_bfloat16"

    def loss_of(source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=in_bfloat16):
            return functional.cross_entropy(
                model(source, target).flatten(0, 1),
                labels.flatten(),
                ignore_index=PAD_ID,
                label_smoothing=training.label_smoothing,
            )

    if is_compiled:
        loss_of = torch.compile(loss_of)

    def step(batch: "Batch") -> Tensor:
        inputs, labels = batch
        arrays = (inputs["source"], inputs["target"], labels)
        loss = loss_of(*(torch.from_numpy(ids).to(device).long() for ids in arrays))
        loss.backward()
        adam.step()
        schedule.step()
        adam.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def main(job: Job) -> None:
    if job["engine"] != "pytorch":
        keep_freed_memory()
    warnings.filterwarnings("ignore", category=UserWarning)
    check_gpu(job, torch.cuda.is_available(), "PyTorch")
    device = torch.device("cuda" if job["device"] == "gpu" else "cpu")
    torch.set_num_threads(job["threads"])
    torch.set_flush_denormal(True)
    training = TrainingConfig.preset(job["preset"], precision=job["precision"])
    torch.manual_seed(training.seed)
    config = TransformerConfig.preset(job["preset"], vocabulary_size=job["vocabulary_size"])
    model = TorchTransformer(config).to(device)
    step = make_step(model, training, job["engine"] == "pytorch_compiled")
    channel = Channel(f"torch {torch.__version__}")
    while steps := channel.request():
        for _ in range(steps):
            step(batch(job))
        if device.type == "cuda":  # it works on while Python goes on
            torch.cuda.synchronize()
        tokens = steps * job["rows"] * job["length"]
        channel.answer(units=tokens, seconds=channel.stop())


def _take_off_extras(transformer: nn.Transformer, config: TransformerConfig) -> None:
    transformer.encoder.norm = transformer.decoder.norm = None
    for layer in [*transformer.encoder.layers, *transformer.decoder.layers]:
        layer.dropout = nn.Identity()  # within the feed-forward layer
        for name in ("self_attn", "multihead_attn"):
            if hasattr(layer, name):
                attention = nn.MultiheadAttention(
                    config.model_dim, config.num_heads, bias=False, batch_first=True
                )
                setattr(layer, name, attention)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
