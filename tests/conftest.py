"""What all tests share."""

import signal

from hypothesis import HealthCheck, settings

from tests.pymongo_sockets import close_cancelled

pytest_plugins = ["postroom.testing.plugin"]

# A shell starts background jobs with SIGINT ignored, and every process below inherits that: tests
# that interrupt a command would wait for ever. With a handler here, children begin with the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long it takes to make examples says something about the machine, and nothing about the product.
settings.register_profile("postroom", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("postroom")

close_cancelled()
