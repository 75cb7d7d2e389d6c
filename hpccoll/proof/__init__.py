"""Proof that a schedule implements its collective, for all block sizes.

``verifier`` makes the programs of all ranks and runs all proofs: ``slots`` proves them as written,
for all sizes, ``elements`` proves the lowered programs for the samples of ``cases``. Both
run on ``symbols`` that carry their whole history, and match messages in ``matching``;
``memory_rules`` check conflicting accesses of messages, segments and local steps, and ``result``
compares results with the specification. Nothing here trusts a builder or a closed form, and nothing
imports a transport. A new property to prove is a field of
:class:`~hpccoll.proof.result.Proof`, and a mutant in ``tests/support`` that breaks it.
"""
