"""Transformers, which MXNet's model zoo lacks, as symbols, for benchmarks.profiles: ``bert_base`` and ``transformer_base``.

``bert_base`` is BERT's smaller model as it is pretrained (Devlin et al., 2018), with both heads. ``transformer_base`` is the base model of
"Attention Is All You Need" (Vaswani et al., 2017). Both share one table of words with the layer that predicts words. Data are numbers of
words, of shape (batch, length). Dropout and masks are left out, as they have no parameters and take next to no time.
"""

from typing import Any, Callable, Dict

import mxnet as mx

LENGTH = 128  # words of a sentence


def bert_base() -> Any:
    """12 layers of 768 units, 30,522 words, at most 512 places, two kinds of sentences."""
    units, words, places = 768, 30522, 512
    data = mx.sym.var("data")
    table = mx.sym.var("word_weight", shape=(words, units))
    x = mx.sym.Embedding(data, table, input_dim=words, output_dim=units, name="word")
    place = mx.sym.slice_axis(mx.sym.var("place_weight", shape=(places, units)), axis=0, begin=0, end=LENGTH)
    x = mx.sym.broadcast_add(x, mx.sym.expand_dims(place, axis=0))
    kinds = mx.sym.zeros_like(data)
    x = x + mx.sym.Embedding(kinds, mx.sym.var("kind_weight", shape=(2, units)), input_dim=2, output_dim=units, name="kind")
    x = _norm(x, "embedding_norm")
    for number in range(12):
        x = _layer(x, f"layer{number}", units, heads=12, wide=4 * units, activation=_gelu)
    first = mx.sym.slice_axis(x, axis=1, begin=0, end=1)
    pooled = mx.sym.Activation(_dense(first, "pool", units), act_type="tanh")
    word = _norm(_gelu(_dense(x, "word_transform", units)), "word_norm")
    scores = mx.sym.FullyConnected(
        word, table, mx.sym.var("word_bias", shape=(words,)), num_hidden=words, flatten=False, name="word_scores"
    )
    return mx.sym.Group([scores, _dense(pooled, "next_sentence", 2)])


def transformer_base() -> Any:
    """Six layers of 512 units that read a sentence, six that write one, and 37,000 words of both languages. Places have no parameters."""
    units, words = 512, 37000
    table = mx.sym.var("word_weight", shape=(words, units))
    read, written = (
        mx.sym.Embedding(mx.sym.var("data"), table, input_dim=words, output_dim=units, name=name) for name in ("read", "write")
    )
    for number in range(6):
        read = _layer(read, f"encoder{number}", units, heads=8, wide=2048, activation=_relu)
    for number in range(6):
        written = _layer(written, f"decoder{number}", units, heads=8, wide=2048, activation=_relu, read=read)
    return mx.sym.FullyConnected(written, table, num_hidden=words, no_bias=True, flatten=False, name="word_scores")


TRANSFORMERS: Dict[str, Callable[[], Any]] = {"bert_base": bert_base, "transformer_base": transformer_base}


def _layer(x: Any, name: str, units: int, heads: int, wide: int, activation: Callable[[Any], Any], read: Any = None) -> Any:
    """Attention to ``x`` itself, and to ``read`` if that is given, then a feed-forward network; each with its sum and norm."""
    x = _norm(x + _attention(x, x, f"{name}_self", units, heads), f"{name}_self_norm")
    if read is not None:
        x = _norm(x + _attention(x, read, f"{name}_read", units, heads), f"{name}_read_norm")
    return _norm(x + _dense(activation(_dense(x, f"{name}_wide", wide)), f"{name}_narrow", units), f"{name}_norm")


def _attention(x: Any, memory: Any, name: str, units: int, heads: int) -> Any:
    query, key, value = (
        _split(_dense(source, f"{name}_{part}", units), heads) for source, part in ((x, "query"), (memory, "key"), (memory, "value"))
    )
    weights = mx.sym.softmax(mx.sym.batch_dot(query, key, transpose_b=True) / (units // heads) ** 0.5)
    seen = mx.sym.reshape(mx.sym.batch_dot(weights, value), shape=(-1, heads, 0, 0), reverse=True)
    return _dense(mx.sym.reshape(mx.sym.transpose(seen, axes=(0, 2, 1, 3)), shape=(0, 0, -1)), f"{name}_out", units)


def _split(x: Any, heads: int) -> Any:  # (batch, length, units) to (batch * heads, length, units / heads)
    x = mx.sym.transpose(mx.sym.reshape(x, shape=(0, 0, heads, -1)), axes=(0, 2, 1, 3))
    return mx.sym.reshape(x, shape=(-1, 0, 0), reverse=True)


def _dense(x: Any, name: str, units: int) -> Any:
    return mx.sym.FullyConnected(x, num_hidden=units, flatten=False, name=name)


def _norm(x: Any, name: str) -> Any:
    return mx.sym.LayerNorm(x, name=name)


def _gelu(x: Any) -> Any:
    return mx.sym.LeakyReLU(x, act_type="gelu")


def _relu(x: Any) -> Any:
    return mx.sym.Activation(x, act_type="relu")
