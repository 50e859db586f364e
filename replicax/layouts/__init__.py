"""How the variables of large models are laid out over a mesh: rules by type of layer, and what they decide."""

from replicax.layouts.automatic import AutomaticRules
from replicax.layouts.decisions import MIN_SIZE, Axes, Decision, Rules, over_data
from replicax.layouts.layouts import Layouts
from replicax.layouts.patterns import LayoutLike, PatternRules
from replicax.layouts.roles import Role, role_of

__all__ = [
    "MIN_SIZE",
    "AutomaticRules",
    "Axes",
    "Decision",
    "LayoutLike",
    "Layouts",
    "PatternRules",
    "Role",
    "Rules",
    "over_data",
    "role_of",
]
