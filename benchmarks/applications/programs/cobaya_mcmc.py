"""Cobaya, Bayesian analysis in cosmology: its Monte Carlo sampler."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="Cobaya", version="3.6.2", packages=("cobaya==3.6.2",),
    words=("{here}/programs/cobaya_mcmc.py",),
    right="the chains have the right mean; their number of samples depends on the time",
    timed="one chain for each rank, until they converge",
    modules=("cobaya",))


def main() -> None:
    """Run a chain on each rank."""
    from cobaya.run import run
    from mpi4py import MPI

    from applications.results import report

    rank = MPI.COMM_WORLD.Get_rank()
    _, sampler = run({
        "likelihood": {"gaussian_mixture": {
            "means": [[0.2, 0.0]], "covs": [[[0.1, 0.05], [0.05, 0.2]]],
            "derived": False, "input_params_prefix": "a_"}},
        "params": {"a_0": {"prior": {"min": -2, "max": 2}, "ref": 0.1, "proposal": 0.3},
                   "a_1": {"prior": {"min": -2, "max": 2}, "ref": 0.1, "proposal": 0.4}},
        # Not max_samples: chains that reach it leave others waiting in the test of convergence.
        "sampler": {"mcmc": {"seed": 1, "Rminus1_stop": 0.01, "Rminus1_cl_stop": 0.1}}})
    chain = sampler.products(skip_samples=0.2)["sample"]
    mean = chain.mean()
    report({f"mean of chain {rank}": abs(mean[0] - 0.2) < 0.15 and abs(mean[1]) < 0.15})


if __name__ == "__main__":
    main()
