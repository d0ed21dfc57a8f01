"""The content type and the permissions of live flights."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Makes no table."""

    initial = True

    dependencies: list[tuple[str, str]] = []  # noqa: RUF012 - Django's own form

    operations = [  # noqa: RUF012 - Django's own form
        migrations.CreateModel(
            name="Flight",
            fields=[
                ("digest", models.CharField(editable=False, max_length=64, primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "live flight",
                "verbose_name_plural": "live flights",
                "permissions": (
                    ("cancel_flight", "Can cancel live flight"),
                    ("forget_flight", "Can forget live flight"),
                ),
                "managed": False,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
                "default_manager_name": "objects",
            },
        ),
    ]
