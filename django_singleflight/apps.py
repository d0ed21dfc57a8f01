"""The app: the setting reaches the engine, the checks reach Django."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks

from django_singleflight import conf
from django_singleflight.checks import check_deployment, check_settings
from singleflight_sync import configure


class SingleFlightConfig(AppConfig):
    """Connects to nothing."""

    name = "django_singleflight"
    verbose_name = "Single-flight"

    def ready(self) -> None:
        """Have the module-level functions of ``singleflight_sync`` use the setting."""
        configure(conf.default_arguments)
        checks.register(check_settings, "singleflight")
        checks.register(check_deployment, "singleflight", deploy=True)
