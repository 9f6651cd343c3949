"""Which platforms are tested, and hypothesis' profiles."""

import os

import hypothesis
import jax
import pytest
import running

_SETTINGS = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("default", max_examples=60, **_SETTINGS)
hypothesis.settings.register_profile("ci", max_examples=60, derandomize=True, **_SETTINGS)
hypothesis.settings.register_profile("thorough", max_examples=3000, **_SETTINGS)
# CI is what CI services set; --hypothesis-profile goes before it.
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_report_header() -> list[str]:
    lines = []
    for platform in running.PLATFORMS:
        reason = running.why_not(platform)
        if reason:
            lines.append(f"intarsia on {platform}: skipped, {reason}")
        else:
            kinds = sorted({device.device_kind for device in jax.devices(platform)})
            lines.append(f"intarsia on {platform}: tested on {', '.join(kinds)}")
    return lines


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = running.why_not("gpu")
    for item in items:
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))
