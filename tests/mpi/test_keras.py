"""hpccoll.keras on real ranks. Its backend is that of the environment, or JAX.

    KERAS_BACKEND=torch mpiexec -n 2 python -m mpi4py -m pytest --with-mpi tests/mpi/test_keras.py

Keras reads the choice once in a process; tests/doc/test_keras.py runs each that is installed.
"""

import os

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError, ExchangeError, ExchangeMismatch

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras")
hk = pytest.importorskip("hpccoll.keras")
# The warning is about Keras's own variables, by NumPy 2.
pytestmark = [pytest.mark.mpi,
              # Keras optimizers have no close(): the thread of an exchange ends at exit.
              pytest.mark.threads("hpccoll exchange", until="exit"),
              pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")]
several = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="one rank agrees with itself")


def data(rank):
    """Eight examples of small integers, different on every rank."""
    random = numpy.random.default_rng(rank)
    return (random.integers(-2, 3, (8, 3)).astype("f4"),
            random.integers(-2, 3, (8, 2)).astype("f4"))


def model_of(optimizer, seed=0, units=2, **options):
    """A linear model whose start values are those of the seed."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])
    model.compile(optimizer, "mse", **options)
    return model


def fit(model, x, y, batch=8, **options):
    return model.fit(x, y, batch_size=batch, epochs=options.pop("epochs", 3), verbose=0,
                     shuffle=False, **options)


def same_everywhere(world, model):
    weights = model.get_weights()
    return all((one == other).all() for others in world.allgather(weights)
               for one, other in zip(weights, others))


@pytest.mark.parametrize("optimizer", [
    lambda: keras.optimizers.SGD(0.1, momentum=0.5), lambda: keras.optimizers.Adam(0.1),
    lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=3),
    lambda: keras.optimizers.AdamW(0.1, clipnorm=0.5, use_ema=True)],
    ids=["momentum", "adam", "accumulation", "clipped"])
def test_steps_are_those_of_one_rank_with_all_examples(world, optimizer):
    wrapped = model_of(hk.DistributedOptimizer(optimizer(), comm=world))
    fit(wrapped, *data(world.rank))
    together = model_of(optimizer())
    everything = [numpy.concatenate(parts) for parts in zip(*map(data, range(world.size)))]
    fit(together, *everything, batch=8 * world.size)
    for found, right in zip(wrapped.get_weights(), together.get_weights()):
        numpy.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
    assert same_everywhere(world, wrapped)
    assert int(wrapped.optimizer.iterations) == int(together.optimizer.iterations)


def test_sum_and_eager_steps(world):
    model = model_of(hk.DistributedOptimizer(keras.optimizers.SGD(1.0), comm=world, op="sum"),
                     run_eagerly=True)
    before = model.get_weights()
    optimizer = model.optimizer
    optimizer.apply([keras.ops.ones((3, 2)) * (world.rank + 1), keras.ops.ones((2,))],
                    model.trainable_variables)
    total = world.size * (world.size + 1) / 2
    numpy.testing.assert_allclose(model.get_weights()[0], before[0] - total, rtol=1e-6)
    numpy.testing.assert_allclose(model.get_weights()[1], before[1] - world.size)
    optimizer.apply_gradients([(keras.ops.ones((3, 2)), model.trainable_variables[0]),
                               (keras.ops.zeros((2,)), model.trainable_variables[1])])
    numpy.testing.assert_allclose(model.get_weights()[0], before[0] - total - world.size,
                                  rtol=1e-6)


@several
def test_gradients_are_sent_in_the_compressed_type(world):
    """It rounds this number; those of the other tests are exact in it."""
    model = model_of(hk.DistributedOptimizer(keras.optimizers.SGD(1.0), comm=world,
                                             compress="bf16"), run_eagerly=True)
    before = model.get_weights()
    model.optimizer.apply([keras.ops.ones((3, 2)) * 257, keras.ops.ones((2,))],
                          model.trainable_variables)
    moved = before[0] - model.get_weights()[0]
    assert (abs(moved - 257) > 0.5).all() and (abs(moved - 257) < 2.5).all()


def test_wrapping_keeps_class_configuration_and_state(world, tmp_path):
    plain = keras.optimizers.Adam(0.25, beta_1=0.5)
    model = model_of(plain)
    fit(model, *data(0))
    wrapped = hk.DistributedOptimizer(plain, comm=world)
    assert isinstance(wrapped, keras.optimizers.Adam) and type(wrapped) is not type(plain)
    assert wrapped.get_config() == plain.get_config()
    assert [v.path for v in wrapped.variables] == [v.path for v in plain.variables]
    for ours, theirs in zip(wrapped.variables, plain.variables):
        numpy.testing.assert_array_equal(keras.ops.convert_to_numpy(ours),
                                         keras.ops.convert_to_numpy(theirs))
    model.compile(wrapped, "mse")
    fit(model, *data(world.rank))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is type(plain)
    assert int(loaded.optimizer.iterations) == 6
    loaded.compile(hk.DistributedOptimizer(loaded.optimizer, comm=world), "mse")
    fit(loaded, *data(world.rank))
    assert int(loaded.optimizer.iterations) == 9 and same_everywhere(world, loaded)


def test_steps_that_overflow_on_one_rank_are_left_out_on_all(world):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = model_of(hk.DistributedOptimizer(keras.optimizers.SGD(0.125), comm=world))
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        before = model.get_weights()
        x, y = data(world.rank)
        fit(model, x * (1e4 if world.rank == world.size - 1 else 1), y, epochs=1)
        assert all((a == b).all() for a, b in zip(before, model.get_weights()))
        fit(model, x, y, epochs=30)
        assert any((a != b).any() for a, b in zip(before, model.get_weights()))
        assert same_everywhere(world, model)
    finally:
        keras.config.set_dtype_policy("float32")
    outside = keras.optimizers.LossScaleOptimizer(
        hk.DistributedOptimizer(keras.optimizers.SGD(0.1), comm=world))
    with pytest.raises(ArgumentError, match="steps"):
        fit(model_of(outside), *data(0),
            callbacks=[hk.BroadcastGlobalVariablesCallback(comm=world)])


def test_start_values(world):
    root = world.size - 1
    model = model_of(hk.DistributedOptimizer(keras.optimizers.Adam(0.1), comm=world),
                     seed=world.rank)
    fit(model, *data(world.rank), callbacks=[hk.BroadcastGlobalVariablesCallback(root, comm=world)])
    assert same_everywhere(world, model)
    alone = model_of(keras.optimizers.Adam(0.0), seed=root)
    begun = alone.get_weights()
    fresh = model_of(keras.optimizers.Adam(0.0), seed=world.rank)
    fit(fresh, *data(world.rank), callbacks=[hk.BroadcastGlobalVariablesCallback(root, comm=world)])
    assert all((a == b).all() for a, b in zip(begun, fresh.get_weights()))
    with pytest.raises(ArgumentError, match="root_rank"):
        hk.BroadcastGlobalVariablesCallback(world.size, comm=world)


@several
def test_models_that_differ_are_an_error_on_all_ranks(world):
    last = world.rank == world.size - 1
    model = model_of(keras.optimizers.SGD(0.1), units=5 if last else 2)
    x, y = data(0)
    with pytest.raises(ExchangeMismatch, match=rf"\[3, 2\] on rank 0.*\[3, 5\] on rank "
                       rf"{world.size - 1}"):
        fit(model, x, numpy.zeros((8, 5 if last else 2)),
            callbacks=[hk.BroadcastGlobalVariablesCallback(comm=world)])


@several
def test_gradients_that_differ_are_an_error_on_all_ranks(world):
    last = world.rank == world.size - 1
    units = 5 if last else 2
    model = model_of(hk.DistributedOptimizer(keras.optimizers.SGD(0.1), comm=world), units=units,
                     run_eagerly=True)
    with pytest.raises(ExchangeError):
        model.optimizer.apply([keras.ops.ones((3, units)), keras.ops.ones((units,))],
                              model.trainable_variables)


def test_metrics_are_means(world):
    logs = {"loss": float(world.rank), "accuracy": 0.5}
    hk.MetricAverageCallback(comm=world).on_epoch_end(0, logs)
    assert logs == {"loss": (world.size - 1) / 2, "accuracy": 0.5}
    model = model_of(keras.optimizers.SGD(0.0))
    history = fit(model, *data(world.rank), callbacks=[hk.MetricAverageCallback(comm=world)])
    own = [model.evaluate(*data(rank), verbose=0) for rank in range(world.size)]
    numpy.testing.assert_allclose(history.history["loss"], numpy.mean(own), rtol=1e-5)
    if world.size > 1:
        with pytest.raises(ExchangeMismatch, match="metrics.*loss.*rank 0"):
            hk.MetricAverageCallback(comm=world).on_epoch_end(
                0, {"loss": 1.0} if world.rank == 0 else {"loss": 1.0, "extra": 2.0})


def test_warm_up_reaches_the_rate_of_all_ranks(world):
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            getattr(self.model, "jax_state_sync", lambda: None)()
            seen.append(float(self.model.optimizer.learning_rate))

    model = model_of(hk.DistributedOptimizer(keras.optimizers.SGD(1e-3), comm=world))
    x, y = data(world.rank)
    fit(model, x, y, batch=2, epochs=3, callbacks=[
        hk.LearningRateWarmupCallback(0.08, warmup_epochs=2, comm=world), Watch()])
    size = world.size
    right = [0.08 / size * (1 + min(1, step / 8) * (size - 1)) for step in range(12)]
    numpy.testing.assert_allclose(seen, right, rtol=1e-5)
    with pytest.raises(ArgumentError, match="warmup_epochs"):
        hk.LearningRateWarmupCallback(0.1, 0)


def test_refusals(world):
    plain = keras.optimizers.SGD(0.1)
    for wrong in ("adam", hk.DistributedOptimizer(plain, comm=world)):
        with pytest.raises(ArgumentTypeError, match="optimizer"):
            hk.DistributedOptimizer(wrong, comm=world)
    with pytest.raises(ArgumentError, match="op"):
        hk.DistributedOptimizer(plain, comm=world, op="median")
    assert hk.world() is hk.world() and hk.world().size == world.size
