"""Layers of well-known transformers, in the order of their forward pass.

Shapes and order are those of ``named_parameters()`` in Hugging Face's ``transformers``. The output
layer shares its weight with the embedding of words, whose gradient is ready last.
"""

from __future__ import annotations

from collections.abc import Iterator

from step_simulator.architectures import Layer, linear, normalisation


def bert_large(tokens: int = 512) -> Iterator[Layer]:
    """BERT-large with both heads of its training: Devlin et al., NAACL 2019.

    336,226,108 parameters, published as 340 million; samples of ``tokens`` words.
    """
    words, hidden, inner = 30522, 1024, 4096
    yield Layer("bert.embeddings", (
        ("word_embeddings.weight", (words, hidden)), ("position_embeddings.weight", (512, hidden)),
        ("token_type_embeddings.weight", (2, hidden))), 0.0)
    yield normalisation("bert.embeddings.LayerNorm", hidden)
    for number in range(24):
        name = f"bert.encoder.layer.{number}"
        for part in ("query", "key", "value"):
            yield linear(f"{name}.attention.self.{part}", hidden, hidden, tokens)
        yield attention(f"{name}.attention.self", hidden, tokens)
        yield linear(f"{name}.attention.output.dense", hidden, hidden, tokens)
        yield normalisation(f"{name}.attention.output.LayerNorm", hidden)
        yield linear(f"{name}.intermediate.dense", hidden, inner, tokens)
        yield linear(f"{name}.output.dense", inner, hidden, tokens)
        yield normalisation(f"{name}.output.LayerNorm", hidden)
    yield linear("bert.pooler.dense", hidden, hidden)
    yield Layer("cls.predictions", (("bias", (words,)),), 0.0)
    yield linear("cls.predictions.transform.dense", hidden, hidden, tokens)
    yield normalisation("cls.predictions.transform.LayerNorm", hidden)
    yield Layer("cls.predictions.decoder", (), 2.0 * words * hidden * tokens)
    yield linear("cls.seq_relationship", hidden, 2)


def gpt2_xl(tokens: int = 1024) -> Iterator[Layer]:
    """GPT-2 XL: Radford et al., Language models are unsupervised multitask learners, 2019.

    1,557,611,200 parameters; samples of ``tokens`` words.
    """
    words, hidden = 50257, 1600
    yield Layer("transformer", (("wte.weight", (words, hidden)), ("wpe.weight", (1024, hidden))),
                0.0)
    for number in range(48):
        name = f"transformer.h.{number}"
        yield normalisation(f"{name}.ln_1", hidden)
        yield _transposed(f"{name}.attn.c_attn", hidden, 3 * hidden, tokens)
        yield attention(f"{name}.attn", hidden, tokens)
        yield _transposed(f"{name}.attn.c_proj", hidden, hidden, tokens)
        yield normalisation(f"{name}.ln_2", hidden)
        yield _transposed(f"{name}.mlp.c_fc", hidden, 4 * hidden, tokens)
        yield _transposed(f"{name}.mlp.c_proj", 4 * hidden, hidden, tokens)
    yield normalisation("transformer.ln_f", hidden)
    yield Layer("lm_head", (), 2.0 * words * hidden * tokens)


def attention(name: str, hidden: int, tokens: int) -> Layer:
    """Scores and their sums: what attention does without parameters."""
    return Layer(name, (), 4.0 * hidden * tokens * tokens)


def _transposed(name: str, inputs: int, outputs: int, rows: int) -> Layer:
    """A dense layer as GPT-2 stores it, inputs first."""
    (_, (rows_out, columns)), bias = (layer := linear(name, inputs, outputs, rows)).arrays
    return layer._replace(arrays=(("weight", (columns, rows_out)), bias))
