"""The order of nodes that ranks are laid out on, and the choice among free ones."""
