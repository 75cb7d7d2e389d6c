"""Lower-case collectives: methods, exchange of objects, messages, wire format.

A new lower-case collective is a method in ``methods`` and a row of ``comm/contract.py``. Another
way to combine objects belongs in ``exchange``, another kind of message in ``wire``. Exceptions are
sent like results, so that no rank waits forever.
"""
