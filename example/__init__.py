"""The demo site: a slow model, a crowd of visitors, and a picture of both. ``python manage.py demo`` serves it."""
