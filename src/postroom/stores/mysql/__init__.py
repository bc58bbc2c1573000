"""MySQL and MariaDB. The tests run on MariaDB 10.11; the SQL is what MySQL 8 shares with it."""

from postroom.stores.mysql.store import MysqlStore

__all__ = ["MysqlStore"]
