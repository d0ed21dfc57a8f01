"""The admin, and a second one."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from django_singleflight.admin import FlightAdmin
from django_singleflight.models import Flight

second = admin.AdminSite("second")
second.register(Flight, FlightAdmin)

urlpatterns = [path("admin/", admin.site.urls), path("second/", second.urls)]
