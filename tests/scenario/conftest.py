import pytest

from postroom.brokers.memory import MemoryBroker
from tests.scenario.place import Notes


@pytest.fixture
def broker():
    return MemoryBroker()


@pytest.fixture
def notes():
    return Notes()
