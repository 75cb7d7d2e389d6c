"""The lower-case collectives: methods, exchange of object messages, wire format.

A new lower-case collective is a method in ``methods``, another way to combine objects belongs in
``exchange``, another kind of message in ``wire``. What a rank raises travels like a result, so that
no rank is left waiting.
"""
