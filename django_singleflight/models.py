"""What the admin page shows. There is no table: live flights are in Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_singleflight import shown
from singleflight_sync import terminal

if TYPE_CHECKING:
    from singleflight_sync import FlightInfo


class NoRows(models.Manager):
    """Finds nothing and asks no database, so that ``dumpdata`` and the like pass over a model without a table."""

    def get_queryset(self) -> models.QuerySet[Flight]:
        """Return an empty set."""
        return super().get_queryset().none()


class Flight(models.Model):
    """A live flight. It carries the permissions, and the admin's log points to it.

    Attributes:
        digest: Of its group and key, so that keys of any length and content have an address.
        info: What Redis told of it; only `of` sets it.
    """

    digest = models.CharField(max_length=64, primary_key=True, editable=False)

    objects = NoRows()

    info: FlightInfo

    class Meta:  # noqa: D106 - Django's own
        managed = False
        base_manager_name = "objects"
        default_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("cancel_flight", "Can cancel live flight"), ("forget_flight", "Can forget live flight"))
        verbose_name = _("live flight")
        verbose_name_plural = _("live flights")

    def __str__(self) -> str:
        return self.key if hasattr(self, "info") else self.digest

    @classmethod
    def of(cls, info: FlightInfo) -> Flight:
        """The flight that Redis told of."""
        flight = cls(digest=shown.digest(info.group, info.key))
        flight.info = info
        return flight

    @property
    def key(self) -> str:
        """Its key, as far as people may see it."""
        return shown.key(self.info.key)

    @property
    def key_digest(self) -> str:
        """What names the key on the command line where it may not be seen whole."""
        return shown.digest(self.info.key)

    @property
    def token(self) -> str:
        """Its fencing token."""
        return str(self.info.fencing_token or "")

    @property
    def owner(self) -> str:
        """Host and pid of its owner."""
        return shown.owner(self.info.owner_id)

    @property
    def owner_id(self) -> str:
        """All that is known of its owner's process."""
        return terminal.printable(self.info.owner_id)

    @property
    def age(self) -> str:
        """Time since the claim."""
        return shown.seconds(self.info.age)

    @property
    def heartbeat_age(self) -> str:
        """Time since the last renewal."""
        return shown.seconds(self.info.heartbeat_age)

    @property
    def lease(self) -> str:
        """Length of the lease."""
        return shown.seconds(self.info.lease)

    @property
    def lease_left(self) -> str:
        """Time until the lease is over, if nobody renews it."""
        return shown.seconds(self.info.lease_left)

    @property
    def meter(self) -> dict[str, str]:
        """The attributes of the lease's bar, which no language changes; above ``high`` all is well."""
        lease = self.info.lease
        return {
            name: f"{value:.3f}"
            for name, value in (
                ("max", lease),
                ("high", lease / 2),
                ("low", lease / 4),
                ("value", self.info.lease_left),
            )
        }

    @property
    def states(self) -> list[str]:
        """What there is to say of it."""
        return shown.states(self.info)

    @property
    def is_waiting(self) -> bool:
        """Whether it still waits for its fencing token (on a Cluster, for a moment): there is nothing to end yet."""
        return self.info.fencing_token is None
