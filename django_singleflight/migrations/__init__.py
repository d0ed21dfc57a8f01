"""Migrations: permissions alone, there is no table."""
