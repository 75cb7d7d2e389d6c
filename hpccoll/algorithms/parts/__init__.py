"""Pure functions that several families use: tree shapes and walks, folding, the routes of Swing."""
