"""For all tests: no property fails because a machine was slow."""

from hypothesis import HealthCheck, settings

# Hypothesis gives an example 0.2 s and its data a second; what hangs is ended by pytest's timeout.
settings.register_profile(
    "tests",
    parent=settings(),  # of CI, which hypothesis knows by itself, or of everybody
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")
