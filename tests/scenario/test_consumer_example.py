"""The example of the service pair runs, with its faults."""

import pytest

from tests.servers.examples import run_example


@pytest.mark.slow
@pytest.mark.req("S5.1", "S5.2", "S5.3", "S5.4", "S5.6", "S5.7")
@pytest.mark.promise("G6")
def test_every_order_is_paid_once():
    done = run_example("payments", capture_output=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "died between commit and ack (-9)" in done.stdout
    assert "orders: 60, payments: 60" in done.stdout
    assert "paid twice: 0" in done.stdout
    assert "every order was paid once" in done.stdout
    story = done.stdout.splitlines()
    kinds = [line.split()[0] for line in story if line.strip().startswith(("order.cr", "payment."))]
    assert kinds == ["order.created", "payment.made"]
