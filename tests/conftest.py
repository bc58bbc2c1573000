"""What all tests share."""

pytest_plugins = ["postroom.testing.plugin"]
