"""Train a small network on handwritten digits with Keras, each rank on its own examples.

    mpiexec -n 2 env KERAS_BACKEND=jax python examples/train_keras.py

Without KERAS_BACKEND it takes the first backend that is installed: jax, torch or tensorflow. The
digits are scikit-learn's: 1,797 pictures of 8 x 8 pixels. Needs pip install -e '.[keras]'
scikit-learn, and a backend.
"""
import importlib.util
import os
import sys

os.environ.setdefault("KERAS_BACKEND", next(
    (name for name in ("jax", "torch", "tensorflow") if importlib.util.find_spec(name)), "jax"))

import keras
import numpy
from sklearn.datasets import load_digits

import hpccoll.keras

comm = hpccoll.keras.world()
x, y = load_digits(return_X_y=True)
mixed = numpy.random.default_rng(0).permutation(len(x))
x, y = (x[mixed] / 16).astype("float32"), y[mixed]
test, train = slice(0, 360), slice(360 + comm.rank, None, comm.size)  # every size-th example
batch = 128 // comm.size
count = len(x[360:]) // comm.size // batch * batch  # the same number on all ranks

keras.utils.set_random_seed(comm.rank)
model = keras.Sequential([
    keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
model.compile(
    optimizer=hpccoll.keras.DistributedOptimizer(keras.optimizers.Adam(5e-3)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(x[train][:count], y[train][:count], batch_size=batch, epochs=20, verbose=0, callbacks=[
    hpccoll.keras.BroadcastGlobalVariablesCallback(0),
    hpccoll.keras.MetricAverageCallback(),
    hpccoll.keras.LearningRateWarmupCallback(5e-3, warmup_epochs=2)])

accuracy = model.evaluate(x[test], y[test], verbose=0)[1]
weights = model.get_weights()
others = comm.bcast(weights, 0)
if comm.rank == 0:
    print(f"{comm.size} rank{'s' * (comm.size > 1)}: {accuracy:.1%} of the test pictures are right "
          f"({keras.config.backend()})")
if not (accuracy >= 0.95 and all((a == b).all() for a, b in zip(weights, others))):
    sys.exit(f"rank {comm.rank}: wrong answer")
