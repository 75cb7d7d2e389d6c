"""The lower-case collectives: methods, exchange of objects, their messages, wire format.

A new lower-case collective is a method in ``methods`` and a row of ``comm/contract.py``. Another
way to combine objects belongs in ``exchange``, another kind of message in ``wire``. An exception
travels like a result, so that no rank is left waiting.
"""
