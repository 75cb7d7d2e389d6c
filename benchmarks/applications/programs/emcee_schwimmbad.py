"""emcee, a sampler of probability distributions, on the MPI pool of schwimmbad."""

from __future__ import annotations

import sys

from applications.program import Program

PROGRAM = Program(
    name="emcee, schwimmbad", version="3.1.6, 0.4.2",
    packages=("emcee==3.1.6", "schwimmbad==0.4.2"),
    words=("{here}/programs/emcee_schwimmbad.py",),
    right="the same samples, to the last bit",
    timed="100 steps of 16 walkers",
    modules=("emcee", "schwimmbad"), short=True)
WALKERS, DIMENSIONS, STEPS = 16, 5, 100


def log_probability(theta):
    """A Gaussian with correlations, computed with some work."""
    import numpy as np

    matrix = np.eye(40) + 0.01 * np.add.outer(np.arange(40), np.arange(40))
    np.linalg.solve(matrix, np.ones(40))
    return -0.5 * float(np.sum(theta ** 2 / np.arange(1, DIMENSIONS + 1)))


def main() -> None:
    """Sample on all ranks."""
    import emcee
    import numpy as np
    from schwimmbad import MPIPool

    from applications.results import report

    # Closed at exit. A ``with`` closes the pool as well: workers do not receive the second message,
    # and plain jobs on MPICH end with status 9.
    pool = MPIPool()
    if not pool.is_master():
        pool.wait()
        sys.exit(0)
    np.random.seed(1)
    start = np.random.randn(WALKERS, DIMENSIONS)
    sampler = emcee.EnsembleSampler(WALKERS, DIMENSIONS, log_probability, pool=pool)
    sampler.run_mcmc(start, STEPS)
    chain = sampler.get_chain(flat=True)
    report({"sampled": bool(np.isfinite(chain).all())},
           [*chain.mean(axis=0), *chain.std(axis=0), chain[-1, 0]])


if __name__ == "__main__":
    main()
