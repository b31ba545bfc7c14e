"""A local page that answers questions while they change. It listens on loopback only."""

from simreduce.app.serve.server import ServerLimits, check_serve, serve
from simreduce.app.serve.view import View, of_jobs, read_view

__all__ = ["ServerLimits", "View", "check_serve", "of_jobs", "read_view", "serve"]
