"""The demo site as gunicorn loads it; it serves its static files itself."""

from __future__ import annotations

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example.settings")

application = StaticFilesHandler(get_wsgi_application())
