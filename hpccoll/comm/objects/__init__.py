"""The lower-case collectives: methods, exchange of object messages, wire format."""
