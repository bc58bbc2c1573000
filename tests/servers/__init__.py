"""The real servers that the tests run against, started and stopped by the tests themselves."""
