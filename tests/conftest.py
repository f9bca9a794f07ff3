"""What every test shares: how hard Hypothesis tries. Fixtures live beside the tests that use them."""

import pytest
from hypothesis import HealthCheck, settings

# No deadline: an fsync on a busy machine takes as long as it takes, and says nothing about the code.
settings.register_profile(
    "quick", max_examples=60, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("exhaustive", settings.get_profile("quick"), max_examples=2_000)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-profile", default=None) is None:
        asked = config.getoption("markexpr", default="")
        settings.load_profile("exhaustive" if asked == "exhaustive" else "quick")
