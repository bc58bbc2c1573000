"""What all tests share."""

import signal

pytest_plugins = ["postroom.testing.plugin"]

# A shell starts background jobs with SIGINT ignored, and every process below inherits that: tests
# that interrupt a command would wait for ever. With a handler here, children begin with the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
