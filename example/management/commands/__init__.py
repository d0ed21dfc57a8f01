"""``manage.py demo``."""
