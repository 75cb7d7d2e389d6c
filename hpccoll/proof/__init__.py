"""Proof that a schedule does what its collective promises, for all block sizes.

``verifier`` puts together what is proved: ``building`` makes the programs of all ranks, ``slots``
proves them as they are written, for all sizes, ``elements`` proves what lowering makes of them for
the samples of ``cases``. Both run on ``symbols`` that carry their whole history, and meet in
``rendezvous``; ``memory_rules`` are what messages, segments and local steps must leave alone, and
``verdict`` compares results with what was wanted. Nothing here trusts a builder or a closed form,
and nothing imports a transport. A new property to prove is a field of
:class:`~hpccoll.proof.verdict.Proof`, and a mutant in ``tests/support`` that breaks it.
"""
