"""Proof that a lowered schedule does what its collective promises, for given block sizes.

``verifier`` runs all ranks' programs on ``symbols`` that carry their whole history; ``cases`` are
the block sizes that it samples; ``memory_rules`` are what messages and segments must leave alone.
Nothing here trusts a builder or a closed form, and nothing imports a transport. A new property to
prove is a field of :class:`~hpccoll.proof.verifier.Proof`, and a mutant in :mod:`hpccoll.testing`
that breaks it.
"""
