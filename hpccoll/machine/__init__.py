"""Where ranks are: levels, nodes and fabrics, discovered once per communicator; values come out."""
