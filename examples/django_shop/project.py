"""Django's settings, as a project has them in settings.py."""

from __future__ import annotations

import django
from django.conf import settings

from postroom import Url


def set_up(database: str) -> None:
    """Configure Django for this database."""
    at = Url.parse(database)
    settings.configure(
        INSTALLED_APPS=["examples.django_shop"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "HOST": at.host,
                "PORT": at.port or 5432,
                "USER": at.user,
                "PASSWORD": at.password or "",
                "NAME": at.database,
                "CONN_MAX_AGE": 60,
            }
        },
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
    )
    django.setup()
