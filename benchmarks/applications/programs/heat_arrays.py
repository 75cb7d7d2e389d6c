"""Heat, distributed arrays on PyTorch."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="Heat", version="1.8.0", packages=("heat==1.8.0",),
    words=("{here}/programs/heat_arrays.py",),
    right="the numbers of plain, to 1e-4, and results near those of NumPy",
    timed="sums, products of matrices, QR, conjugate gradients, sorting, k-means",
    modules=("heat",), tolerance=1e-4)


def main() -> None:
    """Compute on split arrays, and compare with NumPy."""
    import heat as ht
    import numpy as np
    from mpi4py import MPI

    from applications.results import report

    ht.random.seed(1)
    a = np.random.default_rng(1).standard_normal((400, 60))
    passes, numbers = {}, []
    for split in (0, 1):
        x = ht.array(a, split=split, dtype=ht.float64)
        passes[f"sum {split}"] = np.allclose(x.sum(axis=0).numpy(), a.sum(axis=0))
        passes[f"mean {split}"] = np.allclose(ht.mean(x, axis=1).numpy(), a.mean(axis=1))
        product = ht.matmul(x.T, x)
        passes[f"matmul {split}"] = np.allclose(product.numpy(), a.T @ a)
        passes[f"sort {split}"] = np.allclose(ht.sort(x, axis=0)[0].numpy(), np.sort(a, axis=0))
        numbers += [float(x.sum()), float(ht.norm(x)), float(product[3, 4])]
    x = ht.array(a, split=0, dtype=ht.float64)
    q, r = ht.linalg.qr(x)
    passes["qr"] = np.allclose(ht.matmul(q, r).numpy(), a)
    matrix = ht.array(a.T @ a + 50 * np.eye(60), split=0, dtype=ht.float64)
    right = ht.ones(60, split=None, dtype=ht.float64)
    solved = ht.linalg.cg(matrix, right, ht.zeros(60, split=None, dtype=ht.float64))
    passes["cg"] = np.allclose(ht.matmul(matrix, solved).numpy(), 1, atol=1e-6)
    means = ht.cluster.KMeans(n_clusters=4, init="random", max_iter=30, random_state=1)
    means.fit(ht.array(a[:, :8], split=0, dtype=ht.float64))
    numbers.append(float(ht.sum(means.cluster_centers_)))
    report({name: bool(passed) for name, passed in passes.items()},
           numbers if not MPI.COMM_WORLD.Get_rank() else [])


if __name__ == "__main__":
    main()
