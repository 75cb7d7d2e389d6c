"""UltraNest, a nested sampler for Bayesian evidence."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="UltraNest", version="4.6.3", packages=("ultranest==4.6.3",),
    words=("{here}/programs/ultranest_sampler.py",),
    right="the same evidence, to the last bit", timed="evidence of a Gaussian in three dimensions",
    modules=("ultranest",))


def main() -> None:
    """Sample on all ranks."""
    import numpy as np
    from mpi4py import MPI
    from ultranest import ReactiveNestedSampler

    from applications.results import report

    def log_likelihood(theta):
        return -0.5 * (((theta - 0.5) / 0.1) ** 2).sum()

    np.random.seed(1 + MPI.COMM_WORLD.Get_rank())
    sampler = ReactiveNestedSampler(["a", "b", "c"], log_likelihood, lambda cube: cube)
    found = sampler.run(min_num_live_points=200, max_num_improvement_loops=0, show_status=False,
                        viz_callback=False)
    # The integral of the Gaussian is known.
    expected = 1.5 * np.log(2 * np.pi * 0.01)
    report({"evidence": abs(found["logz"] - expected) < 5 * found["logzerr"]},
           [found["logz"], found["ncall"]] if not MPI.COMM_WORLD.Get_rank() else [])


if __name__ == "__main__":
    main()
