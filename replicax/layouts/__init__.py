"""How the variables of large models are laid out over a mesh: rules by type of layer, and what they decide."""
