"""The models of the shop and of the payment service, in one database for the example."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order."""

    name = models.CharField(max_length=40)
    total = models.IntegerField()

    class Meta:
        app_label = "django_shop"

    def __str__(self) -> str:
        return self.name


class Payment(models.Model):
    """A payment. Only the inbox prevents an order from being paid twice."""

    order = models.IntegerField()
    total = models.IntegerField()

    class Meta:
        app_label = "django_shop"

    def __str__(self) -> str:
        return f"for order {self.order}"
