"""A small network that reads handwritten digits, trained by ranks that are threads."""

import numpy

SHAPES = [(64, 64), (64,), (64, 10), (10,)]
COUNT = sum(int(numpy.prod(shape)) for shape in SHAPES)


def load():
    """Images and labels, shuffled: 1,400 to learn from, 397 to be tested with."""
    from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    order = numpy.random.default_rng(0).permutation(len(images))
    images, labels = (images[order] / 16).astype("f4"), labels[order]
    return (images[:1400], labels[:1400]), (images[1400:], labels[1400:])


def cut(vector):
    """The four arrays in a vector, as views."""
    parts, start = [], 0
    for shape in SHAPES:
        count = int(numpy.prod(shape))
        parts.append(vector[start:start + count].reshape(shape))
        start += count
    return parts


def begin():
    """Parameters, the same on all ranks."""
    random, vector = numpy.random.default_rng(1), numpy.zeros(COUNT, "f4")
    for part in cut(vector):
        part[...] = random.normal(0, 0.15, part.shape) if part.ndim > 1 else 0
    return vector


def scores(vector, images):
    """What the hidden layer and the last one say."""
    into, bias, out, last = cut(vector)
    hidden = numpy.maximum(images @ into + bias, 0)
    return hidden, hidden @ out + last


def gradient(vector, images, labels):
    """Of the mean cross entropy."""
    hidden, logits = scores(vector, images)
    error = numpy.exp(logits - logits.max(axis=1, keepdims=True))
    error /= error.sum(axis=1, keepdims=True)
    error[numpy.arange(len(labels)), labels] -= 1
    error /= len(labels)
    result = numpy.empty_like(vector)
    into, bias, out, last = cut(result)
    back = error @ cut(vector)[2].T * (hidden > 0)
    for part, value in zip((into, bias, out, last), (images.T @ back, back.sum(axis=0),
                                                     hidden.T @ error, error.sum(axis=0))):
        part[...] = value
    return result


def train(comm, step, steps=300, batch=64):
    """Train by ``step(number, parameters, gradients)``; return the share of digits read rightly."""
    (images, labels), (unseen, wanted) = load()
    vector, random = begin(), numpy.random.default_rng(10 + comm.rank)
    for number in range(steps):
        some = random.integers(0, len(images), batch // comm.size)
        step(number, vector, gradient(vector, images[some], labels[some]))
    return float((scores(vector, unseen)[1].argmax(axis=1) == wanted).mean())
