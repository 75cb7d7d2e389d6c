"""The lower-case collectives: methods, exchange of object messages, wire format.

A new lower-case collective is a method in ``methods``, a way to combine objects in ``exchange``,
a new kind of message in ``wire``. What a rank raises travels like a result: no rank is left waiting.
"""
