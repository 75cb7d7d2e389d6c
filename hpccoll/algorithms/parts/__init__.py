"""Parts of several families: tree shapes and walks over them, folding, the routes of Swing.

Pure functions of ranks and sizes, which no entry of the table names. What only one family needs
stays in its file.
"""
