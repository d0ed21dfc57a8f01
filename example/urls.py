"""Addresses of the demo site."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

from example import views

urlpatterns = [
    path("", views.home, name="home"),
    path("ask/", views.ask, name="ask"),
    path("picture/", views.picture, name="picture"),
    path("crowd/", views.crowd, name="crowd"),
    path("kill/", views.kill, name="kill"),
    path("favicon.ico", RedirectView.as_view(url="/static/example/icon.svg")),
    path("admin/", admin.site.urls),
]
