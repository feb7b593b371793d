"""What all tests share."""

from hypothesis import settings

# The same examples on every run: a suite that fails once in fifty runs tells nobody anything.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")
