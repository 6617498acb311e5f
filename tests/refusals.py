"""How a number that an option does not allow is refused."""

import math
import re


def refused(option, value, bound):
    """Return the pattern of the whole line."""
    allowed = bound if math.isfinite(value) else "a finite number"
    return f"^{re.escape(f'{option} = {value}: must be {allowed}')}$"
